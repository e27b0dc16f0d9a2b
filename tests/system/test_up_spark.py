"""`llog up` and `llog compactor` with Spark: its state is reported, it delays no start, and it ends with them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.servers import need_spark
from tests.system.broker_process import LlogProcess, batch

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
STOP_SECONDS: Final = 30.0
"""A start of Spark takes longer than that on a machine as busy as this one may be; a stop must not."""
READY_SECONDS: Final = 120.0


@pytest.fixture
def java() -> None:
    need_spark()


def with_spark(directory: Path) -> dict[str, str]:
    return {"LLOG_DATA_DIR": str(directory / "data"), "LLOG_COMPACTOR_SPARK": "true", "LLOG_SPARK_MASTER": "local[1]"}


def health(url: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}/health", timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200
    return dict(answer.json())


def launched_by(process: LlogProcess) -> list[psutil.Process]:
    """Spark's processes: the script that becomes the JVM, and whatever they started."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.child.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended just now
                if "spark" in " ".join(child.cmdline()):
                    found.append(child)
    return found


def still_there(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def stop(process: LlogProcess, signals: int = 1) -> float:
    """How many seconds it took."""
    began = time.monotonic()
    for _ in range(signals):
        process.child.send_signal(signal.SIGTERM)
        time.sleep(0.1)  # two signals at the same moment count as one
    assert process.child.wait(PATIENCE_SECONDS) == 0, process.output()
    return time.monotonic() - began


STACKS = pytest.mark.parametrize("arguments", [(), ("--brokers", "2")], ids=["one process", "two brokers"])


@STACKS
def test_without_java_the_stack_is_well_and_says_why_spark_is_not_there(
    tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "leaderless-log[spark]"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with LlogProcess("up", *arguments, settings=with_spark(tmp_path), log=tmp_path / "log") as stack:
        stack.wait(lambda: "Spark: unavailable (" in stack.output(), "say that Spark is not there")
        said = stack.output()
        assert "compaction runs in this process" in said
        assert str(tmp_path / "nowhere") in said
        assert "Traceback" not in said
        brokers = [url for url in stack.urls(1 + max(1, len(arguments))) if is_broker(url)]
        assert len(brokers) == max(1, len(arguments))
        for url in brokers:
            stack.wait(lambda url=url: "unavailable" in health(url)["spark"], "tell its brokers")  # type: ignore[misc]
            page = health(url)
            assert page["status"] == "ok", page
            assert str(tmp_path / "nowhere") in page["spark"]
            assert httpx.get(f"{url}/ready", timeout=PATIENCE_SECONDS).status_code == 200
        assert (
            httpx.post(f"{brokers[0]}/produce", json=batch("orders", 0, ["x"]), timeout=PATIENCE_SECONDS).status_code
            == 200
        )
        stop(stack)


def is_broker(url: str) -> bool:
    return "broker_id" in health(url)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "signals"),
    [(("compactor",), 1), (("up",), 2), *([(("up", "--brokers", "2"), 1)] if SOAK else [])],
    ids=lambda value: str(value) if isinstance(value, int) else " ".join(value),
)
def test_a_stop_does_not_wait_for_spark_to_start_and_leaves_no_jvm(
    tmp_path: Path, java: None, arguments: tuple[str, ...], signals: int
) -> None:
    with LlogProcess(*arguments, settings=with_spark(tmp_path), log=tmp_path / "log") as process:
        process.wait(lambda: bool(launched_by(process)), "launch a JVM")
        found, url = launched_by(process), process.url
        assert health(url)["spark"] == "starting", "or this test proves nothing"
        assert health(url)["status"] in ("ok", "starting")
        found += launched_by(process)
        assert stop(process, signals) < STOP_SECONDS
    assert still_there(found) == []
    assert "Traceback" not in process.output()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="starts Spark: LLOG_SOAK=1")
@STACKS
def test_spark_joins_a_stack_that_is_up_and_ends_with_it(
    tmp_path: Path, java: None, arguments: tuple[str, ...]
) -> None:
    with LlogProcess("up", *arguments, settings=with_spark(tmp_path), log=tmp_path / "log") as stack:
        urls = stack.urls(1 + max(1, len(arguments)))
        assert {health(url)["spark"] for url in urls if is_broker(url)} == {"starting"}
        until_ready: Callable[[], bool] = lambda: all(health(url)["spark"] == "ready" for url in urls)  # noqa: E731
        stack.wait(until_ready, "be ready", READY_SECONDS)
        assert "Spark: ready" in stack.output()
        assert {health(url)["status"] for url in urls} == {"ok"}
        found = launched_by(stack)
        assert found
        assert stop(stack) < STOP_SECONDS
    assert still_there(found) == []
    assert "Traceback" not in stack.output()
