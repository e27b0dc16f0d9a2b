"""The same runner on a Spark Connect session: no context, no RDD, results over gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


@pytest.mark.skipif(os.environ.get("LLOG_SOAK") != "1", reason="starts a Connect server of its own: LLOG_SOAK=1")
def test_tasks_run_fail_and_are_cancelled_through_connect(java: None, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason='Spark Connect needs gRPC: pip install "leaderless-log[spark]"')
    command = [sys.executable, "-m", "tests.spark.connect_program", str(tmp_path)]
    # Its workers do not run where the program does.
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    told = [line for line in ended.stdout.splitlines() if line.startswith("FACTS ")]
    assert told, ended.stderr[-4_000:]
    facts = json.loads(told[0].removeprefix("FACTS "))
    assert facts.pop("cancelled_after_s") < 5
    assert facts == {
        "connect": True,
        "heard": [0, 1, 2],
        "numbers": [0, "ObjectNotFound", 2],
        "error": ["ZeroDivisionError", "by zero"],
        "last": 9,
    }
