"""The values of a chart as rows: what its data table and its hover titles show."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from llog.loadtest.report.charts.model import Chart, Point
from llog.loadtest.report.charts.scales import clock, number

ROWS_MAX: Final = 120

Row = tuple[float, list[float | None]]


def rows(chart: Chart, rows_max: int = ROWS_MAX) -> tuple[list[Row], int]:
    """Rows by x, a value per series, and the stride: every how manyth x has a row. Series that were sampled at other
    times than the longest one give their nearest value."""
    lists = chart.lines()
    xs = [x for x, _ in max(lists, key=len, default=[])]
    stride = -(-len(xs) // rows_max) or 1
    reach = min((b - a for a, b in pairwise(xs) if b > a), default=1.0) * 0.75
    return [(x, [_nearest(points, x, reach) for points in lists]) for x in xs[::stride]], stride


def _nearest(points: Sequence[Point], x: float, reach: float) -> float | None:
    after = bisect_left(points, x, key=lambda point: point[0])
    near = [points[at] for at in (after - 1, after) if 0 <= at < len(points) and abs(points[at][0] - x) <= reach]
    return min(near, key=lambda point: abs(point[0] - x))[1] if near else None


def x_text(chart: Chart, x: float) -> str:
    if chart.kind == "bars":
        position = int(x)
        return chart.categories[position] if 0 <= position < len(chart.categories) else number(x)
    return f"p{x:.6g}" if chart.kind == "hdr" else clock(x)


def value_text(value: float | None) -> str:
    return "–" if value is None else number(value)
