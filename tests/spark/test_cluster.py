"""Tasks on executors in processes of their own, which know the stores by what is sent to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


@pytest.mark.skipif(os.environ.get("LLOG_SOAK") != "1", reason="starts a cluster of two executors: LLOG_SOAK=1")
def test_executors_of_a_cluster_need_nothing_but_the_object_store(java: None, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "tests.spark.cluster_program", str(tmp_path)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
    told = [line for line in ended.stdout.splitlines() if line.startswith("FACTS ")]
    assert told, ended.stderr[-4_000:]
    facts = json.loads(told[0].removeprefix("FACTS "))
    assert facts.pop("executors") >= 1
    assert facts == {"copied": ["1000"] * 8, "survived": [20, 21], "preloaded": True}
