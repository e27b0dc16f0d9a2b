"""The servers that HTTP benchmarks measure: processes of their own, on stores in a directory that is gone then."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from tests.benchmarks.http_load import cpu_seconds
from tests.system.broker_process import LlogProcess, environment

_BROKER: Final = re.compile(r"^broker \S+ \(\w+\) at (http://[^/\s]+)", re.MULTILINE)
VACUUM_SECONDS: Final = 0.05
BLOBS_KEPT: Final = 8
"""More than are being uploaded at the same time."""
SETTINGS: Final = {
    # Full after a second, so that what is measured is not the growth of a cache.
    "LLOG_TAIL_CACHE_MAX_BYTES": "64MiB",
    "LLOG_AUTO_PARTITIONS_MAX": "10000",
    # Nobody else in the measured process.
    "LLOG_COMPACTOR_IDLE_SLEEP_MS": "1h",
}


class Server:
    def __init__(self, urls: list[str], pid: int, directory: Path) -> None:
        self.urls, self.pid, self.directory = urls, pid, directory

    def cpu_seconds(self) -> float:
        return cpu_seconds([self.pid])

    def tidy(self, keep: int = 0) -> None:
        """Blobs are removed, all but the newest `keep`: their names are in the order of their making."""
        for blobs in self.directory.glob("**/wal-shared"):
            names = sorted(os.listdir(blobs))
            for name in names[: len(names) - keep]:
                os.unlink(blobs / name)

    @asynccontextmanager
    async def vacuumed(self) -> AsyncIterator[None]:
        """Blobs are removed soon after they were made. In a virtual machine a page that was never touched costs several
        times what is written to it (2.6 to 3.9 CPU-s per GB were seen, and 0.4 to 0.5 on pages used before), so a disk
        that only fills up would measure the machine."""

        async def vacuum() -> None:
            while True:
                await asyncio.sleep(VACUUM_SECONDS)
                self.tidy(BLOBS_KEPT)

        working = asyncio.create_task(vacuum())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


@contextmanager
def llog_server(*arguments: str, brokers: int = 1) -> Iterator[Server]:
    """`llog broker` or `llog up`, once it listens."""
    with tempfile.TemporaryDirectory(prefix="llog-bench-") as name:
        directory = Path(name)
        settings = {"LLOG_DATA_DIR": str(directory / "data")} | SETTINGS
        with LlogProcess(*arguments, settings=settings, log=directory / "log") as process:
            process.wait(
                lambda: process.child.poll() is not None or len(_BROKER.findall(process.output())) >= brokers, "listen"
            )
            urls = _BROKER.findall(process.output())
            assert len(urls) == brokers, process.output()
            yield Server(urls, process.child.pid, directory / "data")


class WatchedServer(Server):
    def __init__(self, url: str, child: subprocess.Popen[str], directory: Path) -> None:
        super().__init__([url], child.pid, directory)
        self._child = child

    def held(self) -> Mapping[str, float]:
        """How long its loop was held at worst since the last call (`watched_broker`)."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        answer: dict[str, float] = json.loads(self._child.stdout.readline())
        return answer


@contextmanager
def watched_server(settings: Mapping[str, str] | None = None) -> Iterator[WatchedServer]:
    with tempfile.TemporaryDirectory(prefix="llog-bench-") as name:
        directory = Path(name, "data")
        ours = {"LLOG_DATA_DIR": str(directory)} | SETTINGS | dict(settings or {})
        with _module("tests.benchmarks.watched_broker", ours) as child:
            assert child.stdout is not None
            yield WatchedServer(child.stdout.readline().strip(), child, directory)


@contextmanager
def baseline_server() -> Iterator[Server]:
    with _module("tests.benchmarks.baseline_server", {}) as child:
        assert child.stdout is not None
        yield Server([child.stdout.readline().strip()], child.pid, Path("/nonexistent"))


@contextmanager
def _module(name: str, settings: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", name],
        env=environment(settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.terminate()
        try:
            child.wait(10.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
