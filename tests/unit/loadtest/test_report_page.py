"""write_report: the figures it draws, runs that lack files, names from outside, targets, generators that limit."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from math import isclose
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llog.errors import RunNotFound
from llog.loadtest.artifacts import ClientSummary, FaultEvent, GeneratorHealth, SearchStep, Summary
from llog.loadtest.collect.summarise import summarise
from llog.loadtest.report import build_report, write_report
from llog.loadtest.report.model import Report
from llog.loadtest.report.render import outcome, target_text
from llog.loadtest.report.run_data import FILES
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario.model import Scenario, Targets
from tests.unit.loadtest.artefacts import BEGAN_S, RunShape, write_run

HOSTILE = '"><script src="https://example.com/x.js"></script><img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def shape() -> RunShape:
    targets = Targets(produce_mb_per_s_min=1, produce_p99_ms_max=0.5)
    return RunShape(faults=True, targets=targets)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shape: RunShape) -> RunDirectory:
    """Never changed by a test."""
    written = write_run(tmp_path_factory.mktemp("results"), shape)
    summarise(written)
    write_report(written)
    return written


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    written = write_run(tmp_path_factory.mktemp("short"), RunShape(brokers=1, measured_intervals=1))
    summarise(written)
    return written


@pytest.fixture
def small(short_run: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy for one test."""
    shutil.copytree(short_run.path, tmp_path / short_run.run_id)
    return RunDirectory(tmp_path / short_run.run_id)


@pytest.fixture(scope="module")
def report(run: RunDirectory) -> Report:
    return msgspec.json.decode((run.path / "report.json").read_bytes(), type=Report)


def values(report: Report, chart: str, series: str) -> list[float]:
    """Without gaps."""
    shown = next(each for each in report.charts()[chart].series if each.name == series)
    return [y for _, y in shown.points if y is not None]


class Outline(HTMLParser):
    """Checks that tags close, and gathers what a page could load."""

    VOID = frozenset(("meta", "line", "rect", "path", "circle", "br"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name == "id":
                self.ids.append(value or "")
            elif name in ("src", "href", "xlink:href", "action", "data"):
                self.links.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check_page(path: Path) -> str:
    """The page is well-formed, loads nothing, runs nothing, and its links lead to its own parts."""
    page = path.read_text("utf-8")
    outline = Outline(page)
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    assert not outline.tags & {"script", "img", "iframe", "link", "object", "embed", "base"}
    assert "url(" not in page
    assert "@import" not in page
    return page


# -- figures -----------------------------------------------------------------------------------------------------------


def test_throughput_is_what_clients_acknowledged_and_received(report: Report, shape: RunShape) -> None:
    for name in ("acknowledged", "received"):
        assert values(report, "throughput", name) == pytest.approx([shape.mb_per_s] * shape.intervals)
    assert values(report, "throughput", "offered") == pytest.approx([shape.mb_per_s] * shape.intervals, rel=0.01)


def test_rates_of_brokers_follow_their_counters(report: Report, shape: RunShape) -> None:
    flushes_per_s = shape.brokers * shape.flushes_per_interval / shape.interval_s
    # The last interval is a second longer: the forced sample.
    expected = [flushes_per_s] * (shape.intervals - 1)
    assert values(report, "flushes", "idle")[:-1] == pytest.approx(expected)
    assert values(report, "metadata", "write")[:-1] == pytest.approx([2 * each for each in expected])
    assert values(report, "s3", "put")[0] == pytest.approx(flushes_per_s + 1 / shape.interval_s)


def test_stages_have_means_and_percentiles_of_the_measured_phase(report: Report, shape: RunShape) -> None:
    section = next(each for each in report.sections if each.id == "batching")
    rows: dict[Any, Any] = {row[0]: row for row in section.tables[0].rows}
    assert set(rows) == {"queue", "upload", "commit"}
    assert rows["upload"][3] == pytest.approx(12)
    assert 10 < rows["upload"][6] <= 20
    assert rows["queue"][2] == pytest.approx(
        shape.brokers * shape.measured_intervals * shape.flushes_per_interval, 0.01
    )
    assert values(report, "stages", "commit")[0] == pytest.approx(4)


def test_dollars_per_gb_are_dollars_per_hour_by_gb_per_hour(report: Report, shape: RunShape) -> None:
    per_hour, per_gb = values(report, "dollars", "requests")[0], values(report, "dollars-per-gb", "requests")[0]
    assert per_hour > 0
    assert isclose(per_gb, per_hour / (shape.mb_per_s * 3.6), rel_tol=1e-6)


def test_every_chart_of_a_whole_run_has_values(report: Report) -> None:
    empty = {chart.id for chart in report.charts().values() if not chart.drawable}
    assert empty == {"failures", "retries"}, "no request failed in this run"


def test_percentiles_reach_as_far_as_there_are_values(report: Report) -> None:
    hdr = report.charts()["hdr"]
    assert {each.name for each in hdr.series} == {"produce latency", "service time", "send delay", "end to end"}
    for series in hdr.series:
        xs = [x for x, _ in series.points]
        ys = [y for _, y in series.points if y is not None]
        assert xs[0] == 50
        assert 99 <= xs[-1] < 99.9, "300 values have no 99.9th percentile"
        assert ys == sorted(ys)


def test_faults_are_marks_in_every_plot_over_time(report: Report, shape: RunShape) -> None:
    over_time = [chart for chart in report.charts().values() if chart.kind in ("lines", "stacked")]
    assert len(over_time) > 20
    for chart in over_time:
        [mark] = [mark for mark in chart.marks if mark.kind == "event"]
        assert mark.label == "kill broker broker-0"
        assert mark.end == mark.x + 1
        assert {mark.label for mark in chart.marks if mark.kind == "phase"} == {"warm-up", ""}


def test_a_fault_that_failed_or_never_ended_is_marked_too(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunShape(brokers=1, measured_intervals=1))
    run.append("fault-events.jsonl", FaultEvent(BEGAN_S + 1, "stall_objects", "minio", "begin"))
    run.append("fault-events.jsonl", FaultEvent(BEGAN_S + 2, "kill_broker", "broker-9", "failed", "no such broker"))
    marks = [mark for mark in build_report(run).charts()["throughput"].marks if mark.kind == "event"]
    assert [(mark.x, mark.label, mark.end) for mark in marks] == [
        (1, "stall objects minio", None),
        (2, "kill broker broker-9 (failed: no such broker)", None),
    ]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_report_is_one_file_that_loads_nothing(run: RunDirectory) -> None:
    page = check_page(run.path / "report.html")
    assert "<script" not in page
    assert len(page) < 1_000_000
    for text in ("Reconciliation", "Kafka", "Changes of broker", "connection lost", "stack.brokers", "kill broker"):
        assert text in page, text


def test_the_same_run_gives_the_same_report(run: RunDirectory) -> None:
    first = (run.path / "report.html").read_bytes(), (run.path / "report.json").read_bytes()
    write_report(run)
    assert first == ((run.path / "report.html").read_bytes(), (run.path / "report.json").read_bytes())


def test_each_target_has_a_verdict(run: RunDirectory) -> None:
    page = (run.path / "report.html").read_text("utf-8")
    assert page.count("✓ met") == 1
    assert page.count("✗ missed") == 1
    assert "1 of 2 targets missed." in page
    assert "at most 0.5 ms" in page


@pytest.mark.parametrize("target", Targets.__struct_fields__)
def test_every_target_of_a_scenario_has_words(target: str) -> None:
    words, bound, unit = target_text(target)
    assert words
    assert words[0].isupper()
    assert "_" not in words
    assert bound in ("at least ", "at most ")
    assert unit


def test_an_unknown_target_is_shown_as_it_is() -> None:
    assert target_text("colour") == ("colour", "", "")


def test_names_from_outside_stay_text(tmp_path: Path) -> None:
    def scenario(before: Scenario) -> Scenario:
        return replace(before, description=HOSTILE)

    def client(before: ClientSummary) -> ClientSummary:
        return replace(
            before, limited_by_generator=HOSTILE, search=(SearchStep(1, 1, 1, True), SearchStep(2, 1, 9, False))
        )

    run = write_run(tmp_path, RunShape(brokers=1, measured_intervals=2), change_scenario=scenario, change_client=client)
    run.append("fault-events.jsonl", FaultEvent(BEGAN_S + 1, HOSTILE, HOSTILE, "begin", HOSTILE))
    run.write("environment.json", {HOSTILE: HOSTILE, "processor": HOSTILE})
    summary = summarise(run)
    run.write("summary.json", replace(summary, warnings=(HOSTILE,), metadata_operations={HOSTILE: 1.0}))
    page = check_page(write_report(run))
    assert "&lt;script" in page
    assert "limited this run" in page
    assert "Search for the highest rate" in page


# -- incomplete runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, "everything"])
def test_a_run_without_a_file_gets_a_report_that_says_so(small: RunDirectory, name: str) -> None:
    for missing in FILES if name == "everything" else [name]:
        (small.path / missing).unlink()
    page = check_page(write_report(small))
    assert "Missing from the run directory" in page
    for missing in FILES if name == "everything" else [name]:
        assert f"{missing} is missing" in page


@pytest.mark.parametrize("name", [*FILES, "git.json"])
@pytest.mark.parametrize("damage", [b"{\n", b"\xff\xfe\n"])
def test_a_damaged_file_does_not_stop_a_report(small: RunDirectory, name: str, damage: bytes) -> None:
    (small.path / name).write_bytes(damage)
    page = check_page(write_report(small))
    assert name not in FILES or f"{name} is damaged" in page


@pytest.mark.parametrize("content", [b"", b"[]\n", b'{"a":1}\n'])
def test_files_with_other_content_do_not_stop_a_report(small: RunDirectory, content: bytes) -> None:
    for name in (*FILES, "git.json"):
        (small.path / name).write_bytes(content)
    check_page(write_report(small))


def test_lines_before_a_damaged_one_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunShape(brokers=1, measured_intervals=3))
    path = run.path / "client-30s.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + b"{half\n" + b"".join(lines[4:]))
    report = build_report(run)
    assert len(values(report, "throughput", "acknowledged")) == 2
    assert any("damaged after line 4" in text for text in report.missing)


def test_late_answers_beside_an_interval_do_not_change_its_rate(small: RunDirectory) -> None:
    """Answers to requests of the last phase are written as a sample of their own, over the same time."""
    before = values(build_report(small), "throughput", "acknowledged")
    last = [each for each in small.client_samples() if each.kind == "producer"][-1]
    late = replace(
        last, phase="warm_up", due_requests=0, requests=0, payload_bytes=0, generator=GeneratorHealth(0.0, 0.0, 0.0)
    )
    small.append("client-30s.jsonl", late)
    report = build_report(small)
    assert values(report, "throughput", "acknowledged") == before
    [warm_up] = [mark for mark in report.charts()["throughput"].marks if mark.label == "warm-up"]
    assert warm_up.end == 5


def test_a_short_interval_joins_the_one_before(small: RunDirectory) -> None:
    before = values(build_report(small), "throughput", "acknowledged")
    last = [each for each in small.client_samples() if each.kind == "producer"][-1]
    for end_s in (last.end_s + 0.1, last.end_s):
        small.append("client-30s.jsonl", replace(last, begin_s=last.end_s, end_s=end_s, payload_bytes=0))
    check_page(write_report(small))
    assert len(values(build_report(small), "throughput", "acknowledged")) == len(before)


def test_damaged_histograms_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunShape(brokers=1, measured_intervals=2))
    samples = list(run.client_samples())
    (run.path / "client-30s.jsonl").unlink()
    damages = ["!", "HISTFAAA", samples[0].latency[:40], "é"]
    for number, sample in enumerate(samples):
        run.append("client-30s.jsonl", replace(sample, latency=damages[number % len(damages)]))
    shown = build_report(run).charts()["latency-over-time"]
    assert not shown.drawable


def test_a_run_that_did_not_end_is_no_success(run: RunDirectory, report: Report) -> None:
    assert outcome(replace(report, complete=False))[0] == "bad"
    assert outcome(replace(report, verdicts=(), warnings=()))[0] == "good"
    assert outcome(replace(report, verdicts=(), warnings=("x",)))[0] == "warn"


def test_a_directory_that_is_no_run_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        write_report(RunDirectory(tmp_path))


def test_numbers_that_json_cannot_hold_do_not_stop_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunShape(brokers=1, measured_intervals=1))
    summary = summarise(run)
    run.write("summary.json", summary)
    text = re.sub(
        rb'"requests_per_hour": [0-9.e-]+', b'"requests_per_hour": 1e308', (run.path / "summary.json").read_bytes()
    )
    (run.path / "summary.json").write_bytes(text)
    assert msgspec.json.decode(text, type=Summary).money.requests_per_hour == 1e308
    check_page(write_report(run))
