"""`llog up` as a script sees it: where it listens, how it stops, and which stores it refuses."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.broker_process import LlogProcess, batch, run_llog

STOP_SECONDS: Final = 120.0


def listening(stack: LlogProcess, count: int) -> list[dict[str, str]]:
    """What it said on stdout: one document per line. The logs, JSON too, carry an event."""

    def told() -> list[dict[str, str]]:
        lines = [json.loads(line) for line in stack.output().splitlines() if line.endswith("}")]
        return [line for line in lines if "service" in line]

    stack.wait(lambda: stack.child.poll() is not None or len(told()) >= count, "listen")
    assert stack.child.poll() is None, stack.output()
    return told()


def test_a_script_learns_where_each_process_of_a_stack_listens(tmp_path: Path) -> None:
    settings = {"LLOG_DATA_DIR": f"{tmp_path}/data"}
    with LlogProcess("up", "--brokers", "2", "--json", settings=settings, log=tmp_path / "log") as stack:
        told = listening(stack, 3)
        assert sorted(one["service"] for one in told) == ["broker", "broker", "compactor"]
        urls = [one["url"] for one in told if one["service"] == "broker"]
        landed = httpx.post(f"{urls[0]}/produce", json=batch("orders", 0, ["alpha"]), timeout=PATIENCE_SECONDS)
        assert landed.status_code == 200, landed.text
        stack.child.send_signal(signal.SIGINT)
        assert stack.child.wait(STOP_SECONDS) == 0, stack.output()
    read = run_llog("consume", "orders", settings=settings)
    assert (read.returncode, read.stdout) == (0, "alpha\n")


def test_a_second_signal_does_not_wait_for_slow_clients(tmp_path: Path) -> None:
    settings = {"LLOG_DATA_DIR": f"{tmp_path}/data", "LLOG_HTTP_READ_TIMEOUT_MS": "600s"}
    settings |= {"LLOG_HTTP_STOP_TIMEOUT_MS": "600s"}
    with LlogProcess("broker", "--json", settings=settings, log=tmp_path / "log") as broker:
        [told] = listening(broker, 1)
        landed = httpx.post(f"{told['url']}/produce", json=batch("orders", 0, ["alpha"]), timeout=PATIENCE_SECONDS)
        assert landed.status_code == 200
        where = urlsplit(told["url"])
        with socket.create_connection((where.hostname or "", where.port or 0)) as slow:
            slow.sendall(b"POST /produce HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Content-Length: 1000\r\n\r\n{")
            time.sleep(1)
            broker.child.send_signal(signal.SIGTERM)
            broker.wait_closed(told["url"])
            assert broker.child.poll() is None, "the first signal waits for what is under way"
            broker.child.send_signal(signal.SIGTERM)
            assert broker.child.wait(STOP_SECONDS) == 0, broker.output()
    assert run_llog("consume", "orders", settings=settings).stdout == "alpha\n"


@pytest.mark.timeout(900)
def test_stores_that_do_not_belong_together_are_refused_with_words(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        made = run_llog("produce", "orders", settings={"LLOG_DATA_DIR": f"{tmp_path}/{name}"}, standard_input="x\n")
        assert made.returncode == 0, made.stderr
    mixed = {"LLOG_DATA_DIR": f"{tmp_path}/ours", "LLOG_OBJECTS_URL": f"file://{tmp_path}/theirs/objects"}
    unshared = {"LLOG_DATA_DIR": f"{tmp_path}/ours"}
    (tmp_path / "ours" / "objects").rename(tmp_path / "ours" / "elsewhere")
    wrong = ((mixed, "it belongs to cluster"), (unshared, "a directory of the same name on another"))
    for command, (settings, words) in itertools.product(("broker", "compactor", "up"), wrong):
        ended = run_llog(command, settings=settings)
        assert ended.returncode == 4, ended.stdout + ended.stderr
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.stdout == ""
    looked = json.loads(run_llog("doctor", "--json", settings=mixed).stdout)
    assert [one["result"] for one in looked["findings"] if one["look"] == "cluster"] == ["WRONG"]
