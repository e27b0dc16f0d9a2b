"""Horizontal bars: a group per category, a bar per series, the value at its end."""

from __future__ import annotations

from typing import Final

from llog.loadtest.report.charts.model import Chart
from llog.loadtest.report.charts.plots import WIDTH, hue
from llog.loadtest.report.charts.scales import linear, number
from llog.loadtest.report.charts.svg import Markup, element, join

CATEGORIES_MAX: Final = 40
BAR: Final = 22.0
GAP: Final = 12.0
LEFT: Final = 186.0
VALUE_ROOM: Final = 90.0
LABEL_CHARACTERS_MAX: Final = 18


def height(chart: Chart) -> float:
    return GAP + len(chart.categories[:CATEGORIES_MAX]) * (BAR * len(chart.series) + GAP)


def bars(chart: Chart) -> Markup:
    lists = [dict(line) for line in chart.lines()]
    largest = max((abs(y) for values in lists for y in values.values() if y is not None), default=0.0)
    across = linear(0.0, largest or 1.0, 0.0, WIDTH - LEFT - VALUE_ROOM)
    parts, top = [], GAP / 2
    for position, category in enumerate(chart.categories[:CATEGORIES_MAX]):
        middle = top + BAR * len(lists) / 2
        parts.append(element("text", _short(category), class_="value", x=LEFT - 10, y=middle + 4.5, text_anchor="end"))
        for n, values in enumerate(lists):
            y = top + n * BAR
            value = values.get(float(position))
            shown = "no value" if value is None else f"{number(value)}"
            title = element("title", f"{category}, {chart.series[n].name}: {shown} {chart.unit}")
            width = 0.0 if value is None else max(1.0, across(abs(value)))
            style = f"bar {hue(chart.series[n], n)}" + (" hollow" if chart.series[n].dashed else "")
            bar = element("rect", title, class_=style, x=LEFT, y=y + 2, width=width, height=BAR - 4, rx=2.0)
            parts += [bar, element("text", shown, class_="value", x=LEFT + width + 7, y=y + BAR / 2 + 4.5)]
        top += BAR * len(lists) + GAP
    parts.append(element("line", class_="axis", x1=LEFT, x2=LEFT, y1=0, y2=height(chart)))
    return join(*parts)


def _short(label: str) -> str:
    return label if len(label) <= LABEL_CHARACTERS_MAX else label[: LABEL_CHARACTERS_MAX - 1] + "…"
