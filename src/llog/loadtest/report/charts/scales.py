"""Axes: ticks, number formats, and thinning of long series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from typing import Final

from llog.loadtest.report.charts.model import Point

POINTS_MAX: Final = 400
"""Points drawn per series."""
LOG_RATIO_MIN: Final = 100.0
"""A logarithmic axis is used where the largest value is this multiple of the smallest."""

_SIZES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400)

Scale = Callable[[float], float]


def number(value: float) -> str:
    """Three significant digits, more before the point; 12,345 and 0.0123."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-6:
        return f"{value:.2e}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    digits = 2 - floor(log10(size))
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")


def tick_text(value: float) -> str:
    """Short: 12,000 is 12k."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.0e}".replace("e+", "e").replace("e-0", "e-")
    for unit, name in _SIZES:
        if size >= unit and (unit > 1e3 or size >= 1e4):
            return f"{value / unit:.3g}{name}"
    return f"{value:,.6g}" if size < 1e3 else f"{value:,.0f}"


def clock(seconds: float) -> str:
    """1:05, or 1:02:05 from an hour on."""
    if abs(seconds) > 1e9:
        return number(seconds)
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    hours, minutes, rest = whole // 3_600, whole // 60 % 60, whole % 60
    return f"{sign}{hours}:{minutes:02}:{rest:02}" if hours else f"{sign}{minutes}:{rest:02}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that reach from `low` or below to `high` or above."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [position * step for position in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around positive values."""
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    stride = max(1, ceil((last - first) / 6))
    return [10.0**power for power in range(first, max(last, first + 1) + stride, stride)]


def time_ticks(low: float, high: float, count: int = 7) -> list[float]:
    step: float = next((step for step in _TIME_STEPS_S if (high - low) / step <= count), 0)
    if not step:
        return ticks(low, high, count)[1:-1]
    return [position * step for position in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def wants_log(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) >= LOG_RATIO_MIN * min(positive)


def linear(low: float, high: float, begin: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: begin + (value / span - low / span) * (end - begin)


def logarithmic(low: float, high: float, begin: float, end: float) -> Scale:
    """Values at or below `low`, zero included, lie at the beginning."""
    base, span = log10(low), (log10(high) - log10(low)) or 1.0
    return lambda value: begin + (log10(max(value, low)) - base) / span * (end - begin)


def thin(points: Sequence[Point], points_max: int = POINTS_MAX) -> list[Point]:
    """At most `points_max` points: of each stretch the smallest and the largest value stay, and one gap."""
    if len(points) <= points_max:
        return list(points)
    stretches = max(1, points_max // 3)
    kept: list[Point] = []
    for stretch in range(stretches):
        begin, end = len(points) * stretch // stretches, len(points) * (stretch + 1) // stretches
        chosen: dict[int, float | None] = {}
        lowest = highest = None
        for position in range(begin, end):
            y = points[position][1]
            if y is None:
                if None not in chosen.values():
                    chosen[position] = None
                continue
            if lowest is None or y < lowest[1]:
                lowest = (position, y)
            if highest is None or y > highest[1]:
                highest = (position, y)
        chosen.update(dict(found for found in (lowest, highest) if found is not None))
        kept += [(points[position][0], chosen[position]) for position in sorted(chosen)]
    return kept
