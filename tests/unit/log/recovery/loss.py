"""A small cluster, driven by a seed, that is backed up, continues, and loses its metadata, to test restore and
recovery. A process is killed by letting its metadata store answer no more calls.

    orders, 0 and 1    plain
    prices             compacted by key
    late               created after the backup

Objects that no log references at the time of the loss may be gone: vacuum may have deleted all or some of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.cluster import join_cluster
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.index import entry_of
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.records import LogRecord
from llog.log.read.view import view
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_places import BackupObjects
from llog.log.topics.admin import create_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompactOptions, key_compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.log_suite import context_on

PLAIN = [Log("orders", 0), Log("orders", 1)]
PRICES, LATE = Log("prices", 0), Log("late", 0)
KEYS = [b"a", b"b", b"c", b"d"]
_numbers = itertools.count()


class MortalStore(ForwardingMetadataStore):
    """Its process dies at write number `at`: before the write, after some of its groups, or after it without an answer.
    0 means never. Later calls never return."""

    def __init__(self, inner: MetadataStore, at: int = 0, where: str = "before") -> None:
        super().__init__(inner)
        self._at, self._where = at, where
        self.writes, self.died = 0, asyncio.Event()

    async def _live(self) -> None:
        if self.died.is_set():
            await asyncio.Event().wait()

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        await self._live()
        self.writes += 1
        if self.writes != self._at:
            return await self.inner.write(groups)
        self.died.set()
        if self._where != "before":
            # An atomic store takes a call as one; elsewhere a connection may die between two requests.
            part = len(groups) if self._where == "after" or self.capabilities.atomic_groups else len(groups) // 2
            if part:
                await self.inner.write(groups[:part])
        await self._live()
        raise AssertionError

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        await self._live()
        return await self.inner.get_many(keys, strict=strict)


async def is_killed(store: MortalStore, work: Coroutine[Any, Any, object]) -> bool:
    """Run it to its end, or to the death of its process and all that it had begun; which of the two."""
    before = asyncio.all_tasks()
    task, death = asyncio.create_task(work), asyncio.create_task(store.died.wait())
    await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        death.cancel()
        await task
        return False
    while left := asyncio.all_tasks() - before:
        for one in left:
            one.cancel()  # more than once: what tidies up asks the store, too
        await asyncio.wait(left, timeout=0.001)
    return True


@dataclass
class Clock:
    """A clock that advances by a millisecond with every read, and with every sleep."""

    now_ms: int

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1_000) + 1
        await asyncio.sleep(0)


@dataclass
class Cluster:
    """One run of the cluster, and what it held when its metadata was lost."""

    seed: int
    atomic: bool
    random: random.Random = field(init=False)
    objects: MemoryObjectStore = field(init=False)
    clock: Clock = field(init=False)
    context: LogContext = field(init=False)
    backup: BackupObjects = field(init=False)
    at_backup: dict[Log, list[LogRecord]] = field(default_factory=dict)
    at_loss: dict[Log, list[LogRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.objects = MemoryObjectStore(f"memory://loss-{self.seed}-{time.time_ns()}-{next(_numbers)}")
        self.clock = Clock(1_700_000_000_000)
        self.context = self.opened(self.new_store())
        self._tokens = itertools.count()
        self._left = set[str]()

    def new_store(self) -> MemoryStore:
        return MemoryStore(MemoryBacking(shards=1 if self.atomic else 4, atomic_groups=self.atomic))

    def opened(self, metadata: MetadataStore) -> LogContext:
        context = context_on(metadata, self.objects, self.random.randrange(2**32))
        return replace(context, now_ms=self.clock, sleep=self.clock.sleep)

    async def live(self) -> None:
        """Up to the loss."""
        await join_cluster(self.context)
        await create_topic(self.context, "orders", partitions=2)
        await create_topic(self.context, PRICES.topic, config={"cleanup.policy": "compact", "delete.retention.ms": "0"})
        await self._work([*PLAIN, PRICES], self.random.randint(4, 9))
        self.at_backup = {log: await records_of(self.context, log) for log in [*PLAIN, PRICES]}
        backup_id = new_object_id(self.clock(), self.context.random_bits)
        self.backup = BackupObjects(self.objects, self.context.keys, backup_id)
        await write_backup(self.context, self.backup, backup_id)
        await self._work([*PLAIN, PRICES, LATE], self.random.randint(4, 9))
        self.at_loss = {log: await records_of(self.context, log) for log in [*PLAIN, PRICES, LATE]}
        await self._vacuum()

    async def _work(self, logs: Sequence[Log], steps: int) -> None:
        """Appends by one writer, so that records have the order of its blobs, beside compaction, retention and
        vacuum."""
        appender = Appender(self.context)
        await self._append(appender, logs)
        for _ in range(steps):
            does = self.random.choice([self._append, self._append, self._compact, self._merge, self._clean])
            await does(appender, logs)
        if self.random.random() < 0.7:
            await appender.close()  # else the last append of each log may be pending
        await self.clock.sleep(0)

    async def _append(self, appender: Appender, logs: Sequence[Log]) -> None:
        groups = []
        for log in self.random.sample(logs, self.random.randint(1, len(logs))):
            values = [b"%s/%d" % (log.topic.encode(), next(self._tokens)) for _ in range(self.random.randint(1, 3))]
            keys = self.random.choices(KEYS, k=len(values))
            body = encode_records(values, keys=keys, timestamps_ms=5)
            groups.append(EncodedGroup(log, len(values), "kafka-v2", [body], 5))
        assert all(isinstance(outcome, Appended) for outcome in await appender.append(groups))

    async def _compact(self, _: Appender, logs: Sequence[Log]) -> None:
        log = self.random.choice(logs)
        if await self._is_there(log):
            await compact_once(self.context, log, max_offsets=self.random.choice([3, 5, 100]))

    async def _merge(self, _: Appender, logs: Sequence[Log]) -> None:
        log = self.random.choice(logs)
        if await self._is_there(log):
            await merge_once(self.context, log, min_inputs=2)

    async def _clean(self, _: Appender, logs: Sequence[Log]) -> None:
        tools = tools_of(self.context)
        options = KeyCompactOptions(force=True, bytes_per_second=None, target_bytes=self.random.choice([1, 10_000]))
        await key_compact(self.context, LocalTasks(tools), LocalKeyAggregate(tools), options=options)

    async def _is_there(self, log: Log) -> bool:
        return await self.context.metadata.get(self.context.keys.control(log)) is not None

    async def _vacuum(self) -> None:
        """All that no log names, some of it, or nothing."""
        share = self.random.choice([0.0, 0.5, 1.0])
        named = set[str]()
        for log in [*PLAIN, PRICES, LATE]:
            if await self._is_there(log):
                entries = [entry_of(one) async for one in self.context.metadata.scan_all(self.context.keys.index(log))]
                pending = (await view(self.context, log, strict=True)).control.pending
                named |= {entry.value.data_key for entry in entries} | ({pending.data_key} if pending else set())
        kinds = ("blob", "segment_object")
        gone = [
            meta.name
            async for meta in self.objects.list("")
            if (parsed := self.context.keys.parse_object(meta.name)) is not None
            and parsed.kind in kinds
            and self.objects.uri(meta.name) not in named
            and self.random.random() < share
        ]
        await self.objects.delete_many(gone)
        self._left = {meta.name async for meta in self.objects.list("")}

    async def begin_again(self) -> None:
        """The objects as they were when the metadata was lost; nothing that is tried here deletes any."""
        await self.objects.delete_many([m.name async for m in self.objects.list("") if m.name not in self._left])


async def records_of(context: LogContext, log: Log) -> list[LogRecord]:
    if await context.metadata.get(context.keys.control(log)) is None:
        return []
    start = (await view(context, log, strict=True)).control.log_start_offset
    return [record async for run in iter_runs(context, log, start) for record in run.records()]
