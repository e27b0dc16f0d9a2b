"""A session whose JVM died is not handed out again: the next one starts anew."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark
PROGRAM = """
import signal, os
from pyspark import SparkContext
import llog.spark
from llog.settings import Settings

def session():
    return llog.spark.session(Settings.from_env({}), master="local[1]")

first = session()
jvm = SparkContext._gateway.proc
assert session() is first
os.kill(jvm.pid, signal.SIGKILL)
jvm.wait()
again = session()
assert again is not first
print("rows", again.range(3).count())
again.stop()
"""


@pytest.mark.skipif(os.environ.get("LLOG_SOAK") != "1", reason="starts two sessions of its own: LLOG_SOAK=1")
def test_a_session_whose_jvm_was_killed_is_replaced(java: None) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=280, check=False)
    assert "rows 3" in ended.stdout, ended.stderr[-3_000:]
