"""Run directories: names, what is found by which name, and files that a crash leaves whole or half."""

from __future__ import annotations

from pathlib import Path

import pytest

from llog.errors import RunNotFound
from llog.loadtest.artifacts import FaultEvent, ResolvedConfig, StackRecord
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario import Scenario

NOW_S = 1_800_000_000.0


def made(results: Path, name: str, now_s: float = NOW_S) -> RunDirectory:
    run = RunDirectory.create(results, name, now_s)
    run.write("resolved-config.json", ResolvedConfig(run.run_id, name, (), Scenario(name)))
    return run


def test_a_run_is_named_for_its_time_and_scenario(tmp_path: Path) -> None:
    run = made(tmp_path, "smoke")
    assert run.run_id == "20270115T080000Z-smoke"
    assert run.config().scenario.name == "smoke"
    assert run.logs.is_dir()
    assert run.data.is_dir()


def test_runs_of_one_second_have_different_directories(tmp_path: Path) -> None:
    runs = [made(tmp_path, "smoke") for _ in range(3)]
    assert len({run.path for run in runs}) == 3


def test_a_run_is_found_by_path_by_name_by_its_end_and_as_the_newest(tmp_path: Path) -> None:
    older, newer = made(tmp_path, "smoke"), made(tmp_path, "chaos", NOW_S + 60)
    again = made(tmp_path, "smoke", NOW_S + 120)
    assert RunDirectory.find(tmp_path).path == again.path
    assert RunDirectory.find(tmp_path, older.run_id).path == older.path
    assert RunDirectory.find(tmp_path, "chaos").path == newer.path
    assert RunDirectory.find(tmp_path, "smoke").path == again.path
    assert RunDirectory.find(Path("/nowhere"), str(older.path)).path == older.path
    for name in ("smok", "20270115", "moke"):
        with pytest.raises(RunNotFound):
            RunDirectory.find(tmp_path, name)


def test_no_runs_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="llog loadtest run smoke"):
        RunDirectory.find(tmp_path / "missing")


def test_a_value_is_replaced_whole(tmp_path: Path) -> None:
    run = made(tmp_path, "smoke")
    run.write_stack(StackRecord(run.run_id, "starting", "smoke", 1))
    run.write_stack(StackRecord(run.run_id, "up", "smoke", 1))
    assert run.stack() == StackRecord(run.run_id, "up", "smoke", 1)
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]


def test_what_is_missing_is_none_and_what_is_damaged_an_error(tmp_path: Path) -> None:
    run = made(tmp_path, "smoke")
    assert run.stack() is None
    assert run.summary() is None
    (run.path / "stack.json").write_text('{"run_id": "x", ')
    with pytest.raises(RunNotFound, match=r"stack\.json.*damaged"):
        run.stack()


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    run = made(tmp_path, "smoke")
    assert list(run.faults()) == []
    event = FaultEvent(1.0, "kill_broker", "broker-0", "begin")
    run.append("fault-events.jsonl", event)
    with open(run.path / "fault-events.jsonl", "ab") as file:
        file.write(b'{"at_s": 2.0, "ki')
    assert list(run.faults()) == [event]
