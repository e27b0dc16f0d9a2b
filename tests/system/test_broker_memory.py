"""However hard a broker is pressed, its memory stays within what was configured.

The bound is idle memory, the pools that the load can fill, and 200 MB. Memory is the process's own high-water mark
(`VmHWM`), which the kernel keeps, so no peak falls between two samples.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from llog.broker.consume.store_read import CONSUME_BYTES_IN_FLIGHT_MAX
from llog.broker.tail.batches import READ_AHEAD_BYTES_MAX
from llog.http.json.decode import HTTP_BODY_STRINGS_MAX
from llog.http.json.plain_scan import HTTP_SCAN_ROWS_MAX
from llog.http.routes.runtime import HTTP_ANSWERS_BYTES_MAX
from llog.limits import MIB
from llog.testing.proxy import CHUNK_BYTES, TcpProxy
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, S3Server
from tests.servers import started
from tests.system.broker_process import LlogProcess

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
PRESS_SECONDS: Final = 30.0 if SOAK else 6.0
SLACK_BYTES: Final = 200_000_000
BUFFER_BYTES: Final = 32 * MIB
TAIL_BYTES: Final = 64 * MIB
STORE_BYTES_PER_SECOND: Final = 8 * MIB
TOPIC: Final = "pressed"
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.server, pytest.mark.timeout(600)]


class SlowProxy(TcpProxy):
    """What clients send passes at a rate, over all connections."""

    def __init__(self, target_host: str, target_port: int, bytes_per_second: float) -> None:
        super().__init__(target_host, target_port)
        self._seconds_per_chunk = CHUNK_BYTES / bytes_per_second
        self._turn = asyncio.Lock()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        replies: bool,
    ) -> None:
        if replies:
            await super()._pump(source, target, client, replies=True)
            return
        try:
            while chunk := await source.read(CHUNK_BYTES):
                async with self._turn:
                    await asyncio.sleep(self._seconds_per_chunk * len(chunk) / CHUNK_BYTES)
                target.write(chunk)
                await target.drain()
            target.write_eof()
        except OSError:
            target.transport.abort()


@pytest.fixture
def objects() -> Iterator[S3Server]:
    yield from started(Minio)


class Pressed:
    """A broker on a slow store, and clients without manners."""

    def __init__(self, broker: LlogProcess, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self._broker, self._host, self._port = broker, address.hostname, address.port
        self.statuses: Counter[int] = Counter()
        self.idle_bytes = 0

    # -- memory -------------------------------------------------------------------------------------------------------
    def _kib(self, name: str) -> int:
        lines = Path(f"/proc/{self._broker.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

    def peak_bytes(self) -> int:
        assert self._broker.child.poll() is None, self._broker.output()[-3_000:]
        return self._kib("VmHWM") * 1_024

    async def settle(self) -> None:
        """Memory after doing everything once, without load."""
        for _ in range(3):
            assert await self.post("/produce", produce_body(100, 1_000, 0)) == 200
            assert await self.post("/consume", consume_body(4 * MIB)) == 200
        self.idle_bytes = self._kib("VmRSS") * 1_024

    def check_within(self, pools_bytes: int, what: str) -> None:
        peak = self.peak_bytes()
        allowed = self.idle_bytes + pools_bytes + SLACK_BYTES
        answer = (
            f"{what}: peak {peak / 1e6:.0f} MB, idle {self.idle_bytes / 1e6:.0f} MB, pools {pools_bytes / 1e6:.0f} MB,"
            f" allowed {allowed / 1e6:.0f} MB; answers {dict(self.statuses)}"
        )
        print(answer)
        assert peak <= allowed, answer

    # -- clients ------------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=64 * 1_024)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def post(self, path: str, body: bytes) -> int:
        """The status; the answer is read and thrown away."""
        async with self.connected() as (reader, writer):
            return await _exchange(reader, writer, path, body)

    async def press(self, path: str, bodies: list[bytes], connections: int, seconds: float) -> None:
        """Request after request on many connections; a refusal is answered by trying again at once."""
        ends = time.monotonic() + seconds

        async def one(number: int) -> None:
            turn = number
            while time.monotonic() < ends:
                try:
                    async with self.connected() as (reader, writer):
                        while time.monotonic() < ends:
                            status = await _exchange(reader, writer, path, bodies[turn % len(bodies)])
                            self.statuses[status] += 1
                            turn += 1
                except (OSError, asyncio.IncompleteReadError, ValueError):
                    self.statuses[0] += 1  # the connection was closed, as it may be
                    await asyncio.sleep(0.05)

        await asyncio.gather(*map(one, range(connections)))


def head_of(path: str, length: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        path.encode(),
        length,
    )


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> int:
    writer.write(head_of(path, len(body)))
    writer.write(body)
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    left = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
    while left > 0:
        chunk = await reader.read(min(left, 1 << 20))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(chunk)
    return int(lines[0].split()[1])


def produce_body(records: int, record_bytes: int, partition: int) -> bytes:
    asked: dict[str, Any] = {"topic": TOPIC, "partition": partition, "records": ["x" * record_bytes] * records}
    return json.dumps({"topic_partitions": [asked]}, separators=(",", ":")).encode()


def consume_body(max_bytes: int, partition: int = 0) -> bytes:
    asked = {"topic": TOPIC, "partition": partition, "fetch_offset": 1, "partition_max_bytes": max_bytes}
    return json.dumps({"topic_partitions": [asked], "max_bytes": max_bytes}).encode()


@asynccontextmanager
async def pressed(tmp_path: Path, objects: S3Server) -> AsyncIterator[Pressed]:
    async with SlowProxy("127.0.0.1", objects.port, STORE_BYTES_PER_SECOND) as proxy:
        settings = {
            "LLOG_METADATA_URL": f"lmdb://{tmp_path}/metadata",
            "LLOG_OBJECTS_URL": f"s3://{objects.bucket}/log",
            "LLOG_S3_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "LLOG_S3_REGION_NAME": "us-east-1",
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
            "LLOG_BATCH_MAX_BYTES": "4mib",
            "LLOG_BATCH_MAX_DELAY_MS": "20ms",
            "LLOG_BATCH_MAX_BUFFER_BYTES": str(BUFFER_BYTES),
            "LLOG_TAIL_CACHE_MAX_BYTES": str(TAIL_BYTES),
        }
        with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
            run = Pressed(broker, await asyncio.to_thread(lambda: broker.url))
            await run.settle()
            yield run


async def test_producers_faster_than_the_store_meet_refusals_and_not_memory(tmp_path: Path, objects: S3Server) -> None:
    async with pressed(tmp_path, objects) as run:
        bodies = [produce_body(1_000, 1_000, partition) for partition in range(8)]
        await run.press("/produce", bodies, 64, PRESS_SECONDS)
        assert run.statuses[200] > 0, run.statuses
        assert run.statuses[503] > 0, run.statuses
        run.check_within(BUFFER_BYTES + TAIL_BYTES, "64 connections, bodies of 1 MB")


async def test_bodies_of_very_many_tiny_records_stay_within_bounds(tmp_path: Path, objects: S3Server) -> None:
    async with pressed(tmp_path, objects) as run:
        plain = produce_body(HTTP_SCAN_ROWS_MAX - 10, 2, 0)
        # With an escape in it, a record is decoded to be encoded again.
        few = produce_body(HTTP_BODY_STRINGS_MAX - 10, 1, 0).replace(b'"x"', b'"\\n"')
        many = produce_body(4_000_000, 1, 0).replace(b'"x"', b'"\\n"')
        assert await run.post("/produce", produce_body(HTTP_SCAN_ROWS_MAX + 10, 2, 0)) == 400
        assert await run.post("/produce", many) == 400
        assert await run.post("/produce", few) == 200
        await run.press("/produce", [plain, few, many], 8, PRESS_SECONDS)
        assert run.statuses[200] > 0, run.statuses
        run.check_within(BUFFER_BYTES + TAIL_BYTES, "8 connections, bodies of up to 4 million records")


async def test_clients_that_send_slowly_hold_no_more_than_the_pool(tmp_path: Path, objects: S3Server) -> None:
    async with pressed(tmp_path, objects) as run:
        body = produce_body(8_000, 1_000, 0)

        async def dribble() -> None:
            try:
                async with run.connected() as (_, writer):
                    writer.write(head_of("/produce", len(body)) + body[: len(body) // 2])
                    for begin in range(len(body) // 2, len(body), 1_000):
                        writer.write(body[begin : begin + 1_000])
                        await asyncio.sleep(0.1)
            except OSError:
                run.statuses[0] += 1

        tasks = [asyncio.create_task(dribble()) for _ in range(200)]
        await asyncio.sleep(PRESS_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        run.check_within(BUFFER_BYTES + TAIL_BYTES, "200 connections, bodies of 8 MB that never end")
        assert await run.post("/produce", produce_body(100, 1_000, 0)) == 200, "what they held was not given back"


@pytest.mark.parametrize("record_bytes", [1_000, 4] if os.environ.get("LLOG_SOAK") == "1" else [4])
async def test_consumers_of_large_answers_share_a_bound(tmp_path: Path, objects: S3Server, record_bytes: int) -> None:
    async with pressed(tmp_path, objects) as run:
        each = 4_000_000
        for _ in range(10):
            assert await run.post("/produce", produce_body(each // (record_bytes + 12), record_bytes, 0)) == 200
        await run.press("/consume", [consume_body(64 * MIB)], 24, PRESS_SECONDS)
        assert run.statuses[200] > 0, run.statuses
        pools = BUFFER_BYTES + TAIL_BYTES + READ_AHEAD_BYTES_MAX + CONSUME_BYTES_IN_FLIGHT_MAX + HTTP_ANSWERS_BYTES_MAX
        run.check_within(pools, f"24 connections, answers of 40 MB with records of {record_bytes} bytes")


async def test_consumers_that_do_not_take_their_answers_share_a_bound(tmp_path: Path, objects: S3Server) -> None:
    async with pressed(tmp_path, objects) as run:
        for _ in range(10):
            assert await run.post("/produce", produce_body(4_000, 1_000, 0)) == 200
        asked = consume_body(64 * MIB)

        async def ask() -> None:
            async with run.connected() as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(head_of("/consume", len(asked)) + asked)
                await asyncio.sleep(PRESS_SECONDS)

        await asyncio.gather(*(ask() for _ in range(100)))
        pools = BUFFER_BYTES + TAIL_BYTES + READ_AHEAD_BYTES_MAX + CONSUME_BYTES_IN_FLIGHT_MAX + HTTP_ANSWERS_BYTES_MAX
        run.check_within(pools, "100 connections that do not read answers of 40 MB")
        assert await run.post("/consume", consume_body(4 * MIB)) == 200, "what they held was not given back"
