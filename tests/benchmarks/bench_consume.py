"""Consuming from the tail cache, against decoding the same bytes and nothing else."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llog.broker.consume.consume import ConsumeRequest, ConsumeService, PartitionFetch
from llog.broker.produce.groups import CommittedBatch
from llog.broker.tail.cache import TailCache
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import BatchRule
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.benchmarks.harness import Duel, benchmark

FOREVER_MS = 1e12


class Silent:
    """Metrics that cost nothing."""

    def count(self, name: str, value: int = 1) -> None: ...
    def tail_cache_event(self, kind: str, count: int = 1) -> None: ...
    def set_tail_cache(self, byte_length: int, logs: int) -> None: ...
    def observe_append_to_consume(self, ms: float) -> None: ...
    def observe_consume(
        self, partitions: int, records: int, byte_length: int, wait_ms: float, source: str, payload_bytes: int = 0
    ) -> None: ...


def context_without_stores() -> LogContext:
    """A hit reads no store: metadata and objects are empty."""

    async def find(uri: str) -> tuple[ObjectStore, str]:
        raise AssertionError(f"asked for {uri}")

    metadata = MemoryStore(MemoryBacking(shards=1, atomic_groups=True))
    objects = MemoryObjectStore("memory://bench-consume")
    bits = random.Random(1).getrandbits
    return LogContext(metadata, objects, find, lambda: 0, bits, asyncio.sleep)


@asynccontextmanager
async def duel(
    partitions: int, records: int, record_bytes: int, requests: int, *, raw: bool = False
) -> AsyncIterator[Duel]:
    cache = TailCache(1 << 30, fresh_ms=FOREVER_MS)
    service = ConsumeService(context_without_stores(), cache, Silent(), refresh_ms=FOREVER_MS)
    bodies = []
    for partition in range(partitions):
        body = bytes(encode_records([os.urandom(record_bytes) for _ in range(records)], timestamps_ms=1))
        bodies.append(body)
        cache.add(CommittedBatch(Log("bench", partition), 1, records, "kafka-v2", [body], 1), incarnation=1)
    request = ConsumeRequest([PartitionFetch(Log("bench", p), 1) for p in range(partitions)], raw=raw)

    async def ours() -> None:
        for _ in range(requests):
            answers = await service.consume(request)
            if not raw:
                assert sum(len(run.columns) for answer in answers for run in answer.runs) == partitions * records

    def baseline() -> None:
        for _ in range(requests):
            found = [decode_records(body, "bench", rule=BatchRule.COMPACTED, verify=False) for body in bodies]
            assert sum(map(len, found)) == partitions * records

    yield Duel(ours, baseline, requests, "requests")
    await service.close()


@benchmark("consume_tail", against="decoding the same bytes (16 partitions, 200 records of 1 KiB each)", at_most=2.0)
@asynccontextmanager
async def consume_tail() -> AsyncIterator[Duel]:
    async with duel(16, 200, 1_024, 20) as prepared:
        yield prepared


@benchmark("consume_tail_small", against="decoding the same bytes (1 partition, 10 records of 100 bytes)", at_most=6.0)
@asynccontextmanager
async def consume_tail_small() -> AsyncIterator[Duel]:
    """What a request costs besides its records."""
    async with duel(1, 10, 100, 2_000) as prepared:
        yield prepared


@benchmark("consume_tail_raw", against="decoding the same bytes; raw batches are handed out as they are", at_most=0.5)
@asynccontextmanager
async def consume_tail_raw() -> AsyncIterator[Duel]:
    async with duel(16, 200, 1_024, 200, raw=True) as prepared:
        yield prepared


@benchmark(
    "consume_tail_first", against="copying the same bytes once (16 partitions, 16 batches of 64 KiB each)", at_most=2.0
)
@asynccontextmanager
async def consume_tail_first() -> AsyncIterator[Duel]:
    """The first read of cached appends touches their headers only, so it costs about as much as the fastest copy."""
    partitions, batches, records = 16, 16, 64
    count, logs = batches * records, [Log("bench", partition) for partition in range(16)]
    body = bytes(encode_records([os.urandom(1_024)] * records, timestamps_ms=1))
    bodies = [[bytearray(body) for _ in range(batches)] for _ in range(partitions)]
    request = ConsumeRequest([PartitionFetch(log, 1) for log in logs], raw=True)
    size = partitions * batches * len(body)
    services = []

    async def ours() -> None:
        cache = TailCache(1 << 30, fresh_ms=FOREVER_MS)
        for log, own in zip(logs, bodies, strict=True):
            cache.add(CommittedBatch(log, 1, count, "kafka-v2", own, 1), incarnation=1)
        services.append(ConsumeService(context_without_stores(), cache, Silent(), refresh_ms=FOREVER_MS))
        answers = await services[-1].consume(request)
        assert sum(len(data) for answer in answers for data in answer.batches) == size

    def baseline() -> None:
        assert sum(len(bytearray().join(own)) for own in bodies) == size

    yield Duel(ours, baseline, size / 1e6, "MB")
    for service in services:
        await service.close()
