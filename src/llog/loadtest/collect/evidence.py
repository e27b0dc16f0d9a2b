"""Everything that a summary follows from: the files of a run, read once, and the measured phase. Pure from here on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from llog.loadtest.artifacts import ClientSample, ClientSummary, FaultEvent, MetricsSample, StackRecord
from llog.loadtest.collect.lives import Lived, lives_of
from llog.loadtest.scenario.model import Scenario

BYTES_PER_GB: Final = 1e9


class Window(msgspec.Struct, frozen=True):
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return max(0.0, self.end_s - self.begin_s)


class Evidence(msgspec.Struct, frozen=True):
    scenario: Scenario
    stack: StackRecord | None
    client: ClientSummary | None
    client_samples: tuple[ClientSample, ...]
    samples: tuple[MetricsSample, ...]
    faults: tuple[FaultEvent, ...]
    artifacts: Mapping[str, bool]
    lives: Mapping[str, Lived]

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        *,
        stack: StackRecord | None = None,
        client: ClientSummary | None = None,
        client_samples: tuple[ClientSample, ...] = (),
        samples: tuple[MetricsSample, ...] = (),
        faults: tuple[FaultEvent, ...] = (),
        artifacts: Mapping[str, bool] | None = None,
    ) -> Evidence:
        return cls(scenario, stack, client, client_samples, samples, faults, artifacts or {}, lives_of(samples))

    @property
    def brokers(self) -> tuple[Lived, ...]:
        return self._named("broker-")

    @property
    def services(self) -> tuple[Lived, ...]:
        """Brokers and compactors: all whose requests to the stores are counted."""
        return self._named("broker-") + self._named("compactor-")

    @property
    def measured(self) -> Window:
        """From the sample that began the measured phase to the one that ended it; of an incomplete run, to the last
        one."""
        times = [sample.at_s for sample in self.samples if sample.phase == "measured"]
        if not times:
            return Window(0.0, 0.0)
        after = [sample.at_s for sample in self.samples if sample.phase == "after" and sample.at_s >= times[-1]]
        return Window(times[0], after[0] if after else times[-1])

    @property
    def broker_names(self) -> tuple[str, ...]:
        return () if self.stack is None else tuple(f"broker-{broker.number}" for broker in self.stack.brokers)

    @property
    def service_names(self) -> tuple[str, ...]:
        """Of all processes that should be scraped."""
        if self.stack is None:
            return ()
        return self.broker_names + tuple(f"compactor-{compactor.number}" for compactor in self.stack.compactors)

    def grown(self, path: str, lived: Lived) -> float:
        """How much a counter grew in the measured phase."""
        window = self.measured
        return lived.at(path, window.end_s) - lived.at(path, window.begin_s)

    def _named(self, prefix: str) -> tuple[Lived, ...]:
        return tuple(lived for name, lived in self.lives.items() if name.startswith(prefix))
