"""Plots with two axes: lines and stacked areas over time, latencies over a logarithmic axis of percentiles.

A plot is drawn on 560 × 280 units and scales with its column; narrow screens get larger text and fewer ticks by CSS.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import log10
from typing import Final

from llog.loadtest.report.charts.model import Chart, Mark, Point, Series
from llog.loadtest.report.charts.rows import rows, value_text, x_text
from llog.loadtest.report.charts.scales import (
    Scale,
    clock,
    linear,
    log_ticks,
    logarithmic,
    thin,
    tick_text,
    ticks,
    time_ticks,
    wants_log,
)
from llog.loadtest.report.charts.style import DASHED_FROM, PALETTE_LIGHT
from llog.loadtest.report.charts.svg import Markup, element, join

WIDTH: Final = 560.0
HEIGHT: Final = 280.0
LEFT: Final = 64.0
RIGHT: Final = 548.0
TOP: Final = 30.0
BOTTOM: Final = 248.0
FLAGS_MAX: Final = 26
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def hue(series: Series, position: int) -> str:
    """The CSS class of a series' colour."""
    return f"h{(position if series.colour is None else series.colour) % len(PALETTE_LIGHT)}"


def is_dashed(series: Series, position: int) -> bool:
    return series.dashed or (series.colour is None and position % len(PALETTE_LIGHT) >= DASHED_FROM)


def events(chart: Chart) -> list[Mark]:
    """The events that have a flag, in the order of their letters."""
    return [mark for mark in chart.marks if mark.kind == "event"][:FLAGS_MAX]


def plot(chart: Chart) -> Markup:
    """The content of the SVG of a chart that has values."""
    if chart.kind == "hdr":
        return _percentiles(chart)
    lists = [thin(line) for line in chart.lines()]
    low, high = _time_range(chart, lists)
    across = linear(low, high, LEFT, RIGHT)
    ground = _phases(chart, across, low, high)
    if chart.kind == "stacked":
        layers = _stack(chart)
        up, grid = _value_axis([top for layer in layers for _, _, top in layer], chart.unit)
        drawn = [_area(layer, across, up, hue(chart.series[n], n)) for n, layer in enumerate(layers)]
    else:
        up, grid = _value_axis([y for points in lists for _, y in points if y is not None], chart.unit, chart.log)
        drawn = [_line(lists[n], across, up, series, n) for n, series in enumerate(chart.series)]
    return join(
        ground, grid, *drawn, _time_axis(low, high, across), _events(chart, across, low, high), _hover(chart, across)
    )


# -- axes --------------------------------------------------------------------------------------------------------------


def _time_range(chart: Chart, lists: Sequence[Sequence[Point]]) -> tuple[float, float]:
    """Phases belong to it, so that all plots of a run have the same axis."""
    phases = [mark for mark in chart.marks if mark.kind == "phase"]
    xs = (
        [x for points in lists for x, _ in points]
        + [mark.x for mark in phases]
        + [mark.end or mark.x for mark in phases]
    )
    low, high = min(xs), max(xs)
    return (low, high) if high > low else (low - 1, high + 1)


def _value_axis(values: Sequence[float], unit: str, log: bool = False) -> tuple[Scale, Markup]:
    is_log = log and wants_log(values)
    if is_log:
        positions = log_ticks(min(value for value in values if value > 0), max(values))
        scale = logarithmic(positions[0], positions[-1], BOTTOM, TOP)
    else:
        positions = ticks(min(0.0, *values), max(0.0, *values), 4)
        scale = linear(positions[0], positions[-1], BOTTOM, TOP)
    lines = []
    for position in positions:
        y = scale(position)
        lines.append(element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        lines.append(element("text", tick_text(position), x=LEFT - 8, y=y + 4, text_anchor="end"))
    label = f"{unit} (logarithmic)" if is_log else unit
    lines.append(element("text", label, x=4, y=15))
    return scale, join(*lines)


def _time_axis(low: float, high: float, across: Scale) -> Markup:
    parts = [element("line", class_="axis", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)]
    for n, position in enumerate(time_ticks(low, high)):
        x, minor = across(position), "minor" if n % 2 else None
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 4))
        parts.append(element("text", clock(position), class_=minor, x=x, y=BOTTOM + 21, text_anchor="middle"))
    return join(*parts)


# -- marks -------------------------------------------------------------------------------------------------------------


def _phases(chart: Chart, across: Scale, low: float, high: float) -> Markup:
    parts = []
    for mark in chart.marks:
        if mark.kind == "phase" and mark.label and mark.end is not None and low <= mark.x < mark.end <= high:
            x, width = across(mark.x), across(mark.end) - across(mark.x)
            shade = element("rect", class_="phase", x=x, y=TOP, width=width, height=BOTTOM - TOP)
            parts.append(element("g", shade, element("title", mark.label)))
    return join(*parts)


def _events(chart: Chart, across: Scale, low: float, high: float) -> Markup:
    parts = []
    for n, mark in enumerate(events(chart)):
        if not low <= mark.x <= high:
            continue
        x = across(mark.x)
        if mark.end is not None and mark.end > mark.x:
            width = across(min(mark.end, high)) - x
            parts.append(element("rect", class_="eventspan", x=x, y=TOP, width=width, height=BOTTOM - TOP))
        sign = [
            element("line", class_="event", x1=x, x2=x, y1=TOP - 4, y2=BOTTOM),
            element("circle", class_="flag", cx=x, cy=TOP - 11, r=8.0),
            element("text", chr(65 + n), class_="flagtext", x=x, y=TOP - 11, text_anchor="middle"),
            element("title", f"{clock(mark.x)} {mark.label}"),
        ]
        parts.append(element("g", *sign))
    return join(*parts)


def _hover(chart: Chart, across: Scale) -> Markup:
    """A band per row with its values as title."""
    listed, _ = rows(chart)
    edges = [across(x) for x, _ in listed]
    parts = []
    for n, (x, values) in enumerate(listed):
        begin = LEFT if n == 0 else (edges[n - 1] + edges[n]) / 2
        end = RIGHT if n + 1 == len(edges) else (edges[n] + edges[n + 1]) / 2
        shown = zip(chart.series, values, strict=True)
        lines = [x_text(chart, x), *(f"{series.name}: {value_text(value)} {chart.unit}" for series, value in shown)]
        band = element("title", "\n".join(lines))
        parts.append(element("rect", band, class_="hover", x=begin, y=TOP, width=end - begin, height=BOTTOM - TOP))
    return join(*parts)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _line(points: Sequence[Point], across: Scale, up: Scale, series: Series, position: int) -> Markup:
    """Gaps interrupt the line; a point between two gaps is a dot."""
    colour, steps, dots = hue(series, position), [], []
    for present, stretch in groupby(points, key=lambda point: point[1] is not None):
        places = [(across(x), up(y)) for x, y in stretch if y is not None]
        if present and len(places) == 1:
            dots.append(element("circle", class_=f"dot {colour}", cx=places[0][0], cy=places[0][1], r=3.5))
        elif present:
            steps.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places))
    style = f"line {colour} dash" if is_dashed(series, position) else f"line {colour}"
    return join(element("path", class_=style, d="".join(steps)) if steps else "", *dots)


Layer = list[tuple[float, float, float]]
"""x, bottom, top."""


def _stack(chart: Chart) -> list[Layer]:
    """A layer per series on top of those before it; a gap counts as zero."""
    lists = [dict(line) for line in chart.lines()]
    xs = sorted({x for points in lists for x in points})
    totals: list[Point] = [(x, sum(points.get(x) or 0.0 for points in lists)) for x in xs]
    xs = [x for x, _ in thin(totals)]
    height, layers = dict.fromkeys(xs, 0.0), []
    for points in lists:
        layer: Layer = []
        for x in xs:
            top = height[x] + max(0.0, points.get(x) or 0.0)
            layer.append((x, height[x], top))
            height[x] = top
        layers.append(layer)
    return layers


def _area(layer: Layer, across: Scale, up: Scale, colour: str) -> Markup:
    if len(layer) == 1:
        x, bottom, top = across(layer[0][0]), up(layer[0][1]), up(layer[0][2])
        return element("rect", class_=f"area {colour}", x=x - 6, y=top, width=12, height=bottom - top)
    over = [f"{across(x):.1f} {up(top):.1f}" for x, _, top in layer]
    under = [f"{across(x):.1f} {up(bottom):.1f}" for x, bottom, _ in reversed(layer)]
    return element("path", class_=f"area {colour}", d="M" + "L".join(over + under) + "Z")


def _percentiles(chart: Chart) -> Markup:
    lists = chart.lines()
    xs = [x for points in lists for x, _ in points]
    first, last = min(50.0, *xs), max(99.0, *xs)
    shown = [x for x in PERCENTILES if x <= last + 1e-9]
    scale = linear(_nines(first), _nines(last), LEFT + 10, RIGHT - 10)

    def across(percentile: float) -> float:
        return scale(_nines(percentile))

    up, grid = _value_axis([y for points in lists for _, y in points if y is not None], chart.unit, chart.log)
    axis = [element("line", class_="axis", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)]
    for x in shown:
        axis.append(element("line", class_="grid", x1=across(x), x2=across(x), y1=TOP, y2=BOTTOM))
        axis.append(element("text", f"{x:.6g}", x=across(x), y=BOTTOM + 21, text_anchor="middle"))
    drawn = [_line(thin(lists[n]), across, up, series, n) for n, series in enumerate(chart.series)]
    return join(grid, *axis, *drawn, _hover(chart, across))


def _nines(percentile: float) -> float:
    """1 for 90, 2 for 99, 3 for 99.9."""
    return -log10(1 - percentile / 100)
