"""Batching on the embedded stores (LMDB, a directory): what many small requests cost against few large ones.

PRODUCERS connections send groups of 64 KiB, each with several requests in flight, as Kafka clients do; together they
fill flushes of 8 MiB. The baseline appends flushes of 8 MiB that were built beforehand, as many at a time as the
producer uploads: the same bytes, the same stores, no batching. A request costs some 40 µs of the event loop's time,
which the disk does not wait for as long as the loop has a core of its own; the bar only catches a fall.

A request of a single small record on a quiet broker shows the other side: what batching adds to the latency of a bare
append, which should be about the moment it waits for company.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import BATCH_UPLOADS_MAX, BatchingProducer
from llog.limits import KIB, MIB
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.keys import Log
from llog.log.metrics import NoMetrics
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.objects import file
from llog.stores.objects.port import checked
from tests.benchmarks.bench_log_append import at_a_time
from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.log_setup import append_all, group, is_trial, record_batch
from tests.contexts import log_context

PRODUCERS = 8
LOGS = 8
IN_FLIGHT = 128
"""Requests of one connection: 8 MiB. All of them together fill the flushes that are uploaded, and the next ones."""
RECORDS = 64
GROUP_BYTES = 64 * KIB
FLUSH_BYTES = 8 * MIB
FLUSHES = 16
LONE_REQUESTS = 100


class Quiet(NoMetrics):
    def observe_flush(
        self,
        reason: str,
        groups: int,
        records: int,
        byte_length: int,
        queue_wait_ms: float,
        upload_ms: float,
        commit_ms: float,
    ) -> None:
        pass

    def observe_appends(
        self, groups: int, records: int, byte_length: int, failures: Mapping[str, int], payload_bytes: int = 0
    ) -> None:
        pass

    def set_buffered(self, byte_length: int, requests: int) -> None:
        pass


@asynccontextmanager
async def embedded(directory: str) -> AsyncIterator[tuple[Appender, BatchingProducer]]:
    async with (
        await LmdbStore.open(Path(directory, "metadata")) as metadata,
        await checked(await file.open_from_url(f"file://{directory}/objects")) as objects,
    ):
        appender = Appender(log_context(metadata, objects))
        producer = BatchingProducer(
            appender,
            max_bytes=FLUSH_BYTES,
            max_delay_ms=10,
            pool=MemoryPool(512 * MIB),
            metrics=Quiet(),
            now_ms=lambda: time.monotonic_ns() / 1e6,
            sleep=asyncio.sleep,
        )
        yield appender, producer
        await producer.close()
        await appender.close()


def tidy(directory: str) -> None:
    blobs = Path(directory, "objects", "llog", "wal-shared")
    for name in os.listdir(blobs):
        os.unlink(blobs / name)


async def produce(producer: BatchingProducer, groups: Iterator[EncodedGroup], in_flight: int) -> None:
    """One connection: so many requests under way, each answer makes room for the next."""

    async def work() -> None:
        for one in groups:
            [outcome] = await producer.append([one])
            assert isinstance(outcome, Appended), outcome

    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(work())


def small_groups() -> list[EncodedGroup]:
    """One per log, 64 KiB with its head."""
    batches = [record_batch(RECORDS, GROUP_BYTES // RECORDS - 9) for _ in range(LOGS)]
    return [group(Log("orders", i), batch, RECORDS) for i, batch in enumerate(batches)]


@asynccontextmanager
async def throughput() -> AsyncIterator[Duel]:
    flushes = 2 if is_trial() else FLUSHES
    small, requests = small_groups(), flushes * FLUSH_BYTES // GROUP_BYTES
    large = [group(Log("orders", i), record_batch(1_024, MIB // 1_024 - 9), 1_024) for i in range(LOGS)]
    with tempfile.TemporaryDirectory(prefix="llog-bench-") as directory:
        async with embedded(directory) as (appender, producer):

            async def ours() -> None:
                per_connection = requests // PRODUCERS
                async with asyncio.TaskGroup() as tasks:
                    for connection in range(PRODUCERS):
                        mine = (small[(connection + i) % LOGS] for i in range(per_connection))
                        tasks.create_task(produce(producer, mine, IN_FLIGHT))

            async def baseline() -> None:
                await at_a_time(BATCH_UPLOADS_MAX, flushes, lambda: append_all(appender, large))

            yield Duel(ours, baseline, flushes * FLUSH_BYTES / 1e6, "MB", after_each=lambda: tidy(directory))


@asynccontextmanager
async def lone_requests() -> AsyncIterator[Duel]:
    count = 5 if is_trial() else LONE_REQUESTS
    one = group(Log("orders", 0), record_batch(1, 100), 1)
    with tempfile.TemporaryDirectory(prefix="llog-bench-") as directory:
        async with embedded(directory) as (appender, producer):

            async def ours() -> None:
                await produce(producer, itertools.repeat(one, count), 1)

            async def baseline() -> None:
                for _ in range(count):
                    await append_all(appender, [one])

            yield Duel(ours, baseline, count, "requests", after_each=lambda: tidy(directory))


@benchmark(
    "batching_throughput",
    against="appends of 8 MiB flushes built beforehand",
    at_least=0.5,
    rounds=15,
    goal="0.8 where a core is free for the event loop",
)
def many_small_requests() -> AbstractAsyncContextManager[Duel]:
    return throughput()


@benchmark("batching_lone_request", against="bare appends of one small group", at_most=3.0, rounds=9)
def one_at_a_time() -> AbstractAsyncContextManager[Duel]:
    return lone_requests()
