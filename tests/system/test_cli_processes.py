"""`llog up` as a script sees it: where it listens, how it stops, and which stores it refuses."""

from __future__ import annotations

import itertools
import json
import signal
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.broker_process import LlogProcess, batch, run_llog

STOP_SECONDS: Final = 120.0


def listening(stack: LlogProcess, count: int) -> list[dict[str, str]]:
    """What it said on stdout: one document per line. The logs, JSON too, carry an event."""

    def announced() -> list[dict[str, str]]:
        lines = [json.loads(line) for line in stack.output().splitlines() if line.endswith("}")]
        return [line for line in lines if "service" in line]

    stack.wait(lambda: stack.child.poll() is not None or len(announced()) >= count, "listen")
    assert stack.child.poll() is None, stack.output()
    return announced()


def test_a_script_learns_where_each_process_of_a_stack_listens(tmp_path: Path) -> None:
    settings = {"LLOG_DATA_DIR": f"{tmp_path}/data"}
    with LlogProcess("up", "--brokers", "2", "--json", settings=settings, log=tmp_path / "log") as stack:
        announced = listening(stack, 3)
        assert sorted(one["service"] for one in announced) == ["broker", "broker", "compactor"]
        urls = [one["url"] for one in announced if one["service"] == "broker"]
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
        [announced] = listening(broker, 1)
        landed = httpx.post(f"{announced['url']}/produce", json=batch("orders", 0, ["alpha"]), timeout=PATIENCE_SECONDS)
        assert landed.status_code == 200
        where = urlsplit(announced["url"])
        with socket.create_connection((where.hostname or "", where.port or 0)) as slow:
            slow.sendall(b"POST /produce HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Content-Length: 1000\r\n\r\n{")
            ours = slow.getsockname()
            accepted = psutil.Process(broker.child.pid).net_connections
            broker.wait(lambda: any(tuple(one.raddr) == ours for one in accepted()), "accept the slow client")
            broker.child.send_signal(signal.SIGTERM)
            broker.wait_closed(announced["url"])
            assert broker.child.poll() is None, "the first signal waits for requests in progress"
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
    assert [one["result"] for one in looked["findings"] if one["check"] == "cluster"] == ["WRONG"]
