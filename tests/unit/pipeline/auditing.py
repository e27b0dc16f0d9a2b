"""What the tests of vacuum and audit share: a log in memory with objects of every kind, and clocks that are told."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from llog.formats.records import encode_records
from llog.formats.values import IndexEntry, decode_value, encode_value
from llog.log.append import Appended, Appender, EncodedGroup
from llog.log.cluster import join_cluster
from llog.log.compact import compact_once
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys, Log
from llog.log.merge import merge_once
from llog.pipeline.work import InProcessRunner, tools_of
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore

ORDERS, CLICKS = Log("orders", 0), Log("clicks", 3)
GRACE_MS: Final = 3_600_000
START_MS: Final = 1_800_000_000_000
_numbers = itertools.count()


class Stage:
    """Stores in memory whose clocks are one clock, which a test moves."""

    def __init__(self, *, atomic: bool = False, seed: int = 1) -> None:
        self.now_ms = START_MS
        url = f"memory://stage-{time.time_ns()}-{next(_numbers)}"
        self.objects = MemoryObjectStore(url, clock_ms=lambda: self.now_ms)
        self.metadata = MemoryStore(MemoryBacking(shards=1 if atomic else 4, atomic_groups=atomic, clock_ms=self.clock))
        self.rng = random.Random(seed)
        self.context = self.context_on(self.objects)

    def clock(self) -> int:
        return self.now_ms

    def context_on(self, objects: ObjectStore) -> LogContext:
        async def find(uri: str) -> tuple[ObjectStore, str]:
            return objects, objects.name_of(uri)

        async def no_sleep(_: float) -> None:
            return None

        return LogContext(
            metadata=self.metadata,
            wal=objects,
            segments=objects,
            find_object=find,
            now_ms=self.clock,
            random_bits=self.rng.getrandbits,
            sleep=no_sleep,
            keys=Keys(),
            options=LogOptions(vacuum_grace_ms=GRACE_MS),
        )

    @property
    def runner(self) -> InProcessRunner:
        return InProcessRunner(tools_of(self.context))

    def later(self, grace_share: float) -> None:
        self.now_ms += int(grace_share * GRACE_MS)

    # -- writing -------------------------------------------------------------------------------------------------------
    async def append(self, *logs: Log, records: int = 2, context: LogContext | None = None) -> str:
        """One blob with some records of each log; its URI."""
        appender = Appender(context or self.context)
        outcomes = await appender.append([group(log, records, self.rng) for log in logs])
        await appender.close()
        assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes
        [first, *_] = outcomes
        assert isinstance(first, Appended)
        return first.wal_uri

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
    values = [rng.randbytes(20) for _ in range(records)]
    return EncodedGroup(log, records, "kafka-v2", [encode_records(values, timestamps_ms=5)], 5, ())


def with_objects(stage: Stage, objects: ObjectStore) -> LogContext:
    """The stage's log, seen through another object store."""
    return stage.context_on(objects)


def at(stage: Stage, now_ms: Callable[[], int]) -> LogContext:
    return replace(stage.context, now_ms=now_ms)


Act = Callable[[], Awaitable[object]]
