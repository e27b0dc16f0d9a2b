"""What the tests of vacuum and audit share: a memory log with objects of every kind, and a clock that a test moves."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import msgspec

from llog.formats.values import (
    IndexEntry,
    Value,
    decode_value,
    encode_value,
)
from llog.log.append.append import EncodedGroup
from llog.log.cluster import join_cluster
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Log
from llog.pipeline.audit.job import audit
from llog.pipeline.audit.report import AuditReport
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import Key
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contexts import hurry, log_context
from tests.filling import append, group_of

ORDERS, CLICKS = Log("orders", 0), Log("clicks", 3)
GRACE_MS: Final = 3_600_000
START_MS: Final = 1_800_000_000_000
_numbers = itertools.count()


class Stage:
    """Memory stores that share one clock, which a test moves."""

    def __init__(self, *, atomic: bool = False, seed: int = 1) -> None:
        self.now_ms = START_MS
        # Of one length: objects name others by their URI, and two stages that do the same have objects of one size.
        url = f"memory://stage-{time.time_ns()}-{next(_numbers):06}"
        self.objects = MemoryObjectStore(url, clock_ms=lambda: self.now_ms)
        self.metadata = MemoryStore(MemoryBacking(shards=1 if atomic else 4, atomic_groups=atomic, clock_ms=self.clock))
        self.rng = random.Random(seed)
        self.context = self.context_on(self.objects)

    def clock(self) -> int:
        return self.now_ms

    def context_on(self, objects: ObjectStore) -> LogContext:
        options = LogOptions(vacuum_grace_ms=GRACE_MS)
        context = log_context(self.metadata, objects, now_ms=self.clock, sleep=hurry, options=options)
        return replace(context, random_bits=self.rng.getrandbits)

    @property
    def runner(self) -> LocalTasks:
        return LocalTasks(tools_of(self.context))

    def later(self, grace_share: float) -> None:
        self.now_ms += int(grace_share * GRACE_MS)

    # -- writing -------------------------------------------------------------------------------------------------------
    async def append(self, *logs: Log, records: int = 2, context: LogContext | None = None) -> str:
        """One blob with some records of each log; its URI."""
        landed = await append(context or self.context, [group(log, records, self.rng) for log in logs])
        return landed[0].wal_uri

    async def fill(self) -> None:
        """Orders: a merged segment of 1-8, one of 9-12, and 13-16 in blobs that clicks share."""
        await join_cluster(self.context)
        for _ in range(8):
            await self.append(ORDERS, CLICKS)
            self.now_ms += 10
        for _ in range(2):
            assert await compact_once(self.context, ORDERS, max_offsets=4) is not None
        assert await merge_once(self.context, ORDERS) is not None
        assert await compact_once(self.context, ORDERS, max_offsets=4) is not None
        self.now_ms += 10

    # -- planting ------------------------------------------------------------------------------------------------------
    async def entry(self, log: Log, end: int) -> IndexEntry:
        key = self.context.keys.index_entry(log, end)
        found = await self.metadata.get(key)
        assert found is not None
        return decode_value(IndexEntry, found.value, key.path)

    async def change_entry(self, log: Log, end: int, change: Callable[[IndexEntry], IndexEntry]) -> None:
        changed = change(await self.entry(log, end))
        await self.metadata.put(self.context.keys.index_entry(log, end), encode_value(changed))

    async def bytes_of(self, uri: str) -> bytes:
        return bytes(await self.objects.get(self.objects.name_of(uri)))

    async def change_object(self, uri: str, change: Callable[[bytearray], bytes | bytearray]) -> None:
        changed = change(bytearray(await self.bytes_of(uri)))
        await self.objects.put(self.objects.name_of(uri), [bytes(changed)])


def group(log: Log, records: int, rng: random.Random) -> EncodedGroup:
    return group_of(log, [rng.randbytes(20) for _ in range(records)], stamps_ms=5)


async def audited(stage: Stage, **options: Any) -> AuditReport:
    return await audit(stage.context, stage.runner, **options)


def found(report: AuditReport) -> list[tuple[str, str, int, int]]:
    return [(f.kind, f.log, f.start_offset, f.end_offset) for f in report.findings]


async def change_value(stage: Stage, key: Key, kind: type[Value], **fields: Any) -> None:
    record = await stage.metadata.get(key)
    assert record is not None
    changed = msgspec.structs.replace(decode_value(kind, record.value, key.path), **fields)
    await stage.metadata.put(key, encode_value(changed))


async def filled() -> Stage:
    stage = Stage()
    await stage.fill()
    return stage
