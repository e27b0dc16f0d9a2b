"""Two runs side by side: figures with their differences, the same plots overlaid, what the scenarios differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from llog.loadtest.report.build import build_report
from llog.loadtest.report.charts import Chart, Series
from llog.loadtest.report.charts.model import Point
from llog.loadtest.report.charts.scales import number
from llog.loadtest.report.charts.svg import Markup, element
from llog.loadtest.report.model import Better, Report, Section, Table
from llog.loadtest.report.page import header_of, notice, page, pill, plain_section, section, table_card
from llog.loadtest.report.render import outcome, when
from llog.loadtest.run_directory import RunDirectory

NOTABLE_PERCENT: Final = 2.0
"""Smaller differences count as equal."""
OVERLAID_MAX: Final = 4
"""Series of each run in an overlaid chart."""
IGNORED: Final = ("name", "description")

Judgement = Literal["better", "worse", "equal", ""]


class Difference(msgspec.Struct, frozen=True):
    """One figure of both runs."""

    id: str
    label: str
    unit: str
    a: float | None
    b: float | None
    percent: float | None
    """Of b against a; None where a is zero or one of them is missing."""
    better: Better
    judgement: Judgement
    """Of b against a."""


class Comparison(msgspec.Struct, frozen=True):
    """The JSON file of a comparison. Series named `A …` and `B …` belong to the first and the second run."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    scenario: tuple[tuple[str, str, str], ...]
    """Field, value of a, value of b: where they differ."""
    machine: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def write_comparison(a: RunDirectory, b: RunDirectory, out: Path) -> Path:
    """Writes the page to `out` and its figures beside it with the suffix `.json`. Returns `out`."""
    first, second = build_report(a), build_report(b)
    comparison = compare(first, second)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(comparison, order="deterministic"))
    out.with_suffix(".json").write_bytes(text + b"\n")
    out.write_text(render_comparison(comparison, first, second), "utf-8")
    return out


def compare(a: Report, b: Report) -> Comparison:
    notes = [f"{side}: {outcome(report)[1]}" for side, report in (("A", a), ("B", b))]
    for side, report in (("A", a), ("B", b)):
        if report.limited_by_generator:
            notes.append(f"{side} was limited by its load generator: {report.limited_by_generator}")
    return Comparison(
        a=a.run_id,
        b=b.run_id,
        differences=tuple(differences(a, b)),
        scenario=changed(a.scenario_fields, b.scenario_fields),
        machine=changed(a.machine, b.machine),
        sections=tuple(_overlaid_sections(a, b)),
        notes=tuple(notes),
    )


def differences(a: Report, b: Report) -> Iterator[Difference]:
    """Figures of either run, in the order of the first."""
    firsts, seconds = {f.id: f for f in a.figures}, {f.id: f for f in b.figures}
    for identifier in (*firsts, *(each for each in seconds if each not in firsts)):
        shown = firsts.get(identifier) or seconds[identifier]
        one = firsts[identifier].value if identifier in firsts else None
        other = seconds[identifier].value if identifier in seconds else None
        percent = (other - one) / abs(one) * 100 if one and other is not None else None
        judgement = judge(one, other, shown.better)
        yield Difference(identifier, shown.label, shown.unit, one, other, percent, shown.better, judgement)


def judge(a: float | None, b: float | None, better: Better) -> Judgement:
    if a is None or b is None or not better:
        return ""
    if abs(b - a) <= abs(a) * NOTABLE_PERCENT / 100:
        return "equal"
    return "better" if (b > a) == (better == "higher") else "worse"


def changed(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    names = [*a, *(name for name in b if name not in a)]
    return tuple(
        (name, a.get(name, "–"), b.get(name, "–"))
        for name in names
        if a.get(name) != b.get(name) and name not in IGNORED
    )


# -- charts ------------------------------------------------------------------------------------------------------------


def _overlaid_sections(a: Report, b: Report) -> Iterator[Section]:
    firsts, seconds = a.charts(), b.charts()
    order = {section.id: section for section in (*a.sections, *b.sections)}
    for part in order.values():
        identifiers = dict.fromkeys(
            chart.id for report in (a, b) for each in report.sections if each.id == part.id for chart in each.charts
        )
        charts = tuple(overlay(firsts.get(each), seconds.get(each)) for each in identifiers)
        if charts:
            yield Section(part.id, part.title, charts, (), part.about)


def overlay(a: Chart | None, b: Chart | None) -> Chart:
    """A is solid, B dashed in the same colour. Stacks become their totals."""
    sides = [("A", a), ("B", b)]
    shown = a if (a is not None and a.drawable) or b is None else b
    assert shown is not None
    categories = tuple(dict.fromkeys(name for _, chart in sides if chart is not None for name in chart.categories))
    series: list[Series] = []
    about = shown.about
    if shown.kind == "stacked":
        about += " Totals of both runs."
        for side, chart in sides:
            if chart is not None and chart.series:
                series.append(Series(f"{side} total", total(chart.series), side == "B", 0 if side == "A" else 1))
    else:
        names = dict.fromkeys(each.name for _, chart in sides if chart is not None for each in chart.series)
        if len(names) > OVERLAID_MAX:
            about += f" Only the first {OVERLAID_MAX} of {len(names)} lines."
        for colour, name in enumerate(list(names)[:OVERLAID_MAX]):
            series += [
                Series(f"{side} {name}", _placed(each.points, chart, categories), side == "B", colour)
                for side, chart in sides
                if chart is not None
                for each in chart.series
                if each.name == name
            ]
    kind = "lines" if shown.kind == "stacked" else shown.kind
    missing = "Neither run has values for this chart."
    return Chart(shown.id, shown.title, about, kind, shown.unit, tuple(series), (), categories, shown.log, missing)


def _placed(points: Sequence[Point], chart: Chart, categories: tuple[str, ...]) -> tuple[Point, ...]:
    """Bars at the place of their category among those of both runs."""
    if chart.kind != "bars":
        return tuple(points)
    return tuple(sorted((float(categories.index(chart.categories[int(x)])), y) for x, y in points))


def total(series: Sequence[Series]) -> tuple[Point, ...]:
    """At each x the sum; a gap where no series has a value."""
    values: dict[float, float | None] = {}
    for each in series:
        for x, y in each.points:
            before = values.get(x)
            values[x] = before if y is None else y + (before or 0.0)
    return tuple(sorted(values.items()))


# -- page --------------------------------------------------------------------------------------------------------------


def render_comparison(comparison: Comparison, a: Report, b: Report) -> str:
    title = f"{a.scenario} and {b.scenario}" if a.scenario != b.scenario else a.scenario
    about = "Solid lines are run A, dashed lines run B. Differences are those of B against A."
    header = header_of("llog load tests compared", title, about, f"A: {when(a)}", f"B: {when(b)}")
    scenario = Table("scenario", "Scenario", ("field", "A", "B"), comparison.scenario, "Fields that differ.")
    machine = Table("machine", "Machine", ("", "A", "B"), comparison.machine, "Facts that differ.")
    cards = element("div", _figures(comparison), table_card(scenario), table_card(machine), class_="tables")
    first = section("summary", "Summary", notice("plain", "Outcomes", comparison.notes), cards)
    return page(f"{comparison.a} and {comparison.b}", header, [first, *map(plain_section, comparison.sections)])


def _figures(comparison: Comparison) -> Markup:
    rows, cells = [], []
    for each in comparison.differences:
        percent = "–" if each.percent is None else f"{each.percent:+.1f} %"
        rows.append((each.label, each.unit, each.a, each.b, percent, each.judgement))
        cells.append([each.label, each.unit, *map(_value, (each.a, each.b)), percent, _judgement(each.judgement)])
    columns = ("figure", "unit", "A", "B", "difference", "B is")
    return table_card(Table("figures", "Figures", columns, tuple(rows)), cells, folded=False)


def _value(value: float | None) -> str:
    return "–" if value is None else number(value)


def _judgement(judgement: Judgement) -> str:
    if judgement == "better":
        return pill("good", "▲ better")
    return pill("bad", "▼ worse") if judgement == "worse" else judgement or "–"
