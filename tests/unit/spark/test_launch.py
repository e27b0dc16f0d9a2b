"""The JVM of a session can be ended while it starts, with all it started; one that died is forgotten."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llog.errors import SparkSessionFailed
from llog.settings import Settings
from llog.spark.runner.compaction import check_of
from llog.spark.sessions import session as warm_session
from llog.spark.sessions.launch import GIVEN_UP, Launch, end_own_jvm, forget_dead_jvm
from tests.patience import PATIENCE_SECONDS, wait_until

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "leaderless-log[spark]"')

from pyspark import SparkContext, java_gateway

# As Spark's scripts: a process that starts another, both of which say who they are.
SCRIPT = 'echo $$ > "$1/one"; sh -c "echo \\$\\$ > $1/two; sleep 60" & wait'
STUBBORN = f'trap "" TERM; {SCRIPT}; sleep 60'


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().strip(), f"a number in {path}")
    return int(path.read_text())


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def launched(launch: Launch, directory: Path, script: str = SCRIPT) -> list[int]:
    with launch.noted():
        java_gateway.Popen(["sh", "-c", script, "sh", str(directory)])  # type: ignore[attr-defined]
    return [pid_in(directory / name) for name in ("one", "two")]


@pytest.mark.parametrize("script", [SCRIPT, STUBBORN], ids=["polite", "stubborn"])
def test_what_was_launched_ends_with_all_it_started(tmp_path: Path, script: str) -> None:
    launch = Launch()
    assert launch.pid is None
    pids = launched(launch, tmp_path, script)
    assert launch.pid == pids[0]
    launch.end(timeout_ms=300)
    wait_until(lambda: all(map(is_gone, pids)), "their end")
    launch.end()


@pytest.mark.parametrize(("script", "told"), [("exit 3", "ended with 3"), ("kill -9 $$", "ended by signal 9")])
def test_how_it_ended_is_told(script: str, told: str) -> None:
    launch = Launch()
    assert launch.ending == ""
    with launch.noted():
        java_gateway.Popen(["sh", "-c", script])  # type: ignore[attr-defined]
    wait_until(lambda: launch.ending, "its end")
    assert told in launch.ending


def test_nothing_of_ours_runs_in_the_forked_child_and_ctrl_c_does_not_reach_it(tmp_path: Path) -> None:
    """Pyspark hands over a function for the child; with it come the fork handlers of every library."""
    ran, launch = tmp_path / "ran", Launch()
    with launch.noted():
        child = java_gateway.Popen(["sleep", "60"], preexec_fn=ran.touch)  # type: ignore[attr-defined]
    assert not ran.exists()
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    launch.end()


def test_nothing_is_launched_once_it_was_given_up(tmp_path: Path) -> None:
    launch = Launch()
    with launch.noted():
        launch.end()
        with pytest.raises(RuntimeError, match=GIVEN_UP):
            java_gateway.Popen(["true"])  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=GIVEN_UP), launch.noted():
        raise AssertionError("not reached")
    assert java_gateway.Popen is subprocess.Popen  # type: ignore[attr-defined]


async def test_a_start_that_nobody_waits_for_any_more_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def start(master: str, app_name: str, config: object, launch: Launch) -> None:
        try:
            with launch.noted():
                process = java_gateway.Popen(["sh", "-c", SCRIPT, "sh", str(tmp_path)])  # type: ignore[attr-defined]
            process.wait()
            raise SparkSessionFailed(master, "the JVM is gone")
        finally:
            ended.set()

    monkeypatch.setattr(warm_session, "_start", start)
    monkeypatch.setattr(warm_session, "running_session", lambda: None)
    starting = asyncio.create_task(warm_session.started_in_background(Settings.from_env({})))
    pids = [await asyncio.to_thread(pid_in, tmp_path / name) for name in ("one", "two")]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, PATIENCE_SECONDS)
    assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)
    wait_until(lambda: all(map(is_gone, pids)), "their end")


async def test_a_start_that_fails_in_the_background_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(master: str, app_name: str, config: object, launch: Launch) -> None:
        raise SparkSessionFailed(master, "no such master")

    monkeypatch.setattr(warm_session, "_start", start)
    monkeypatch.setattr(warm_session, "running_session", lambda: None)
    with pytest.raises(SparkSessionFailed, match="no such master"):
        await warm_session.started_in_background(Settings.from_env({}), master="local[1]")


def test_a_jvm_that_could_not_make_a_session_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would be in it: with the memory that was too little, whatever was asked for then."""

    class Builder:
        def getOrCreate(self) -> None:
            java_gateway.Popen(["sh", "-c", SCRIPT, "sh", str(tmp_path)])  # type: ignore[attr-defined]
            raise RuntimeError("Insufficient driver memory")

        def __getattr__(self, name: str) -> Callable[..., Builder]:
            return lambda *given: self

    class Sessions:
        builder = Builder()

    monkeypatch.setattr(warm_session, "_session_class", lambda: Sessions)
    monkeypatch.setattr(warm_session, "prepare_environment", lambda master: None)
    launch = Launch()
    with pytest.raises(SparkSessionFailed) as raised:
        warm_session._start("local[1]", "llog", {}, launch)
    assert str(raised.value).endswith(": Insufficient driver memory"), "how it was ended here is not the reason"
    assert launch.pid is not None
    assert is_gone(launch.pid)


class Gateway:
    def __init__(self, proc: subprocess.Popen[bytes]) -> None:
        self.proc = proc


async def test_a_session_whose_jvm_is_gone_is_known_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", _jsc=object()))
    check = check_of(session)
    assert check is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:  # noqa: ASYNC220
        monkeypatch.setattr(SparkContext, "_gateway", Gateway(process))
        await check()
        process.kill()
    with pytest.raises(SparkSessionFailed, match="its JVM is gone"):
        await check()
    monkeypatch.setattr(SparkContext, "_gateway", None)
    session.sparkContext._jsc = None
    with pytest.raises(SparkSessionFailed, match="it was stopped"):
        await check()


def test_only_a_jvm_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gateway = Gateway(process)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", object())
        forget_dead_jvm()
        assert SparkContext._gateway is gateway
        end_own_jvm()
        assert process.poll() is not None
        end_own_jvm()
        forget_dead_jvm()
        assert vars(SparkContext)["_gateway"] is None
        assert vars(SparkContext)["_jvm"] is None
