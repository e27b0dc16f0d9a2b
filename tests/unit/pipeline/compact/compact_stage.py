"""The stage of the compaction job's tests: logs on stores in memory, and an object store that counts requests."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from llog.errors import ObjectNotFound
from llog.formats.records.encode import encode_records
from llog.formats.segment import Segment, SegmentBuilder
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.context import LogContext
from llog.log.index import Entry, entry_of
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.records import LogRecord
from llog.log.rewrite.publish import Run
from llog.pipeline.compact.plan import Window
from llog.pipeline.compact.task import final_batches
from llog.pipeline.runtime.tasks import LocalTasks, Task, tools_of
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer, ByteRange
from tests.contexts import hurry, log_context

_numbers = itertools.count()


class CountingObjects(MemoryObjectStore):
    """Counts requests by name, and can lose an object."""

    def __init__(self) -> None:
        super().__init__(f"memory://pipeline-{next(_numbers)}")
        self.gets: Counter[str] = Counter()
        self.puts: list[str] = []
        self.lost: set[str] = set()

    def _asked(self, name: str) -> None:
        self.gets[name] += 1
        if name in self.lost:
            raise ObjectNotFound(self.url, name)

    async def get(self, name: str) -> Buffer:
        self._asked(name)
        return await super().get(name)

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self._asked(name)
        return await super().get_ranges(name, ranges)

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.puts.append(name)
        await super().put(name, buffers, if_absent=if_absent)

    def blob_gets(self) -> dict[str, int]:
        return {name: count for name, count in self.gets.items() if "wal-shared" in name}


class Stage:
    def __init__(self, *, atomic: bool = True, seed: int = 1) -> None:
        self.objects = CountingObjects()
        self.backing = MemoryBacking(atomic_groups=atomic)
        self.random = random.Random(seed)
        self.context = self.open()
        self.appended: dict[Log, list[bytes | None]] = {}

    def open(self, metadata: MetadataStore | None = None) -> LogContext:
        store = MemoryStore(self.backing) if metadata is None else metadata
        return log_context(store, self.objects, seed=next(_numbers), sleep=hurry)

    async def append(self, *logs: Log, records: int = 3, size: int = 200, encoding: str = "kafka-v2") -> None:
        """One blob with a slice for each of the logs."""
        appender = Appender(self.context, growth=Growth.HTTP)
        groups = []
        for log in logs:
            values: list[bytes | None] = [self.random.randbytes(size) for _ in range(records)]
            body = [encode_records(values, timestamps_ms=1_760_000_000_000)]
            groups.append(EncodedGroup(log, records, encoding, body, 1_760_000_000_000))
            self.appended.setdefault(log, []).extend(values)
        outcomes = await appender.append(groups)
        assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes
        await appender.close()


async def entries_of(context: LogContext, log: Log) -> list[Entry]:
    return [entry_of(record) async for record in context.metadata.scan_all(context.keys.index(log))]


async def cursor_and_counter(context: LogContext, log: Log) -> tuple[int, int]:
    control = await context.metadata.get(context.keys.control(log))
    record = await context.metadata.get(context.keys.compaction(log))
    assert control is not None
    assert record is not None
    counter = decode_value(ControlRecord, control.value, str(log)).sequence_counter
    return decode_value(CompactionRecord, record.value, str(log)).offset, counter


async def records_of(context: LogContext, log: Log) -> list[LogRecord]:
    """Every record of the log, in order; none is missing."""
    _, counter = await cursor_and_counter(context, log)
    records = [record async for run in iter_runs(context, log, 1) for record in run.records()]
    assert [record.offset for record in records] == list(range(1, counter))
    return records


def runner_of(stage: Stage) -> LocalTasks:
    return LocalTasks(tools_of(stage.context), at_once=4)


class Between:
    """A runner that lets something happen once tasks are planned, before they run; or after they did."""

    def __init__(self, inner: LocalTasks, before: Callable[[], Any] | None, after: Callable[[], Any] | None) -> None:
        self._inner, self._before, self._after = inner, before, after
        self.windows: list[Window] = []

    async def run(self, task: Task[Any, Any], items: Sequence[Any], on_done: Any = None, **parts: Any) -> list[Any]:
        self.windows += items
        if self._before is not None:
            await self._before()
        outcomes = await self._inner.run(task, items)
        if self._after is not None:
            await self._after()
        for number, outcome in enumerate(outcomes):
            on_done(number, outcome)
        return outcomes

    async def close(self) -> None: ...


def between(stage: Stage, before: Callable[[], Any] | None = None, after: Callable[[], Any] | None = None) -> Between:
    return Between(runner_of(stage), before, after)


async def segment_of(context: LogContext, log: Log, run: Run, *, level: int, created_at_ms: int) -> Segment:
    """The segment of a run, built entry by entry without a window."""
    builder = SegmentBuilder(topic=log.topic, partition=log.partition, incarnation=run.entries[0].value.incarnation)
    epochs: dict[int, int] = {}
    for entry in run.entries:
        store, name = await context.find_object(entry.value.data_key)
        data = await store.get_range(name, entry.value.byte_offset or 0, entry.value.byte_length or 0)
        final = final_batches(data, entry)
        builder.add(final.data, final.columns)
        epochs = {**final.epochs, **epochs}
    return builder.finish(
        start_offset=run.start_offset,
        end_offset=run.end_offset,
        level=level,
        created_at_ms=created_at_ms,
        epochs=epochs,
        sources=run.sources,
    )
