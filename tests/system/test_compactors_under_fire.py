"""Three compactors on servers that are lost in the middle: whoever is killed or sleeps through it, nothing acknowledged
is lost, nothing is done twice or stays undone, and the pages and logs say what happened."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from llog.api.aio import AsyncLeaderlessLogReader, AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.errors import LlogError
from llog.log.context import LogContext
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.pipeline.audit.job import audit
from llog.pipeline.runtime.log_choice import holder
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.pipeline.vacuum.job import vacuum_here
from llog.settings import Settings
from llog.testing.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Minio,
    OxiaServer,
    PostgresServer,
    S3Server,
    Server,
    ServerProcess,
    VersityGateway,
)
from tests.patience import PATIENCE_SECONDS, until
from tests.servers import started
from tests.system.broker_process import LlogProcess
from tests.system.test_compactor_service import all_compacted
from tests.unit.pipeline.compact.compact_stage import entries_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.skipif(os.environ.get("LLOG_SOAK") != "1", reason="three services for a minute: LLOG_SOAK=1"),
]
ORDERS: Final = [Log("orders", number) for number in range(4)]
AGES, PRICES = Log("ages", 0), Log("prices", 0)
LOGS: Final = [*ORDERS, AGES, PRICES]
KEYS: Final = 20
SESSION_MS: Final = 4_000
GRACE_MS: Final = 15_000
"""Of vacuum: longer than anybody is made to sleep here."""
KEPT_MS: Final = 10_000
SILENT_SECONDS: Final = 7.0
"""Of a service or a server that sleeps: longer than a session."""
STORES: Final = {"oxia and minio": (OxiaServer, Minio), "postgresql and versitygw": (PostgresServer, VersityGateway)}


class Hasty(LlogProcess):
    def __init__(self, *arguments: str, settings: dict[str, str], log: Path) -> None:
        super().__init__(*arguments, settings=settings, log=log, module="tests.system.hasty_llog")


class Books:
    """What was acknowledged."""

    def __init__(self) -> None:
        self.records: dict[Log, dict[int, str]] = {log: {} for log in LOGS}
        self.keys: dict[int, bytes] = {}
        """Of the records of `PRICES`, by offset."""

    async def write(self, writer: AsyncLeaderlessLogWriter, number: int) -> None:
        key = b"k%d" % (number % KEYS)
        groups = [SharedAppendGroup(*log, [f"{log} {number}.{n}" for n in range(3)], keys=[key] * 3) for log in LOGS]
        try:
            results: list[Any] = list(await writer.append_shared(groups))
        except LlogError as error:
            results = getattr(error, "outcomes", [])
        for group, result in zip(groups, results, strict=False):
            if not isinstance(result, Exception):
                landed = {result.start_offset + n: str(payload) for n, payload in enumerate(group.payloads)}
                self.records[group.log] |= landed
                self.keys |= dict.fromkeys(landed, key) if group.log == PRICES else {}


@asynccontextmanager
async def always_writing(writer: AsyncLeaderlessLogWriter, books: Books) -> Any:
    async def write() -> None:
        number = 0
        while True:
            await books.write(writer, number)
            number += 1
            await asyncio.sleep(0.1)

    writing = asyncio.create_task(write())
    try:
        yield
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing


@contextmanager
def servers(kind: str) -> Iterator[tuple[Server, dict[str, str]]]:
    make_metadata, make_objects = STORES[kind]
    with contextmanager(started)(make_metadata) as metadata, contextmanager(started)(make_objects) as objects:
        assert isinstance(objects, S3Server)
        url = metadata.url if isinstance(metadata, PostgresServer) else f"oxia://{metadata.address}"
        yield (
            metadata,
            {
                "LLOG_METADATA_URL": url,
                "LLOG_OBJECTS_URL": f"s3://{objects.bucket}",
                "LLOG_S3_ENDPOINT_URL": objects.endpoint,
                "LLOG_S3_REGION_NAME": "us-east-1",
                "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
                "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
                "LLOG_SESSION_TIMEOUT_MS": str(SESSION_MS),
                "LLOG_VACUUM_GRACE_MS": str(GRACE_MS),
                "LLOG_REQUEST_TIMEOUT_MS": "3000",
                "LLOG_COMPACTOR_MIN_AGE_MS": "0",
                "LLOG_COMPACTOR_DISCOVERY_INTERVAL_MS": "500",
                "LLOG_COMPACTOR_IDLE_SLEEP_MS": "100",
                "LLOG_COMPACTOR_IDLE_JITTER_MS": "50",
                "LLOG_COMPACTOR_ERROR_SLEEP_MS": "300",
                "LLOG_COMPACTOR_TRIGGER_AGE_MS": "200",
            },
        )


async def settles(what: str, ready: Callable[[], Awaitable[bool]]) -> None:
    await until(ready, what, seconds=2 * PATIENCE_SECONDS, pause_seconds=0.2)


async def is_well(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        return (await http.get("/ready")).status_code == 200


def main_process(server: Server) -> ServerProcess:
    process = server.process  # type: ignore[attr-defined]
    assert isinstance(process, ServerProcess)
    return process


async def sleep_through(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(SILENT_SECONDS)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", STORES)
async def test_nothing_is_lost_stuck_or_done_twice(tmp_path: Path, kind: str) -> None:
    with servers(kind) as (metadata, environ), ExitStack() as running:
        names = iter(range(99))

        def service() -> Hasty:
            name = f"c{next(names)}"
            settings = environ | {"LLOG_COMPACTOR_ID": name}
            return running.enter_context(Hasty("compactor", settings=settings, log=tmp_path / f"{name}.log"))

        async with await AsyncLeaderlessLogWriter.open(Settings.from_env(environ)) as writer:
            context, books = writer.context, Books()
            await create_topic(context, "orders", partitions=len(ORDERS))
            await create_topic(context, "ages", partitions=1, config={"retention.ms": str(KEPT_MS)})
            by_key = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
            await create_topic(context, "prices", partitions=1, config=by_key)
            await books.write(writer, 0)
            services = [service() for _ in range(3)]
            for one in services:
                assert one.url
            async with always_writing(writer, books):
                await asyncio.sleep(5)
                services[0].kill()
                services[0] = service()
                await sleep_through(services[1].child.pid)
                main_process(metadata).kill()
                await asyncio.sleep(3)
                metadata.start()
                await asyncio.sleep(8)
                # PostgreSQL's connections are processes of their own: the one that accepts is enough.
                await sleep_through(main_process(metadata).pid)
                services[2].kill()
                services[2] = service()
                await asyncio.sleep(10)
            await settled(context, services)
            for one in services:
                assert one.terminate() == 0, one.output()
            await judge(context, environ, books)
    check_words(tmp_path)


def check_words(directory: Path) -> None:
    """What is foreseen is told in sentences."""
    for log in directory.glob("*.log"):
        text = log.read_text()
        assert "Traceback" not in text, text


async def settled(context: LogContext, services: list[Hasty]) -> None:
    await settles("everything compacted", lambda: all_compacted(context, LOGS))
    for one in services:
        await settles(f"{one.log}: well again", lambda one=one: is_well(one.url))  # type: ignore[misc]

    async def cleaned() -> bool:
        entries = await entries_of(context, PRICES)
        return sum(entry.value.record_count or 0 for entry in entries) <= KEYS + 5

    await settles("compacted by key", cleaned)


async def judge(context: LogContext, environ: dict[str, str], books: Books) -> None:
    async with await AsyncLeaderlessLogReader.open(Settings.from_env(environ)) as reader:
        for log in LOGS:
            assert await holder(context, log) is None, "a claim is left"
            found = await check_log(context, log, deep=True)
            assert (found.settled, found.faults) == (True, ()), (log, found.faults)
            start = await reader.log_start_offset(*log)
            read = {record.offset: record async for record in reader.iter_from(*log, start)}
            wanted = books.records[log]
            if log == AGES:
                assert start > 1, "retention did nothing"
                wanted = {offset: payload for offset, payload in wanted.items() if offset >= start}
            if log == PRICES:
                newest = {record.key: record.offset for record in read.values()}
                latest = {books.keys[offset]: offset for offset in sorted(wanted)}
                assert {key for key, offset in latest.items() if newest.get(key, 0) < offset} == set()
                wanted = {offset: payload for offset, payload in wanted.items() if offset in newest.values()}
            lost = {offset: payload for offset, payload in wanted.items() if offset not in read}
            assert not lost, (log, lost)
            assert {offset: read[offset].payload for offset in wanted} == {
                offset: payload.encode() for offset, payload in wanted.items()
            }
    found_all = await audit(context, LocalTasks(tools_of(context)))
    assert found_all.clean, found_all
    for _ in range(2):  # segments are marked first, and go a grace later
        await asyncio.sleep(GRACE_MS / 1_000 + 2)
        await vacuum_here(context)
    last = await audit(context, LocalTasks(tools_of(context)))
    assert last.clean, last
    assert last.findings == [], last.findings
