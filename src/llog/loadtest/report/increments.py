"""Counters of processes as rates on a common grid of time.

A counter is read when a page is sampled; between two readings of one process life it is taken to grow evenly. A reading
after a restart counts from the start of the new life. A page that could not be read leaves a longer interval, not a
hole; an interval without any reading is a gap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Final

import msgspec

from llog.loadtest.artifacts import MetricsSample
from llog.loadtest.report.charts.model import Point

Values = Mapping[str, float]
"""Counters of one process by name."""

COVERED_SHARE_MIN: Final = 0.5
"""A rate is shown where readings cover this share of the interval."""
SHORT_SHARE: Final = 0.25
"""Intervals shorter than this share of the median are joined."""
SAME_LIFE_S: Final = 0.5
"""Start times of one life differ less."""
STARTS: Final = ("process.start_time_seconds", "broker.started_at_seconds", "compactor.started_at_seconds")


class Reading(msgspec.Struct, frozen=True):
    at_s: float
    life_s: float
    """When this life of the process began; 0 if unknown, and then a smaller value shows a restart."""
    values: Values


class Growth(msgspec.Struct, frozen=True):
    """What counters of one process grew by between two times."""

    begin_s: float
    end_s: float
    amounts: Values


class Grid(msgspec.Struct, frozen=True):
    """Rates are means between these times. `zero_s` is where the time axis begins."""

    times: tuple[float, ...]
    zero_s: float

    @classmethod
    def of(cls, times: Iterable[float], zero_s: float) -> Grid:
        """Without the short intervals that forced samples make, at changes of phase and at the end: over them, a rate
        is mostly noise."""
        listed = sorted(set(times))
        lengths = sorted(after - before for before, after in pairwise(listed))
        length_min = SHORT_SHARE * lengths[len(lengths) // 2] if lengths else 0.0
        kept = listed[:1]
        for at_s in listed[1:]:
            if at_s - kept[-1] >= length_min:
                kept.append(at_s)
        if len(kept) > 1:
            kept[-1] = listed[-1]
        return cls(tuple(kept), zero_s)

    def intervals(self) -> Iterator[tuple[float, float]]:
        return pairwise(self.times)


def leaves(page: Any, path: str) -> dict[str, float]:
    """The numbers at and below a dotted path, by the rest of their paths; `` for the path itself."""
    for step in path.split("."):
        if not isinstance(page, Mapping):
            return {}
        page = page.get(step)
    found: dict[str, float] = {}
    _gather(page, "", found)
    return found


def _gather(branch: Any, path: str, found: dict[str, float]) -> None:
    if isinstance(branch, Mapping):
        for key, value in branch.items():
            _gather(value, f"{path}.{key}" if path else str(key), found)
    elif isinstance(branch, int | float) and not isinstance(branch, bool):
        found[path] = float(branch)


def readings(samples: Iterable[MetricsSample], pick: Callable[[Mapping[str, Any]], Values]) -> dict[str, list[Reading]]:
    """By process, of the pages that answered."""
    found: dict[str, list[Reading]] = {}
    for sample in samples:
        for page in sample.pages:
            if page.ok:
                found.setdefault(page.name, []).append(Reading(sample.at_s, _life_s(page.page), pick(page.page)))
    return found


def _life_s(page: Any) -> float:
    starts = (leaves(page, path).get("") for path in STARTS)
    return next((start for start in starts if start is not None), 0.0)


def growths(listed: Sequence[Reading]) -> list[Growth]:
    """Between successive readings of one process."""
    found = []
    for before, after in pairwise(listed):
        if after.at_s <= before.at_s:
            continue
        restarted = abs(after.life_s - before.life_s) > SAME_LIFE_S or any(
            after.values.get(name, 0.0) < value for name, value in before.values.items()
        )
        if restarted:
            begin_s = min(max(before.at_s, after.life_s), after.at_s)
            found.append(Growth(begin_s, after.at_s, after.values))
        else:
            amounts = {name: value - before.values.get(name, 0.0) for name, value in after.values.items()}
            found.append(Growth(before.at_s, after.at_s, amounts))
    return found


def all_growths(samples: Sequence[MetricsSample], pick: Callable[[Mapping[str, Any]], Values]) -> list[Growth]:
    """Of all processes."""
    return [growth for listed in readings(samples, pick).values() for growth in growths(listed)]


def amounts(found: Iterable[Growth], begin_s: float, end_s: float) -> dict[str, float] | None:
    """What all counters grew by in a stretch of time; None if no reading covers enough of it."""
    return _spread(found, (begin_s, end_s))[0]


def by_interval(found: Iterable[Growth], grid: Grid) -> list[tuple[float, float, dict[str, float] | None]]:
    """Middle of the interval on the time axis, its length in seconds, and the growth in it."""
    totals = _spread(found, grid.times)
    return [
        ((begin_s + end_s) / 2 - grid.zero_s, end_s - begin_s, total)
        for (begin_s, end_s), total in zip(grid.intervals(), totals, strict=True)
    ]


def _spread(found: Iterable[Growth], times: Sequence[float]) -> list[dict[str, float] | None]:
    """A total per interval between `times`: of each growth the part that falls into it."""
    totals: list[dict[str, float]] = [{} for _ in times[1:]]
    covered: list[list[tuple[float, float]]] = [[] for _ in totals]
    for growth in found:
        length_s = growth.end_s - growth.begin_s
        # A growth without length, read at the moment of a restart, belongs to the interval that ends with it.
        first = max(0, (bisect_right if length_s > 0 else bisect_left)(times, growth.begin_s) - 1)
        for at in range(first, len(totals)):
            if times[at] >= growth.end_s:
                break
            begin_s, end_s = max(times[at], growth.begin_s), min(times[at + 1], growth.end_s)
            if begin_s > end_s:
                continue
            share = (end_s - begin_s) / length_s if length_s > 0 else 1.0
            covered[at].append((begin_s, end_s))
            for name, amount in growth.amounts.items():
                totals[at][name] = totals[at].get(name, 0.0) + amount * share
    lengths = (end - begin for begin, end in pairwise(times))
    return [
        total if length > 0 and union(spans) >= COVERED_SHARE_MIN * length else None
        for total, spans, length in zip(totals, covered, lengths, strict=True)
    ]


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Length that spans cover together."""
    covered, reached = 0.0, -inf
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def rates(found: Sequence[Growth], grid: Grid, scale: float = 1.0) -> dict[str, tuple[Point, ...]]:
    """Per second, times `scale`, by name."""
    intervals = by_interval(found, grid)
    names = sorted({name for growth in found for name in growth.amounts})
    return {
        name: tuple(
            (x, None if amount is None else amount.get(name, 0.0) / length_s * scale)
            for x, length_s, amount in intervals
        )
        for name in names
    }
