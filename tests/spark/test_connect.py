"""The same source, sink and runner on a Spark Connect session: no context, no RDD, results over gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from llog.spark.sessions.session import COMPACT_CORES_UNKNOWN, CONNECT_MODE, running_session
from llog.testing.servers import STOP_SECONDS_MAX, free_port
from tests.spark.connect_jobs import REMOTE
from tests.spark.test_cluster import ROOT, facts_of

pytestmark = pytest.mark.spark
soak = pytest.mark.skipif(os.environ.get("LLOG_SOAK") != "1", reason="starts a Connect server of its own: LLOG_SOAK=1")
# Workers do not run where the program does.
ENVIRON: Final = {**os.environ, "PYTHONPATH": str(ROOT)}


@soak
@pytest.mark.serial
def test_tasks_run_fail_and_are_cancelled_through_connect(java: None, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason='Spark Connect needs gRPC: pip install "leaderless-log[spark]"')
    facts = facts_of("connect_program", tmp_path, ENVIRON)
    assert facts.pop("cancelled_after_s") < 5
    assert facts == {
        "connect": True,
        "heard": [0, 1, 2],
        "numbers": [0, "ObjectNotFound", 2],
        "error": ["ZeroDivisionError", "by zero"],
        "last": 9,
    }


@pytest.fixture
def remote(java: None, tmp_path: Path) -> Iterator[str]:
    """A Connect server in a process of its own."""
    pytest.importorskip("grpc", reason='Spark Connect needs gRPC: pip install "leaderless-log[spark]"')
    port = free_port()
    command = [sys.executable, "-m", "tests.spark.connect_server", str(port)]
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", (tmp_path / "server.log").read_text()[-3_000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            assert server.stdin is not None
            server.stdin.close()
            try:
                server.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                server.kill()


@soak
@pytest.mark.timeout(600)
def test_the_source_the_sink_and_the_jobs_work_through_a_server_elsewhere(remote: str, tmp_path: Path) -> None:
    facts = facts_of("connect_jobs", tmp_path / "data", {**ENVIRON, REMOTE: remote}, timeout_s=500)
    assert facts == {"connect": True, "jvm": False, "cores": COMPACT_CORES_UNKNOWN, "exported": True}


def test_a_session_that_another_thread_made_is_the_one_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a runner, which looks for it from a thread, would try to start a second one."""
    pytest.importorskip("grpc", reason='Spark Connect needs gRPC: pip install "leaderless-log[spark]"')
    connect = pytest.importorskip("pyspark.sql.connect.session", reason="pyspark is not installed")
    made: Any = SimpleNamespace(is_stopped=False)
    monkeypatch.setenv(CONNECT_MODE, "1")
    monkeypatch.setattr(connect.SparkSession, "_default_session", made)
    assert id(running_session()) == id(made)
    made.is_stopped = True
    assert running_session() is None
