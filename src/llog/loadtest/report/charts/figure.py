"""The HTML figure of a chart: heading, SVG with title and description, legend, data table."""

from __future__ import annotations

from llog.loadtest.report.charts.bars import bars, height
from llog.loadtest.report.charts.model import Chart, Series
from llog.loadtest.report.charts.plots import HEIGHT, WIDTH, events, hue, is_dashed, plot
from llog.loadtest.report.charts.rows import rows, value_text, x_text
from llog.loadtest.report.charts.scales import clock
from llog.loadtest.report.charts.svg import Markup, element, join


def render_chart(chart: Chart) -> Markup:
    about = element("p", chart.about) if chart.about else ""
    heading = element("figcaption", element("h3", chart.title), about)
    if not chart.drawable:
        reason = element("p", chart.missing or "The run has no values for this chart.", class_="none")
        return element("figure", heading, reason, class_="chart", id=chart.id)
    return element("figure", heading, _svg(chart), _legend(chart), _table(chart), class_="chart", id=chart.id)


def _svg(chart: Chart) -> Markup:
    high = height(chart) if chart.kind == "bars" else HEIGHT
    title, about = f"{chart.id}-title", f"{chart.id}-about"
    return element(
        "svg",
        element("title", chart.title, id=title),
        element("desc", f"{chart.about} Unit: {chart.unit}. The values are in the table below the chart.", id=about),
        bars(chart) if chart.kind == "bars" else plot(chart),
        class_="plot",
        viewBox=f"0 0 {WIDTH:.0f} {high:.0f}",
        role="img",
        aria_labelledby=f"{title} {about}",
    )


def _legend(chart: Chart) -> Markup:
    items = []
    if len(chart.series) > 1 or chart.kind != "bars":
        items += [element("li", _swatch(chart, series, n), series.name) for n, series in enumerate(chart.series)]
    if chart.kind in ("lines", "stacked"):
        phases = [mark.label for mark in chart.marks if mark.kind == "phase" and mark.label]
        items += [element("li", _patch("phase"), label) for label in phases]
        for n, mark in enumerate(events(chart)):
            letter = element("span", chr(65 + n), class_="sign", aria_hidden="true")
            items.append(element("li", letter, f"{mark.label} at {clock(mark.x)}"))
    return element("ul", *items, class_="legend") if items else Markup("")


def _swatch(chart: Chart, series: Series, position: int) -> Markup:
    colour, dash = hue(series, position), is_dashed(series, position)
    if chart.kind == "bars":
        shape = element(
            "rect", class_=f"bar {colour}{' hollow' if series.dashed else ''}", x=2, y=1, width=18, height=10
        )
    elif chart.kind == "stacked":
        return _patch(f"area {colour}")
    else:
        shape = element("path", class_=f"line {colour}{' dash' if dash else ''}", d="M1 6H23")
    return element("svg", shape, viewBox="0 0 24 12", aria_hidden="true")


def _patch(style: str) -> Markup:
    shape = element("rect", class_=style, x=2, y=0, width=18, height=12)
    return element("svg", shape, viewBox="0 0 24 12", aria_hidden="true")


def _table(chart: Chart) -> Markup:
    listed, stride = rows(chart)
    corner = {"hdr": "percentile", "bars": ""}.get(chart.kind, "time")
    head = element("tr", *(element("th", name, scope="col") for name in (corner, *(s.name for s in chart.series))))
    body = [
        element("tr", element("th", x_text(chart, x), scope="row"), *(element("td", value_text(y)) for y in values))
        for x, values in listed
    ]
    label = f"Data: {chart.title}"
    table = element("table", element("thead", head), element("tbody", *body))
    scroll = element("div", table, class_="scroll", role="region", tabindex=0, aria_label=label)
    note = f" (every {stride}. value)" if stride > 1 else ""
    return element("details", element("summary", f"Data in {chart.unit}{note}"), join(scroll))
