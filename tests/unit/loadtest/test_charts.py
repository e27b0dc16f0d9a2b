"""Charts: hostile names, values that are no numbers, no values, one value, huge ones; scales, thinning, colours."""

from __future__ import annotations

import ast
import math
import re
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import llog.loadtest.report.charts
from llog.errors import InvalidArgument
from llog.loadtest.report.charts import Chart, Mark, Series, render_chart, style
from llog.loadtest.report.charts.model import Kind, Point
from llog.loadtest.report.charts.rows import ROWS_MAX, rows
from llog.loadtest.report.charts.scales import (
    POINTS_MAX,
    clock,
    log_ticks,
    number,
    thin,
    tick_text,
    ticks,
    time_ticks,
    wants_log,
)

KINDS: tuple[Kind, ...] = ("lines", "stacked", "hdr", "bars")
HOSTILE = """</title><script>alert("1")</script>&' \x00\x1b\u202e"""


def chart(kind: Kind, *lines: list[Point], name: str = "series") -> Chart:
    series = tuple(Series(f"{name} {n}", tuple(line)) for n, line in enumerate(lines))
    return Chart("demo", "Title", "About it.", kind, "MB/s", series, categories=tuple("abc"), log=True)


def parsed(shown: Chart) -> ElementTree.Element:
    """The figure, which is XML too, without namespaces."""
    return ElementTree.fromstring(render_chart(shown))


def numbers_of(figure: ElementTree.Element) -> list[float]:
    """Every coordinate of every shape."""
    found: list[float] = []
    for shape in figure.iter():
        for key in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "d"):
            found += [float(text) for text in re.findall(r"-?\d[\d.e+-]*|nan|inf", shape.get(key, ""))]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_names_from_outside_stay_text(kind: Kind) -> None:
    marks = (Mark(1, HOSTILE), Mark(0, HOSTILE, 2, "phase"))
    series = (Series(HOSTILE, ((0, 1.0), (1, 2.0))),)
    shown = Chart("demo", HOSTILE, HOSTILE, kind, HOSTILE, series, marks, (HOSTILE, HOSTILE))
    text = render_chart(shown)
    assert "<script" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    names = {element.tag for element in parsed(shown).iter()}
    assert "script" not in names
    assert any(HOSTILE[:20] in "".join(element.itertext()) for element in parsed(shown).iter("desc"))


def test_an_id_that_could_break_an_attribute_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="chart id"):
        Chart('a"b', "", "", "lines", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "line",
    [[], [(0.0, None)], [(math.nan, 1.0)], [(0.0, math.nan), (1.0, math.inf), (2.0, -math.inf)], [(math.inf, 2.0)]],
)
def test_a_chart_without_values_says_so(kind: Kind, line: list[Point]) -> None:
    shown = parsed(chart(kind, line))
    assert shown.find("svg") is None
    assert "no values" in "".join(shown.itertext())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "line",
    [
        [(0.0, 1.0)],
        [(0.0, 0.0)],
        [(1.0, -3.0), (2.0, -3.0)],
        [(0.0, 1e308), (1.0, -1e308), (2.0, 1.7e308)],
        [(0.0, 5e-324), (1.0, 1.0)],
        [(-1e308, 1.0), (1e308, 2.0)],
        [(0.0, 1.0), (1.0, math.nan), (2.0, 3.0)],
    ],
)
def test_any_values_give_finite_coordinates(kind: Kind, line: list[Point]) -> None:
    shown = chart(kind, line, line)
    text = render_chart(shown)
    assert "nan" not in text.lower()
    assert ">inf" not in text
    if shown.drawable:
        assert all(math.isfinite(value) and abs(value) < 1e6 for value in numbers_of(parsed(shown)))


def test_the_same_chart_gives_the_same_text() -> None:
    first, second = (chart("stacked", [(0, 1.0), (1, 2.0)], [(0, 3.0), (1, None)]) for _ in range(2))
    assert render_chart(first) == render_chart(second)


def test_a_gap_interrupts_a_line_and_a_lone_value_is_a_dot() -> None:
    shown = parsed(chart("lines", [(0, 1.0), (1, 1.5), (2, None), (3, 1.0), (4, None), (5, 2.0), (6, 2.0)]))
    paths = [path.get("d", "") for path in shown.iter("path") if "line" in path.get("class", "")]
    assert paths[0].count("M") == 2
    assert len([dot for dot in shown.iter("circle") if "dot" in dot.get("class", "")]) == 1


def test_stacked_layers_lie_on_each_other() -> None:
    shown = parsed(chart("stacked", [(0, 1.0), (1, 1.0)], [(0, 3.0), (1, 3.0)]))
    lower, upper = (path.get("d", "") for path in shown.iter("path") if "area" in path.get("class", ""))
    tops = {re.findall(r"[ML]([\d.]+) ([\d.]+)", path)[0][1] for path in (lower, upper)}
    bottom_of_upper = re.findall(r"L([\d.]+) ([\d.]+)", upper)[-1][1]
    assert bottom_of_upper in tops
    assert len(tops) == 2


def test_faults_have_letters_and_phases_a_shade() -> None:
    marks = (Mark(0, "warm-up", 2, "phase"), Mark(3, "kill broker-0"), Mark(5, "stall", 7), Mark(99, "outside"))
    series = (Series("a", tuple((float(x), 1.0) for x in range(10))),)
    shown = parsed(Chart("demo", "", "", "lines", "", series, marks))
    flags = [text.text for text in shown.iter("text") if text.get("class") == "flagtext"]
    assert flags == ["A", "B"]
    assert "kill broker-0 at 0:03" in "".join(shown.itertext())
    assert len([shape for shape in shown.iter("rect") if shape.get("class") == "phase"]) == 2, "plot and legend"


def test_a_chart_is_described_and_its_data_stand_in_a_table() -> None:
    shown = parsed(chart("lines", [(0, 1.25), (60, 2.5)]))
    svg = shown.find("svg")
    assert svg is not None
    assert svg.get("role") == "img"
    named = {element.get("id") for element in svg.iter() if element.tag in ("title", "desc")}
    assert set(svg.get("aria-labelledby", "").split()) <= named
    cells = [cell.text for cell in shown.iter("td")]
    assert cells == ["1.25", "2.5"]
    assert [head.text for head in shown.iter("th")][-2:] == ["0:00", "1:00"]


def test_long_series_are_thinned_and_keep_their_extremes() -> None:
    points: list[Point] = [(float(x), math.sin(x / 50)) for x in range(20_000)]
    points[7_777] = (7_777.0, 99.0)
    points[12_345] = (12_345.0, -99.0)
    points[15_000] = (15_000.0, None)
    kept = thin(points)
    assert len(kept) <= POINTS_MAX
    assert {99.0, -99.0, None} <= {y for _, y in kept}
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    assert len(render_chart(chart("lines", points, points, points))) < 150_000


@pytest.mark.parametrize("kind", ["lines", "stacked"])
def test_a_table_of_a_long_series_has_every_nth_value(kind: Kind) -> None:
    shown = chart(kind, [(float(x), float(x)) for x in range(1_000)])
    listed, stride = rows(shown)
    assert len(listed) <= ROWS_MAX
    assert stride == 9
    assert "every 9. value" in render_chart(shown)


def test_series_sampled_at_other_times_share_the_rows() -> None:
    listed, _ = rows(chart("lines", [(0, 1.0), (10, 2.0), (20, 3.0)], [(1, 7.0), (19, 8.0)]))
    assert listed == [(0, [1.0, 7.0]), (10, [2.0, None]), (20, [3.0, 8.0])]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,234"), (12.345, "12.3"), (0.001234, "0.00123"), (1e20, "1.00e+20"), (-2.5, "-2.5")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_ticks_are_round_and_cover_the_values() -> None:
    assert ticks(0, 97) == [0, 20, 40, 60, 80, 100]
    assert ticks(0, 0)[0] == 0
    assert len(ticks(0, 0)) > 1
    assert log_ticks(3, 2_500) == [1, 10, 100, 1_000, 10_000]
    assert time_ticks(0, 130) == [0, 30, 60, 90, 120]
    assert [tick_text(value) for value in (0.25, 1_500, 12_000, 2.5e6)] == ["0.25", "1,500", "12k", "2.5M"]
    assert [clock(seconds) for seconds in (5, 65, 3_725, -5)] == ["0:05", "1:05", "1:02:05", "-0:05"]


def test_axes_are_logarithmic_only_over_wide_positive_ranges() -> None:
    assert wants_log([1, 5_000])
    assert wants_log([0, 1, 5_000])
    assert not wants_log([1, 50])
    assert not wants_log([-1, 5_000])
    assert not wants_log([0])
    assert not wants_log([])


def test_a_chart_is_logarithmic_only_where_it_asks_for_it() -> None:
    points: list[Point] = [(0, 1.0), (1, 9_000.0)]
    assert "(logarithmic)" in render_chart(chart("lines", points))
    assert "(logarithmic)" not in render_chart(chart("stacked", points))
    assert "(logarithmic)" not in render_chart(Chart("demo", "", "", "lines", "", (Series("a", tuple(points)),)))


def test_percentiles_lie_on_a_logarithmic_axis() -> None:
    shown = parsed(chart("hdr", [(50.0, 1.0), (90.0, 2.0), (99.0, 3.0), (99.9, 4.0), (99.99, 5.0), (99.999, 6.0)]))
    path = next(path.get("d", "") for path in shown.iter("path") if "line" in path.get("class", ""))
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", path)]
    steps = [after - before for before, after in pairwise(xs[1:])]
    assert max(steps) - min(steps) < 0.5, "each nine is as wide as the next"
    texts = [text.text for text in shown.iter("text")]
    assert {"50", "90", "99", "99.9", "99.99", "99.999"} <= set(texts)


# -- colours -----------------------------------------------------------------------------------------------------------

Rgb = tuple[float, float, float]
# How people without the receptors for long and for middle waves see linear colours (Machado et al. 2009).
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
EVERYBODY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
THEMES = [
    (style.CARD_LIGHT, style.PALETTE_LIGHT, (style.INK_LIGHT, style.QUIET_LIGHT)),
    (style.CARD_DARK, style.PALETTE_DARK, (style.INK_DARK, style.QUIET_DARK)),
]


def linear(colour: str) -> list[float]:
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    red, green, blue = zip(linear(one), linear(other), strict=True)
    dark, light = sorted(0.2126 * red[n] + 0.7152 * green[n] + 0.0722 * blue[n] for n in (0, 1))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, seen: tuple[Rgb, Rgb, Rgb]) -> Rgb:
    base = linear(colour)
    red, green, blue = (
        min(1.0, max(0.0, sum(weight * part for weight, part in zip(row, base, strict=True)))) for row in seen
    )
    x, y, z = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    f = [part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


@pytest.mark.parametrize(("card", "palette", "inks"), THEMES)
def test_lines_and_texts_have_a_contrast_of_four_and_a_half(
    card: str, palette: tuple[str, ...], inks: tuple[str, ...]
) -> None:
    assert min(contrast(colour, card) for colour in (*palette, *inks)) >= 4.5


@pytest.mark.parametrize(("card", "palette", "inks"), THEMES)
@pytest.mark.parametrize("seen", [EVERYBODY, PROTANOPIA, DEUTERANOPIA])
def test_colours_of_equal_dashes_differ_for_everybody(
    card: str, palette: tuple[str, ...], inks: tuple[str, ...], seen: tuple[Rgb, Rgb, Rgb]
) -> None:
    """A difference of 10 in CIE Lab is plain to see; the second four are dashed, so each four count alone."""
    for four in (palette[: style.DASHED_FROM], palette[style.DASHED_FROM :]):
        nearest = min(math.dist(lab(one, seen), lab(other, seen)) for one, other in combinations(four, 2))
        assert nearest >= 10, four


def test_the_chart_package_knows_nothing_of_load_tests() -> None:
    folder = Path(llog.loadtest.report.charts.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("llog"):
                own = (node.module or "").startswith("llog.loadtest.report.charts")
                assert own or node.module in ("llog.errors", "llog.limits"), (path.name, node.module)
