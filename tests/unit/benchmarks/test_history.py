"""Stored benchmarks, and what a later run says about its change since."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llog.testing.servers import ServerUnavailable
from tests.benchmarks import harness
from tests.benchmarks.harness import Benchmark, Result, run_all
from tests.benchmarks.history import (
    Machine,
    Origin,
    Spread,
    StoredBench,
    change_since,
    changes_of,
    read_benches,
    store_bench,
)

MACHINE = Machine("A processor", 2, 25, "Linux 6", "CPython 3.11")
ORIGIN = Origin("2027-01-15T08:00:00Z", "0123456789abcdef", False, MACHINE)


def bench(value: float = 1.0, low: float = 0.9, high: float = 1.1, name: str = "one") -> StoredBench:
    return StoredBench(
        name=name, value=value, low=low, high=high, bar="≥ 1", ok=True, judged=True, higher_is_better=True,
        against="a baseline", goal="", unit="MB/s", ours=Spread(100, 90, 110), baseline=Spread(100, 90, 110),
        ratios=(low, value, high), remarks="", origin=ORIGIN,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("low", "value", "high", "is_noise"),
    [
        (1.05, 1.09, 1.3, True),  # the new value is within the earlier range
        (0.95, 1.2, 1.3, True),  # the earlier value is within the new range
        (1.01, 1.2, 1.3, False),  # the ranges overlap, and neither holds the other's value
        (1.2, 1.3, 1.4, False),
        (0.5, 0.6, 0.7, False),
    ],
)
def test_a_change_is_noise_when_one_value_is_in_the_range_of_the_other(
    low: float, value: float, high: float, is_noise: bool
) -> None:
    change = change_since(bench(), bench(value, low, high))
    assert (change.is_noise, change.factor) == (is_noise, value)


@pytest.mark.parametrize(
    ("value", "higher_is_better", "verdict"),
    [(2, True, "better"), (0.5, True, "worse"), (2, False, "worse"), (0.5, False, "better")],
)
def test_the_direction_of_the_bar_decides_what_is_better(value: float, higher_is_better: bool, verdict: str) -> None:
    now = replace(bench(value, value, value), higher_is_better=higher_is_better)
    assert change_since(bench(), now).text() == f"× {value:.2f} of 2027-01-15 0123456: {verdict}"


def test_a_change_names_another_machine_and_a_checkout_with_changes() -> None:
    dirty = replace(ORIGIN, dirty=True, machine=replace(MACHINE, cores=64))
    change = change_since(replace(bench(), origin=dirty), bench(3, 3, 3))
    assert change.text() == "× 3.00 of 2027-01-15 0123456+, another machine: better"


def test_an_entry_in_two_histories_is_compared_once() -> None:
    committed, last = {"one": bench(2, 2, 2)}, {"one": bench(4, 4, 4)}
    assert [change.factor for change in changes_of(bench(), committed, last)] == [0.5, 0.25]
    assert len(changes_of(bench(), committed, committed)) == 1
    assert changes_of(bench(name="new"), committed, last) == []


def test_a_stored_entry_replaces_the_one_of_its_name_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "bench.json"
    assert read_benches(path) == {}
    for stored in (bench(name="b"), bench(name="a"), bench(2, 2, 2, name="b")):
        store_bench(path, stored)
    assert {name: stored.value for name, stored in read_benches(path).items()} == {"a": 1.0, "b": 2.0}
    assert [line[:11] for line in path.read_text().splitlines()[1:-1]] == ['{"name":"a"', '{"name":"b"']


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of the rounds of the benchmark `fake`; those of the next run if changed."""
    ratios = [1.0, 1.1, 1.2]

    async def measured(bench: Benchmark) -> Result:
        if not ratios:
            raise ServerUnavailable("no server")
        rate = {"median": 5.0, "min": 4.0, "max": 6.0}
        return Result(bench.name, True, ratios[1], "≥ 1", "a baseline", "", "MB", list(ratios), rate, rate)

    monkeypatch.setattr(harness, "run", measured)
    monkeypatch.setattr(harness, "this_origin", lambda: ORIGIN)
    fake = Benchmark("fake", None, "a baseline", 1.0, None, 9, "")  # type: ignore[arg-type]
    monkeypatch.setitem(harness.REGISTRY, "fake", fake)
    return ratios


def test_a_run_prints_its_change_and_only_store_changes_the_committed_figures(
    ratios: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, committed = tmp_path / "out", tmp_path / "bench.json"
    run_all(["fake"], out, committed)
    assert "×" not in capsys.readouterr().out.partition("\n")[2], "there is nothing to compare with yet"
    assert not committed.exists()
    run_all(["fake"], out, committed, store=True)
    assert capsys.readouterr().out.splitlines()[1:] == ["  × 1.00 of 2027-01-15 0123456: noise"]
    ratios[:] = [2.1, 2.2, 2.3]
    run_all(["fake"], out, committed)
    assert capsys.readouterr().out.splitlines()[1:] == ["  × 2.00 of 2027-01-15 0123456: better"]
    assert (read_benches(committed)["fake"].value, read_benches(out / "last.json")["fake"].value) == (1.1, 2.2)
    assert len((out / "runs.jsonl").read_text().splitlines()) == 3


def test_a_skipped_benchmark_keeps_its_stored_figures(ratios: list[float], tmp_path: Path) -> None:
    committed = tmp_path / "bench.json"
    run_all(["fake"], tmp_path, committed, store=True)
    ratios.clear()
    assert run_all(["fake"], tmp_path, committed, store=True)
    assert read_benches(committed)["fake"].value == 1.1
