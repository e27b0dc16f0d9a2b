"""Stores that say no, fall silent, or are away, at start and under load, and come back.

While it lasts the broker says so and answers everybody in bounded time; afterwards it is well by itself, everything
acknowledged is there, and it has not grown.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from llog.testing.proxy import TcpProxy
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, OxiaServer, S3Server, free_port
from tests.patience import PATIENCE_SECONDS
from tests.servers import started
from tests.system.broker_load import Load, check, read_logs
from tests.system.broker_process import LlogProcess, batch

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
FAULT_SECONDS: Final = 30.0 if SOAK else 3.0
ANSWER_SECONDS_MAX: Final = 60.0
"""A request that meets the fault: what a put is tried for, and its commit."""
REFUSAL_SECONDS_MAX: Final = 30.0
"""… and one that comes when the broker knows."""
NOTICE_SECONDS_MAX: Final = 60.0
RSS_GROWTH_MAX: Final = 200 * 1024 * 1024
pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(600)]
started_once = contextmanager(started)

_SLOW_DOWN: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message></Error>"
)


class S3Proxy(TcpProxy):
    """Beside what a TCP proxy does: `slow_down()` has every request answered with 503, until `heal`."""

    _says_no = False

    def slow_down(self) -> None:
        self._says_no = True
        self.cut()  # those that are open lead to the server

    def stall(self) -> None:
        self.stall_requests = self.stall_replies = True

    def heal(self) -> None:
        self._says_no = False
        super().heal()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if not self._says_no:
            await super()._serve(from_client, to_client)
            return
        try:
            head = await from_client.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            left = int(lengths[0].partition(b":")[2]) if lengths else 0
            while left > 0 and (chunk := await from_client.read(min(left, 65_536))):
                left -= len(chunk)
            to_client.write(
                b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(_SLOW_DOWN), _SLOW_DOWN)
            )
            await to_client.drain()
            to_client.close()
        except (OSError, asyncio.IncompleteReadError):
            to_client.transport.abort()


@pytest.fixture
def objects() -> Iterator[S3Server]:
    yield from started(Minio)


@asynccontextmanager
async def proxied(server: S3Server) -> AsyncIterator[S3Proxy]:
    async with S3Proxy("127.0.0.1", server.port) as proxy:
        try:
            yield proxy
        finally:
            proxy.heal()
            proxy.cut()


def settings_at(tmp_path: Path, bucket: str, s3_port: int, **more: str) -> dict[str, str]:
    return {
        "LLOG_METADATA_URL": f"lmdb://{tmp_path}/metadata",
        "LLOG_OBJECTS_URL": f"s3://{bucket}/log",
        "LLOG_S3_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}",
        "LLOG_S3_REGION_NAME": "us-east-1",
        "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
        "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        "LLOG_BATCH_MAX_DELAY_MS": "20ms",
        "LLOG_REQUEST_TIMEOUT_MS": "3s",
        "LLOG_HTTP_PORT": str(free_port()),
    } | more


class Watcher:
    """Asks a broker how it is, and how much memory it has."""

    def __init__(self, broker: LlogProcess, url: str) -> None:
        self._broker, self._url = broker, url
        self.client = httpx.AsyncClient(timeout=REFUSAL_SECONDS_MAX)
        self._process = psutil.Process(broker.child.pid)
        self.rss_max = self.rss()

    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    async def page(self, path: str) -> tuple[int, dict[str, Any]]:
        answer = await self.client.get(f"{self._url}{path}")
        return answer.status_code, answer.json()

    async def until(self, status: str, names: str = "") -> dict[str, Any]:
        """The health page once it shows `status`, with a reason that names the store; `/ready` must agree."""
        seconds = NOTICE_SECONDS_MAX
        began = time.monotonic()
        while True:
            try:
                code, answer = await self.page("/health")
                assert code == 200
                named = not names or any(names in reason for reason in answer.get("reasons", ()))
                if answer["status"] == status and named:
                    ready, page = await self.page("/ready")
                    if page["status"] == status:
                        assert ready == (200 if status == "ok" else 503), page
                        return answer
            except httpx.TransportError:  # it does not listen yet, or just changes over from starting
                answer = {}
            self._broker.wait(lambda: True, "run")
            assert self._broker.child.poll() is None, self._broker.output()
            assert time.monotonic() - began < seconds, f"not {status} within {seconds} s: {answer}"
            self.rss_max = max(self.rss_max, self.rss())
            await asyncio.sleep(0.1)

    async def refused(self) -> None:
        """A produce request is refused at once with Retry-After."""
        answer = await self.client.post(f"{self._url}/produce", json=batch("other", 0, ["no"]))
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"]

    async def lasts(self, seconds: float) -> None:
        """The trouble lasts, and every request meanwhile is answered with it."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await self.refused()
            self.rss_max = max(self.rss_max, self.rss())
            await asyncio.sleep(0.2)


async def fault_under_load(
    broker: LlogProcess, names: str, faults: Sequence[tuple[Callable[[], None], Callable[[], None]]]
) -> Load:
    """Each fault and its end, under load, with what must be seen meanwhile. `names`: the store, in the reasons."""
    load = Load(random.Random(1), producers=8, payload_bytes=2_000, timeout_seconds=ANSWER_SECONDS_MAX)
    url = await asyncio.to_thread(lambda: broker.url)
    watcher = Watcher(broker, url)
    idle_rss = watcher.rss()
    load.start(lambda: url)
    try:
        for begin, end in faults:
            await load.wait_acknowledged(50)
            begin()
            await watcher.until("degraded", names)
            await watcher.lasts(FAULT_SECONDS)
            end()
            assert "reasons" not in await watcher.until("ok")
            load.check_running()
        await load.wait_acknowledged(50)
        await load.stop()
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            check(load.fates, await read_logs(client, url, range(load.partitions)))
    finally:
        await load.abort()
        await watcher.client.aclose()
    grown = watcher.rss_max - idle_rss
    told_all = f"RSS +{grown / 1e6:.0f} MB, slowest answer {load.fates.slowest_seconds:.1f} s"
    print(f"{load.fates.acknowledged_count} acknowledged, {dict(load.fates.answers)}, {told_all}")
    assert grown < RSS_GROWTH_MAX, told_all
    return load


async def test_an_object_store_that_says_503_and_one_that_stalls_cost_no_acknowledged_record(
    tmp_path: Path, objects: S3Server
) -> None:
    async with proxied(objects) as proxy:
        settings = settings_at(tmp_path, objects.bucket, proxy.port)
        with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
            faults = [(proxy.slow_down, proxy.heal), (proxy.stall, proxy.heal)]
            load = await fault_under_load(broker, "the object store", faults)
            assert await asyncio.to_thread(broker.terminate) == 0, broker.output()
        # One that remembers nothing reads the same.
        with LlogProcess("broker", settings=settings, log=tmp_path / "log-2") as broker:
            url = await asyncio.to_thread(lambda: broker.url)
            async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
                check(load.fates, await read_logs(client, url, range(load.partitions)))


async def test_a_metadata_store_that_is_away_costs_no_acknowledged_record(tmp_path: Path, objects: S3Server) -> None:
    with started_once(lambda: OxiaServer(shards=2)) as oxia:
        address = f"oxia://{oxia.address}"
        settings = settings_at(tmp_path, objects.bucket, objects.port, LLOG_METADATA_URL=address)
        with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
            faults = [(oxia.process.kill, oxia.start), (oxia.process.pause, oxia.process.resume)]
            await fault_under_load(broker, "the metadata store", faults)


@pytest.mark.parametrize("fault", ["slow_down", "stall"])
async def test_a_broker_started_while_its_object_store_is_away_waits_and_says_for_what(
    tmp_path: Path, objects: S3Server, fault: str
) -> None:
    async with proxied(objects) as proxy:
        getattr(proxy, fault)()
        settings = settings_at(tmp_path, objects.bucket, proxy.port)
        url = f"http://127.0.0.1:{settings['LLOG_HTTP_PORT']}"
        with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
            watcher = Watcher(broker, url)
            deadline = time.monotonic() + NOTICE_SECONDS_MAX
            while True:
                answer = await watcher.until("starting")
                if f"s3://{objects.bucket}/log" in answer["reasons"][0]:
                    break
                assert time.monotonic() < deadline, answer
                await asyncio.sleep(0.1)
            await watcher.lasts(1.0)
            assert "waiting for a store" in broker.output()
            proxy.heal()
            await watcher.until("ok")
            assert await asyncio.to_thread(lambda: broker.url) == url
            landed = await watcher.client.post(f"{url}/produce", json=batch("orders", 0, ["alpha"]))
            assert landed.status_code == 200, landed.text
            await watcher.client.aclose()


async def test_a_broker_that_waits_for_its_store_stops_when_told(tmp_path: Path, objects: S3Server) -> None:
    async with proxied(objects) as proxy:
        proxy.stall()
        settings = settings_at(tmp_path, objects.bucket, proxy.port)
        with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
            watcher = Watcher(broker, f"http://127.0.0.1:{settings['LLOG_HTTP_PORT']}")
            await watcher.until("starting")
            assert await asyncio.to_thread(broker.terminate) == 0, broker.output()
            await watcher.client.aclose()


async def test_a_second_signal_stops_at_once_a_broker_with_a_silent_store(tmp_path: Path, objects: S3Server) -> None:
    async with proxied(objects) as proxy:
        settings = settings_at(tmp_path, objects.bucket, proxy.port, LLOG_REQUEST_TIMEOUT_MS="600s")
        with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
            url = await asyncio.to_thread(lambda: broker.url)
            async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
                body = batch("orders", 0, ["alpha"])
                assert (await client.post(f"{url}/produce", json=body)).status_code == 200
                proxy.stall()
                asked = asyncio.ensure_future(client.post(f"{url}/produce", json=body))
                await asyncio.sleep(0.5)
                broker.child.send_signal(signal.SIGTERM)
                await asyncio.to_thread(broker.wait_closed, url)
                await asyncio.sleep(1)
                assert broker.child.poll() is None, "it did not wait for what it had accepted"
                broker.child.send_signal(signal.SIGTERM)
                await asyncio.to_thread(broker.child.wait, PATIENCE_SECONDS)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
