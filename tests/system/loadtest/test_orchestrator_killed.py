"""The orchestrator killed at every step of a run: `status`, `down` and `report` work, and nothing of the run is left.

After the kill, either the guardian has cleaned up before `down` is called, or `down` runs beside it. Two steps, chosen
by TEST_SEED, or all of them with LLOG_SOAK=1.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from llog.cli.app import app
from llog.cli.exits import INTERRUPTED
from llog.errors import RunNotFound
from llog.loadtest.artifacts import StepEvent
from llog.loadtest.progress import STEPS
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.stack.processes import find_marked
from tests.conftest import SEED
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.system.broker_process import environment

POINTS: Final = (
    "mkdir", "servers", "brokers", "precreate", "warm_up", "measured", "drain", "summary", "report", "teardown",
)  # fmt: skip
COMMAND: Final = [sys.executable, "-m", "llog"]
SCENARIO: Final = """
name: killed
stack: {compactor: {count: 0}}
topics: [{name: load, partitions: 2}]
load: {target_mb_per_s: 0.2, warm_up_s: 0.5, duration_s: 1}
producers: {clients: 1, records_per_request: 4}
consumers: {clients: 1, drain_s: 5}
collect: {interval_s: 0.5}
"""
SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
CHOSEN: Final = POINTS if SOAK else sorted(random.Random(SEED).sample(POINTS, 2), key=POINTS.index)


def started(results: Path) -> subprocess.Popen[bytes]:
    scenario = results / "killed.yaml"
    scenario.write_text(SCENARIO)
    with open(results / "log-orchestrator", "wb") as log:
        command = [*COMMAND, "loadtest", "run", str(scenario), "--results", str(results), "--json"]
        return subprocess.Popen(command, env=environment({}), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def reached(results: Path, point: str) -> RunDirectory | None:
    try:
        run = RunDirectory.find(results)
    except RunNotFound:
        return None
    return run if any(event.step == point for event in run.lines(STEPS, StepEvent)) else None


def llog(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["loadtest", *arguments, "--json"])
    assert done.exit_code == 0, f"{arguments}: {done.output}{done.exception}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("point", CHOSEN)
def test_nothing_is_left_of_a_run_whose_orchestrator_was_killed(tmp_path: Path, point: str) -> None:
    orchestrator = started(tmp_path)
    try:
        run = wait_until(
            lambda: reached(tmp_path, point) or orchestrator.poll() is not None, point, pause_seconds=0.002
        )
        assert orchestrator.poll() is None, (tmp_path / "log-orchestrator").read_text()
    finally:
        orchestrator.kill()
        code = orchestrator.wait()
    assert code == -signal.SIGKILL

    if POINTS.index(point) % 2:
        wait_until(lambda: not list(find_marked(run)), "the guardian's end")
    assert llog("status", str(run.path))["orchestrator_alive"] is False
    llog("down", str(run.path))
    assert [process.cmdline() for process in find_marked(run)] == []
    assert not run.data.exists()
    status = llog("status", str(run.path))
    assert status["state"] == "down"
    assert status["advice"] == ""
    assert [process for process in status["processes"] if process["alive"]] == []

    assert Path(llog("report", str(run.path))["report"]).stat().st_size > 0
    assert [row["state"] for row in llog("list", "--results", str(tmp_path))["runs"]] == ["down"]
    assert llog("down", str(run.path))["ended"] == []


@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1 runs it")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("point", ["servers", "measured", "summary"])
def test_a_signal_ends_a_run_in_order(tmp_path: Path, point: str, number: signal.Signals) -> None:
    orchestrator = started(tmp_path)
    try:
        run = wait_until(
            lambda: reached(tmp_path, point) or orchestrator.poll() is not None, point, pause_seconds=0.002
        )
        orchestrator.send_signal(number)
        code = orchestrator.wait(PATIENCE_SECONDS)
    finally:
        orchestrator.kill()
        orchestrator.wait()
    assert code == INTERRUPTED, (tmp_path / "log-orchestrator").read_text()
    assert [process.cmdline() for process in find_marked(run)] == []
    assert llog("status", str(run.path))["state"] == "down"
    if point == "measured":
        summary = run.summary()
        assert summary is not None
        assert not summary.complete
        assert [sample.final for sample in run.metrics_samples()][-1]
