"""`llog loadtest …` as a script meets it: wrong scenarios, missing runs, missing packages, runs in any state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from llog.cli.app import app
from llog.cli.exits import FAILED, NOT_FOUND, REFUSED, USAGE
from llog.loadtest.artifacts import ResolvedConfig, StackRecord
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario import Scenario
from tests.patience import PATIENCE_SECONDS


def llog(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["loadtest", *arguments])


def made(results: Path, name: str = "smoke") -> RunDirectory:
    run = RunDirectory.create(results, name)
    run.write("resolved-config.json", ResolvedConfig(run.run_id, name, (), Scenario(name)))
    return run


def shown(*arguments: str) -> Any:
    done = llog(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", ["run", "up"])
@pytest.mark.parametrize(
    ("change", "field"), [("stack.brokers=0", "stack.brokers"), ("stack.brokres=1", "stack.brokres"), ("x", "stack.")]
)
def test_a_wrong_scenario_ends_with_2_and_the_field(tmp_path: Path, command: str, change: str, field: str) -> None:
    done = llog(command, "smoke", "--results", str(tmp_path), "--set", change)
    assert done.exit_code == USAGE
    assert field in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_run_takes_a_scenario_or_a_run(tmp_path: Path) -> None:
    for arguments in ([], ["smoke", "--run", "x"], ["--run", "x", "--set", "stack.brokers=1"]):
        assert llog("run", *arguments, "--results", str(tmp_path)).exit_code == USAGE


@pytest.mark.parametrize("command", ["status", "down", "report", "precreate"])
def test_a_run_that_does_not_exist_ends_with_5(tmp_path: Path, command: str) -> None:
    done = llog(command, "nothing", "--results", str(tmp_path))
    assert done.exit_code == NOT_FOUND
    assert "nothing" in done.stderr


@pytest.mark.parametrize("command", [("precreate",), ("run", "--run", "smoke")])
def test_a_stack_that_is_not_up_cannot_be_loaded(tmp_path: Path, command: tuple[str, ...]) -> None:
    run = made(tmp_path)
    for stack in (None, StackRecord(run.run_id, "down", "smoke", 0)):
        if stack is not None:
            run.write_stack(stack)
        done = llog(*command, "--results", str(tmp_path))
        assert done.exit_code == FAILED
        assert "llog loadtest up" in done.stderr


def test_a_missing_server_names_the_command_that_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLOG_SERVERS_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("LLOG_LOADTEST_RUN_DIR", "")  # the command sets it
    done = llog("up", "smoke", "--results", str(tmp_path / "results"), "--set", "stack.metadata=oxia")
    assert done.exit_code == FAILED
    [line] = [line for line in done.stderr.splitlines() if line.startswith("llog: ")]
    assert line.startswith("llog: oxia: ")
    assert "make servers" in line
    assert shown("list", "--results", str(tmp_path / "results"))["runs"][0]["state"] == "down"


def test_the_list_shows_damaged_runs_beside_the_others(tmp_path: Path) -> None:
    good, bad = made(tmp_path), made(tmp_path, "other")
    good.write_stack(StackRecord(good.run_id, "down", "smoke", 0))
    (bad.path / "resolved-config.json").write_text("{")
    (bad.path / "stack.json").write_text("{")
    rows = {row["run_id"]: row for row in shown("list", "--results", str(tmp_path))["runs"]}
    assert (rows[good.run_id]["scenario"], rows[good.run_id]["state"]) == ("smoke", "down")
    assert (rows[bad.run_id]["scenario"], rows[bad.run_id]["state"]) == ("damaged", "unknown")


def test_status_advises_where_the_orchestrator_died(tmp_path: Path) -> None:
    run = made(tmp_path)
    for state in ("starting", "loading", "stopping"):
        run.write("stack.json", {"run_id": run.run_id, "state": state, "scenario": "smoke", "orchestrator_pid": 0})
        assert "llog loadtest down" in shown("status", "--results", str(tmp_path))["advice"]
    assert shown("down", "--results", str(tmp_path))["ended"] == []
    assert shown("status", "--results", str(tmp_path))["advice"] == ""


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules |= dict.fromkeys(('psutil', 'yaml', 'hdrh')); from llog.cli import main; main()"
    for arguments in (["up", "smoke"], ["run", "smoke"], ["down"], ["list"]):
        command = [sys.executable, "-c", hide, "loadtest", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == REFUSED, done.stderr
        [line] = done.stderr.splitlines()
        assert line.endswith('pip install "leaderless-log[loadtest]"')
