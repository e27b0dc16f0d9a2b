"""write_comparison: differences and what is better, the same plots overlaid, what the scenarios differ in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from llog.loadtest.artifacts import ClientSummary
from llog.loadtest.collect.summarise import summarise
from llog.loadtest.report import build_report, write_comparison
from llog.loadtest.report.charts import Chart, Series
from llog.loadtest.report.compare import Comparison, changed, judge, overlay
from tests.unit.loadtest.artefacts import RunShape, write_run
from tests.unit.loadtest.test_report_page import check_page


def _slower(summary: ClientSummary) -> ClientSummary:
    latency = replace(summary.latency, p99=summary.latency.p99 * 2)
    return replace(summary, produced_mb_per_s=summary.produced_mb_per_s * 1.5, latency=latency)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run B has one broker more, 1.5 times the throughput and twice the p99."""
    results = tmp_path_factory.mktemp("results")
    a = write_run(results, RunShape(brokers=1, faults=True))
    b = write_run(results, RunShape(brokers=2), change_client=_slower)
    summarise(a), summarise(b)
    out = results / "new" / "ab.html"
    assert write_comparison(a, b, out) == out
    return out


@pytest.fixture(scope="module")
def comparison(written: Path) -> Comparison:
    return msgspec.json.decode(written.with_suffix(".json").read_bytes(), type=Comparison)


def test_figures_have_differences_and_their_direction(comparison: Comparison) -> None:
    found = {each.id: each for each in comparison.differences}
    assert found["produced"].percent == pytest.approx(200), "1.5 times the rate of two brokers instead of one"
    assert found["produced"].judgement == "better"
    assert found["produce-p99"].percent == pytest.approx(100)
    assert found["produce-p99"].judgement == "worse"
    assert found["produce-p50"].judgement == "equal"
    assert found["missing"].percent is None, "0 of both"


def test_fields_that_differ_are_listed(comparison: Comparison) -> None:
    fields = {field: (a, b) for field, a, b in comparison.scenario}
    assert fields["stack.brokers"] == ("1", "2")
    assert "records.bytes" not in fields
    assert any(field.startswith("faults") for field in fields)


def test_the_same_plots_are_overlaid(comparison: Comparison) -> None:
    charts = {chart.id: chart for section in comparison.sections for chart in section.charts}
    lines = {series.name: series for series in charts["throughput"].series}
    assert set(lines) == {f"{side} {name}" for side in "AB" for name in ("offered", "acknowledged", "received")}
    assert lines["B received"].dashed
    assert not lines["A received"].dashed
    assert lines["A received"].colour == lines["B received"].colour
    assert [series.name for series in charts["flushes"].series] == ["A total", "B total"]


def test_a_comparison_is_one_file_that_loads_nothing(written: Path) -> None:
    page = check_page(written)
    assert "▲ better" in page
    assert "▼ worse" in page
    assert "+100.0 %" in page


def test_a_run_is_compared_with_one_that_left_almost_nothing(tmp_path: Path) -> None:
    whole, partial = write_run(tmp_path, RunShape(brokers=1)), write_run(tmp_path, RunShape(brokers=1))
    for name in ("client-30s.jsonl", "client-summary.json", "metrics-30s.jsonl", "environment.json"):
        (partial.path / name).unlink()
    for pair in ((whole, partial), (partial, whole), (partial, partial)):
        page = check_page(write_comparison(*pair, tmp_path / "out.html"))
        assert "did not end" in page


def test_small_differences_count_as_equal() -> None:
    assert judge(100, 101, "higher") == "equal"
    assert judge(100, 110, "higher") == "better"
    assert judge(100, 110, "lower") == "worse"
    assert judge(0, 1, "lower") == "worse"
    assert judge(100, 110, "") == ""
    assert judge(None, 110, "lower") == ""


def test_a_field_of_one_run_only_differs() -> None:
    assert changed({"a": "1", "same": "x", "name": "n"}, {"b": "2", "same": "x", "name": "m"}) == (
        ("a", "1", "–"),
        ("b", "–", "2"),
    )


def test_bars_of_different_categories_keep_their_places() -> None:
    def bars(*names: str) -> Chart:
        points = tuple((float(n), float(len(name))) for n, name in enumerate(names))
        return Chart("demo", "", "", "bars", "", (Series("x", points),), categories=names)

    shown = overlay(bars("a", "bb"), bars("bb", "ccc"))
    assert shown.categories == ("a", "bb", "ccc")
    assert [series.points for series in shown.series] == [((0.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (2.0, 3.0))]


def test_stacks_become_totals_with_gaps_where_nothing_was_read(tmp_path: Path) -> None:
    series = (Series("x", ((0, 1.0), (1, None))), Series("y", ((0, 2.0), (1, None))))
    [total] = overlay(Chart("demo", "", "", "stacked", "", series), None).series
    assert total.points == ((0, 3.0), (1, None))


def test_the_long_list_of_figures_agrees_with_the_report(comparison: Comparison, tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, RunShape(brokers=1)))
    assert {figure.id for figure in report.figures} <= {each.id for each in comparison.differences}
