"""The search for the highest rate that is sustained: double from the start, then halve the interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llog.loadtest.artifacts import SearchStep
from llog.loadtest.scenario.model import Search

REACHED_SHARE_MIN: Final = 0.98
"""Of the offered rate."""
STEPS_MAX: Final = 32


def judge(search: Search, offered_mb_per_s: float, reached_mb_per_s: float, produce_p99_ms: float) -> SearchStep:
    reasons = []
    if reached_mb_per_s < REACHED_SHARE_MIN * offered_mb_per_s:
        reasons.append(f"reached {reached_mb_per_s / offered_mb_per_s:.0%} of the rate")
    if produce_p99_ms > search.produce_p99_ms_max:
        reasons.append(f"p99 of {produce_p99_ms:.0f} ms is above {search.produce_p99_ms_max:g} ms")
    return SearchStep(offered_mb_per_s, reached_mb_per_s, produce_p99_ms, not reasons, ", ".join(reasons))


def sustained_mb_per_s(steps: Sequence[SearchStep]) -> float:
    """The highest rate below every rate that was not sustained; 0 without one."""
    limit = min((step.offered_mb_per_s for step in steps if not step.sustained), default=float("inf"))
    return max(
        (step.offered_mb_per_s for step in steps if step.sustained and step.offered_mb_per_s < limit), default=0.0
    )


def next_rate(search: Search, steps: Sequence[SearchStep]) -> float | None:
    """The rate of the next step; None when the search is over."""
    if not steps:
        return min(search.start_mb_per_s, search.highest_mb_per_s)
    if len(steps) >= STEPS_MAX:
        return None
    low = sustained_mb_per_s(steps)
    failed = [step.offered_mb_per_s for step in steps if not step.sustained]
    if not failed:
        return min(2 * low, search.highest_mb_per_s) if low < search.highest_mb_per_s else None
    high = min(failed)
    if high - low <= search.precision * high:
        return None
    return (low + high) / 2
