"""Everything a report reads from a run directory, loaded once. Files that are not there leave empty values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from llog.errors import RunNotFound
from llog.loadtest.artifacts import (
    ClientSample,
    ClientSummary,
    FaultEvent,
    MetricsSample,
    RemapEvent,
    ResolvedConfig,
    StackRecord,
    Summary,
)
from llog.loadtest.report.charts import Mark
from llog.loadtest.report.increments import Grid
from llog.loadtest.run_directory import RunDirectory

FILES: Final[Mapping[str, str]] = {
    "stack.json": "what ran where",
    "client-30s.jsonl": "throughput and latency over time",
    "client-summary.json": "the clients' totals",
    "metrics-30s.jsonl": "batching, stages, caches, stores, processes and host over time",
    "summary.json": "verdicts, reconciliation and costs",
    "environment.json": "the machine",
}
"""What the report lacks without each."""
PHASES: Final = {"warm_up": "warm-up", "measured": "", "after": "after the load"}


class RunData(msgspec.Struct, frozen=True):
    run_id: str
    config: ResolvedConfig
    stack: StackRecord | None
    clients: tuple[ClientSample, ...]
    metrics: tuple[MetricsSample, ...]
    client: ClientSummary | None
    summary: Summary | None
    faults: tuple[FaultEvent, ...]
    remaps: tuple[RemapEvent, ...]
    environment: Mapping[str, str]
    missing: tuple[str, ...]

    @property
    def zero_s(self) -> float:
        """Where the time axis begins: with the load, or the first sample."""
        times = [sample.begin_s for sample in self.clients] or [sample.at_s for sample in self.metrics]
        return min(times, default=0.0)

    @property
    def grid(self) -> Grid:
        return Grid.of((sample.at_s for sample in self.metrics), self.zero_s)

    def stretch(self, phase: str) -> tuple[float, float] | None:
        """Unix times of the first begin and the last end of a phase. Late answers to requests of the phase do not
        lengthen it."""
        listed = [s for s in self.clients if s.phase == phase and (s.requests or s.generator.interval_s)]
        if not listed:
            return None
        return min(sample.begin_s for sample in listed), max(sample.end_s for sample in listed)

    @property
    def measured(self) -> tuple[float, float]:
        """The measured phase; all of the run's metrics if no client has measured."""
        times = self.grid.times
        return self.stretch("measured") or ((times[0], times[-1]) if times else (0.0, 0.0))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Phases and faults, for plots over time."""
        zero = self.zero_s
        marks = []
        for phase, label in PHASES.items():
            stretch = self.stretch(phase)
            if stretch is not None:
                marks.append(Mark(stretch[0] - zero, label, stretch[1] - zero, "phase"))
        begun: dict[tuple[str, str], FaultEvent] = {}
        for event in self.faults:
            key = (event.kind, event.target)
            if event.phase == "begin":
                begun[key] = event
                continue
            start = begun.pop(key, event)
            marks.append(_fault_mark(start, event, zero))
        marks += [_fault_mark(event, None, zero) for event in begun.values()]
        return tuple(sorted(marks, key=lambda mark: (mark.kind, mark.x, mark.label)))


def _fault_mark(start: FaultEvent, end: FaultEvent | None, zero_s: float) -> Mark:
    label = f"{start.kind.replace('_', ' ')} {start.target}".strip()
    if end is not None and end.phase == "failed":
        return Mark(start.at_s - zero_s, f"{label} (failed: {end.detail or 'no reason'})")
    return Mark(start.at_s - zero_s, label, None if end is None else end.at_s - zero_s)


def load(run: RunDirectory) -> RunData:
    """Raises `RunNotFound` without a resolved configuration. A damaged file counts as missing, with the reason."""
    missing: list[str] = []

    def single(name: str, kind: type[Any]) -> Any:
        try:
            value = run.read(name, kind)
        except (RunNotFound, OSError) as error:
            missing.append(f"{name} is damaged ({error}): {FILES[name]}")
            return None
        if value is None:
            missing.append(f"{name} is missing: {FILES[name]}")
        return value

    def lines(name: str, found: Iterable[Any]) -> tuple[Any, ...]:
        listed: list[Any] = []
        try:
            listed.extend(found)  # what came before a damaged line stays
        except (msgspec.DecodeError, OSError) as error:
            missing.append(f"{name} is damaged after line {len(listed)}: {error}")
            return tuple(listed)
        if not listed and name in FILES:
            missing.append(f"{name} is missing or empty: {FILES[name]}")
        return tuple(listed)

    config = run.config()
    machine = {**_snapshot(single("environment.json", dict)), **_git(run)}
    return RunData(
        run_id=config.run_id,
        config=config,
        stack=single("stack.json", StackRecord),
        clients=lines("client-30s.jsonl", run.client_samples()),
        metrics=lines("metrics-30s.jsonl", run.metrics_samples()),
        client=single("client-summary.json", ClientSummary),
        summary=single("summary.json", Summary),
        faults=lines("fault-events.jsonl", run.faults()),
        remaps=lines("remap-events.jsonl", run.remaps()),
        environment=machine,
        missing=tuple(missing),
    )


def _git(run: RunDirectory) -> dict[str, str]:
    try:
        return {f"git.{name}": value for name, value in _snapshot(run.read("git.json", dict)).items()}
    except (RunNotFound, OSError):
        return {}


def _snapshot(value: Any) -> dict[str, str]:
    return flatten(value) if isinstance(value, dict) else {}


def flatten(value: Any, path: str = "") -> dict[str, str]:
    """A text per leaf of a tree of JSON, by its path: `stack.brokers`, `topics[0].name`."""
    if isinstance(value, Mapping) and value:
        parts = [flatten(each, f"{path}.{key}" if path else str(key)) for key, each in value.items()]
    elif isinstance(value, list | tuple) and value:
        parts = [flatten(each, f"{path}[{number}]") for number, each in enumerate(value)]
    else:
        return {path: value if isinstance(value, str) else msgspec.json.encode(value).decode()}
    return {key: text for part in parts for key, text in part.items()}
