"""Load tests reduced to figures, and the tables of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from llog.errors import RunNotFound
from llog.loadtest.artifacts import Loss, Summary, Verdict
from llog.loadtest.collect.summarise import summarise
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.stack.snapshots import EnvironmentSnapshot, GitSnapshot
from tests.benchmarks.history import read_entries
from tests.benchmarks.performance_page import bench_table, filled, kafka_table, scenario_tables
from tests.benchmarks.scenario_figures import ScenarioFigures, add_runs, reduce_run
from tests.unit.benchmarks.test_history import MACHINE, bench
from tests.unit.loadtest.artefacts import RunShape, write_run

ENVIRONMENT: Final = EnvironmentSnapshot(
    "x86_64", "Linux 6", "A processor", 2, 25_000_000_000, "CPython 3.11", "1.0", {}, {}
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Never changed by a test."""
    run = write_run(tmp_path_factory.mktemp("results"), RunShape(measured_intervals=2))
    run.write("environment.json", ENVIRONMENT)
    run.write("git.json", GitSnapshot("f" * 40, "main", False))
    summarise(run)
    return run


def changed_run(measured: RunDirectory, results: Path, **changes: object) -> RunDirectory:
    """A copy without the logs, with another summary."""
    path = results / measured.run_id
    path.mkdir(parents=True)
    for name in ("resolved-config.json", "environment.json", "git.json"):
        (path / name).write_bytes((measured.path / name).read_bytes())
    run, summary = RunDirectory(path), measured.summary()
    assert summary is not None
    run.write("summary.json", replace(summary, **changes))
    return run


def summary_of(run: RunDirectory) -> Summary:
    summary = run.summary()
    assert summary is not None
    return summary


def test_a_run_is_reduced_to_its_figures_and_where_they_are_from(measured: RunDirectory) -> None:
    figures, summary = reduce_run(measured), summary_of(measured)
    client = summary.client
    assert client is not None
    assert figures.produced_mb_per_s == client.produced_mb_per_s > 0
    assert figures.produce is not None
    assert (figures.produce.p50, figures.produce.p99) == (client.latency.p50, client.latency.p99)
    assert {cpu.name for cpu in figures.cpu} == {cost.name for cost in summary.costs}
    assert figures.dollars_per_hour == summary.money.requests_per_hour > 0
    assert (figures.origin.commit, figures.origin.dirty, figures.origin.machine) == ("f" * 40, False, MACHINE)
    assert figures.stack == "HTTP, 2 brokers, lmdb and directory, 8 partitions"


def test_a_run_that_did_not_end_by_itself_is_refused_and_nothing_is_stored(
    measured: RunDirectory, tmp_path: Path
) -> None:
    broken = changed_run(measured, tmp_path / "results", complete=False)
    with pytest.raises(RunNotFound, match="did not run to its end"):
        add_runs(tmp_path / "scenarios.json", [measured.path, broken.path])
    assert not (tmp_path / "scenarios.json").exists()


def test_a_run_replaces_the_figures_of_its_scenario_only(measured: RunDirectory, tmp_path: Path) -> None:
    path = tmp_path / "scenarios.json"
    other = changed_run(measured, tmp_path / "other", scenario="another")
    add_runs(path, [measured.path, other.path])
    add_runs(path, [changed_run(measured, tmp_path / "again", warnings=("a broker lied",)).path])
    assert [(one.scenario, one.warnings) for one in read_entries(path, ScenarioFigures)] == [
        ("another", summary_of(measured).warnings),
        ("synthetic", ("a broker lied",)),
    ]


def test_the_tables_say_what_a_reader_must_not_miss(measured: RunDirectory, tmp_path: Path) -> None:
    client = summary_of(measured).client
    assert client is not None
    run = changed_run(
        measured,
        tmp_path,
        warnings=("the load generator | was the limit",),
        verdicts=(Verdict("produce_p99_ms_max", 10, 55.5, False), Verdict("failed_requests_max", 0, 0, True)),
        client=replace(client, loss=Loss(missing=3), failed={"503": 2}, end_to_end=replace(client.end_to_end, count=0)),
    )
    text = scenario_tables([reduce_run(run)])
    assert "**missing 3, twice 0, reordered 0**" in text
    assert "2 requests failed" in text
    assert "missed produce_p99_ms_max 10: 55.5" in text
    assert "failed_requests_max" not in text
    assert "the load generator \\| was the limit" in text
    assert "Machine A: A processor, 2 cores, 25 GB, Linux 6, CPython 3.11." in text
    assert "| – |" in text, "a run without consumers has no latency from end to end"


def test_every_stored_benchmark_is_in_one_of_the_two_tables() -> None:
    fetch = replace(bench(0.63, name="kafka_fetch"), ours=replace(bench().ours, median=2_500.0), ok=False, bar="≤ 1")
    stored = {"kafka_fetch": fetch, "one": bench()}
    kafka, others = kafka_table(stored), bench_table(stored)
    assert "0.40 CPU-s/GB" in kafka, "the rate of 2,500 MB/CPU-s, as CPU seconds per GB"
    assert "**short**" in kafka
    assert "`one`" not in kafka
    assert "`one`" in others
    assert "kafka_fetch" not in others


def test_a_page_is_filled_between_its_markers_only() -> None:
    page = "before\n<!-- measured: a -->\nold\nfigures\n<!-- end of a -->\nafter\n"
    assert filled(page, {"a": "new"}) == "before\n<!-- measured: a -->\nnew\n<!-- end of a -->\nafter\n"
    assert filled(filled(page, {"a": "new"}), {"a": "new"}) == filled(page, {"a": "new"})
    for wrong in ("", page + page):
        with pytest.raises(ValueError, match="markers"):
            filled(wrong, {"a": "new"})
