"""The stage of the sink's tests: stores in memory, drivers that crash at the n-th call, and what the logs hold."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pyarrow as pa

from llog.log.context import LogContext, LogOptions
from llog.log.keys import Log
from llog.log.read.read import iter_runs, view
from llog.log.read.records import LogRecord
from llog.log.topics.create import initialize
from llog.pipeline.runtime.tasks import tools_of
from llog.pipeline.sink.commit import SinkResult, commit_batch
from llog.pipeline.sink.plan import UploadedSlice
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import upload
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, Key, Record, Write
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer, ByteRange
from tests.contexts import hurry, log_context

_numbers = itertools.count()


class Crash(BaseException):
    """The process is gone: nothing catches it."""


class Fuse:
    """Lets so many store calls through; the last one takes effect, or does not."""

    def __init__(self, calls: int | None = None, *, last_takes_effect: bool = False) -> None:
        self.left, self._effect = calls, last_takes_effect
        self.used = 0

    def burn(self) -> None:
        self.used += 1
        if self.left is not None and self.used > self.left:
            raise Crash

    def burnt(self) -> None:
        """After the call."""
        if self._effect and self.left == self.used:
            raise Crash


class FusedMetadata(MemoryStore):
    def __init__(self, backing: MemoryBacking, fuse: Fuse) -> None:
        super().__init__(backing)
        self._fuse = fuse

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        self._fuse.burn()
        return await super().get_many(keys, strict=strict)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self._fuse.burn()
        outcomes = await super().write(groups)
        self._fuse.burnt()
        return outcomes


class FusedObjects(MemoryObjectStore):
    def __init__(self, url: str, fuse: Fuse) -> None:
        super().__init__(url)
        self.fuse = fuse
        self.gets = self.puts = 0

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self.gets += 1
        self.fuse.burn()
        return await super().get_ranges(name, ranges)

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.puts += 1
        self.fuse.burn()
        await super().put(name, buffers, if_absent=if_absent)
        self.fuse.burnt()


class Stage:
    def __init__(self, *, atomic: bool) -> None:
        self.backing = MemoryBacking(atomic_groups=atomic)
        self.fuse = Fuse()
        self.objects = FusedObjects(f"memory://sink-{next(_numbers)}", self.fuse)
        self.clock_ms = time.time_ns() // 1_000_000
        self.context = self.open()

    def open(self, fuse: Fuse | None = None) -> LogContext:
        fuse = Fuse() if fuse is None else fuse
        self.objects.fuse = fuse
        return log_context(
            FusedMetadata(self.backing, fuse),
            self.objects,
            seed=next(_numbers),
            now_ms=self.now_ms,
            sleep=hurry,
            options=LogOptions(vacuum_grace_ms=3_600_000),
        )

    def now_ms(self) -> int:
        self.clock_ms += 1
        return self.clock_ms

    async def upload(self, *tasks: pa.Table, topic: str | None = None) -> list[UploadedSlice]:
        """What tasks of these rows return to their driver. The topics have the partitions that the rows name."""
        for log in sorted({log for task in tasks for log in named_logs(task, topic)}):
            await initialize(self.context, log)
        order = await sink_order(self.context, topic=topic)
        uploads = [
            await upload(tools_of(self.context), order, task.to_batches(), number) for number, task in enumerate(tasks)
        ]
        return [part for done in uploads for part in done.slices]

    async def commit(self, batch: SinkBatch, *tasks: pa.Table, topic: str | None = None) -> SinkResult:
        return await commit_batch(self.context, batch, await self.upload(*tasks, topic=topic))

    async def records(self, log: Log) -> list[LogRecord]:
        control = (await view(self.context, log, strict=True)).control
        runs = iter_runs(self.context, log, control.log_start_offset)
        return [record async for run in runs for record in run.records()]

    async def values(self, log: Log) -> list[bytes | None]:
        records = await self.records(log)
        control = (await view(self.context, log, strict=True)).control
        assert [r.offset for r in records] == list(range(control.log_start_offset, control.sequence_counter))
        return [record.payload for record in records]

    async def entry_count(self, log: Log) -> int:
        """Each is one append: how the rows were split."""
        return len([None async for _ in self.context.metadata.scan_all(self.context.keys.index(log))])


def named_logs(task: pa.Table, topic: str | None) -> set[Log]:
    """The last partition of each topic whose rows name partitions beyond 0, the one that the sink itself creates."""
    if "partition" not in task.column_names:
        return set()
    topics = [topic] * task.num_rows if topic is not None else task["topic"].to_pylist()
    last: dict[str, int] = {}
    for name, partition in zip(topics, task["partition"].to_pylist(), strict=True):
        last[name] = max(last.get(name, 0), partition or 0)
    return {Log(name, partition) for name, partition in last.items() if partition > 0}


def rows(*values: str, topic: str | None = None, partition: int | None = None, key: str | None = None) -> pa.Table:
    columns: dict[str, pa.Array] = {"value": pa.array(values, pa.string())}
    if topic is not None:
        columns["topic"] = pa.array([topic] * len(values), pa.string())
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(values), pa.int32())
    if key is not None:
        columns["key"] = pa.array([key] * len(values), pa.string())
    return pa.table(columns)


def placed(*rows_: tuple[str, str, int]) -> pa.Table:
    """(value, topic, partition) each."""
    values, topics, partitions = zip(*rows_, strict=True)
    return pa.table(
        {
            "value": pa.array(values, pa.string()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
        }
    )
