"""Counters of processes added up over their lives.

A broker that was killed and started again counts from 0. What it counted between its last page and its death is lost,
so totals over a restart are lower bounds; `Lived.gaps` says where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from llog.loadtest.artifacts import MetricsSample, PageSample

Counters = Mapping[str, float]
"""Numbers of a JSON page by their paths; see docs/reference/metrics.md."""

SAME_LIFE_S: Final = 0.5
"""Start times of one life differ less."""
STEADY: Final = "log.append_records", "consume.records.cache", "consume.records.store", "process.cpu_seconds"
"""Counters that never go down in one life, for pages without a start time."""


class Gap(msgspec.Struct, frozen=True):
    """A restart: what the process counted from `last_seen_s` until it ended is not known."""

    last_seen_s: float
    restarted_s: float
    """When the next life began; where no page says so, when it was first seen."""


class Moment(msgspec.Struct, frozen=True):
    at_s: float
    totals: Counters
    """Over all lives so far."""


class Lived(msgspec.Struct, frozen=True):
    """A process over the run."""

    name: str
    moments: tuple[Moment, ...]
    """One per page that was read."""
    gaps: tuple[Gap, ...]
    page: Mapping[str, Any]
    """The last one."""

    @property
    def totals(self) -> Counters:
        return self.moments[-1].totals if self.moments else {}

    def total(self, path: str) -> float:
        return self.totals.get(path, 0.0)

    def at(self, path: str, at_s: float) -> float:
        """Between two pages, a counter is taken to grow evenly."""
        before: Moment | None = None
        for moment in self.moments:
            value = moment.totals.get(path, 0.0)
            if moment.at_s >= at_s:
                if before is None or moment.at_s == before.at_s:
                    return value
                earlier = before.totals.get(path, 0.0)
                return earlier + (value - earlier) * (at_s - before.at_s) / (moment.at_s - before.at_s)
            before = moment
        return self.total(path)

    def rate_max(self, path: str) -> float:
        """The highest growth per second between two pages."""
        rates = [
            (after.totals.get(path, 0.0) - before.totals.get(path, 0.0)) / (after.at_s - before.at_s)
            for before, after in pairwise(self.moments)
            if after.at_s > before.at_s
        ]
        return max(rates, default=0.0)


def lives_of(samples: Sequence[MetricsSample]) -> dict[str, Lived]:
    """Every process with a page, by name."""
    names = dict.fromkeys(page.name for sample in samples for page in sample.pages)
    return {name: _lived(name, samples) for name in names}


def sum_of(lives: Iterable[Lived], path: str) -> float:
    return sum(lived.total(path) for lived in lives)


def below(totals: Counters, path: str) -> dict[str, float]:
    """The numbers below a path, by the rest of theirs."""
    prefix = f"{path}."
    return {name.removeprefix(prefix): value for name, value in totals.items() if name.startswith(prefix)}


def _lived(name: str, samples: Sequence[MetricsSample]) -> Lived:
    moments: list[Moment] = []
    gaps: list[Gap] = []
    base: dict[str, float] = {}
    current: Counters = {}
    started_s = 0.0
    page: Mapping[str, Any] = {}
    for sample in samples:
        read = next((each for each in sample.pages if each.name == name and each.ok), None)
        if read is None:
            continue
        values, began_s = numbers_of(read), _started_s(read)
        if moments and _is_new_life(current, started_s, values, began_s):
            base = {path: base.get(path, 0.0) + current.get(path, 0.0) for path in base.keys() | current.keys()}
            gaps.append(Gap(moments[-1].at_s, max(began_s, moments[-1].at_s) if began_s else sample.at_s))
        current, started_s, page = values, began_s, read.page
        totals = {path: base.get(path, 0.0) + values.get(path, 0.0) for path in base.keys() | values.keys()}
        moments.append(Moment(sample.at_s, totals))
    return Lived(name, tuple(moments), tuple(gaps), page)


def _is_new_life(before: Counters, before_s: float, now: Counters, now_s: float) -> bool:
    if before_s and now_s:
        return abs(now_s - before_s) > SAME_LIFE_S
    return any(now.get(path, 0.0) < before.get(path, 0.0) for path in STEADY)


def numbers_of(page: PageSample) -> dict[str, float]:
    """The numbers of a page by path, histograms without their buckets."""
    found: dict[str, float] = {}
    _add_numbers(found, "", page.page)
    return found


def _add_numbers(found: dict[str, float], path: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, below_it in value.items():
            if name != "buckets":
                _add_numbers(found, f"{path}.{name}" if path else str(name), below_it)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found[path] = float(value)


def _started_s(page: PageSample) -> float:
    """0 if the page does not say."""
    for section in ("broker", "compactor"):
        started_s = page.page.get(section, {}).get("started_at_seconds", 0.0)
        if started_s:
            return float(started_s)
    return 0.0
