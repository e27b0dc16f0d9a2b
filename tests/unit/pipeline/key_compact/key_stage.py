"""A log in memory with a clock of its own, and the plainest key compaction there is, to compare with."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.index import Entry, entry_of
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.records import LogRecord
from llog.log.read.view import view
from llog.log.topics.admin import create_topic
from llog.log.topics.config import TopicConfig
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.key_compact.aggregate import KeyAggregate, LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompacted, KeyCompactOptions, key_compact
from llog.pipeline.runtime.tasks import LocalTasks, TaskRunner, tools_of
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.log_suite import context_on

HOUR: Final = 3_600_000
START_MS: Final = 1_700_000_000_000
LOG: Final = Log("prices", 0)
FAST: Final = KeyCompactOptions(force=True, bytes_per_second=None)
_numbers = itertools.count()


@dataclass
class Clock:
    now: list[int]

    def __call__(self) -> int:
        return self.now[0]


def at_a_time(context: LogContext, now_ms: int) -> LogContext:
    """The same, with a clock that the test moves."""
    return replace(context, now_ms=Clock([now_ms]))


@dataclass
class Row:
    """A record to be written: by default of now."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None


@dataclass
class Kept:
    """What the reference knows of a record."""

    record: LogRecord
    horizon_ms: int | None = None


@dataclass
class Stage:
    context: LogContext
    now: list[int]
    config: TopicConfig
    model: list[Kept] = field(default_factory=list)
    log: Log = LOG

    @classmethod
    async def open(
        cls,
        config: dict[str, str] | None = None,
        *,
        log: Log = LOG,
        context: LogContext | None = None,
        objects: ObjectStore | None = None,
        atomic: bool = True,
    ) -> Stage:
        """A topic compacted by key; in memory, unless a context (of `at_a_time`) is given."""
        if context is None:
            objects = objects or MemoryObjectStore(f"memory://keys-{next(_numbers)}")
            metadata = MemoryStore(MemoryBacking(shards=1 if atomic else 4, atomic_groups=atomic))
            context = at_a_time(context_on(metadata, objects, 7), START_MS)
        assert isinstance(context.now_ms, Clock)
        now = context.now_ms.now
        kept = {"cleanup.policy": "compact", **(config or {})}
        await create_topic(context, log.topic, partitions=log.partition + 1, config=kept)
        return cls(context, now, TopicConfig.of(kept), log=log)

    @property
    def objects(self) -> ObjectStore:
        assert self.context.segments is not None
        return self.context.segments

    async def write(self, *rows: Row, codec: Codec = Codec.NONE, **fields: int) -> None:
        """One batch."""
        times = [self.now[0] if row.timestamp_ms is None else row.timestamp_ms for row in rows]
        headers = [[("n", row.value)] for row in rows]
        body = encode_records(
            [row.value for row in rows],
            keys=[row.key for row in rows],
            headers=headers,
            timestamps_ms=times,
            codec=codec,
            **fields,
        )
        group = EncodedGroup(self.log, len(rows), "kafka-v2", [body], max(times))
        [outcome] = await Appender(self.context).append([group])
        assert isinstance(outcome, Appended)
        for number, (row, time) in enumerate(zip(rows, times, strict=True)):
            offset = outcome.start_offset + number
            self.model.append(Kept(LogRecord(offset, row.value, row.key, (("n", row.value),), time)))

    async def compact(self, *, max_offsets: int = 2**62) -> None:
        """Everything into segments of at most so many offsets."""
        while await compact_once(self.context, self.log, max_offsets=max_offsets) is not None:
            pass

    async def merge(self) -> bool:
        return await merge_once(self.context, self.log) is not None

    async def clean(
        self,
        options: KeyCompactOptions = FAST,
        *,
        runner: TaskRunner | None = None,
        aggregate: KeyAggregate | None = None,
    ) -> KeyCompacted:
        tools = tools_of(self.context)
        runner, aggregate = runner or LocalTasks(tools), aggregate or LocalKeyAggregate(tools)
        [done] = (await key_compact(self.context, runner, aggregate, [self.log], options=options)).logs
        assert done.state != "failed", done.error
        return done

    async def read(self) -> list[LogRecord]:
        start = (await view(self.context, self.log, strict=True)).log_start_offset
        return [record async for run in iter_runs(self.context, self.log, start) for record in run.records()]

    async def entries(self) -> list[Entry]:
        return [entry_of(item) async for item in self.context.metadata.scan_all(self.context.keys.index(self.log))]

    async def names(self) -> set[str]:
        return {found.name async for found in self.objects.list(self.context.keys.root)}

    async def check(self) -> None:
        """It reads as the reference says, and nothing is wrong with the log, by the checker's word and the audit's."""
        start = (await view(self.context, self.log, strict=True)).log_start_offset
        expected = [kept.record for kept in self.model if kept.record.offset >= start]
        assert await self.read() == expected
        assert (await check_log(self.context, self.log, deep=True)).faults == ()
        report = await audit(self.context, LocalTasks(tools_of(self.context)), logs=[self.log])
        assert report.clean, (report.findings, report.unsettled, report.unchecked)

    # -- the reference -------------------------------------------------------------------------------------------------
    async def clean_model(self) -> int:
        """Row by row, as one would write it down; how many records went that could be read until now."""
        end = await self._end_of_range()
        latest = {
            kept.record.key: kept.record.offset
            for kept in self.model
            if kept.record.key is not None and kept.record.offset < end
        }
        start = (await view(self.context, self.log, strict=True)).log_start_offset
        stay = [kept.record.offset >= end or self._stays(kept, latest) for kept in self.model]
        gone = sum(not stays and kept.record.offset >= start for kept, stays in zip(self.model, stay, strict=True))
        self.model = [kept for kept, stays in zip(self.model, stay, strict=True) if stays]
        return gone

    def _stays(self, kept: Kept, latest: dict[bytes, int]) -> bool:
        record = kept.record
        if record.key is None:
            return True
        if latest[record.key] != record.offset:
            return False
        if record.payload is not None:
            return True
        if kept.horizon_ms is None:
            kept.horizon_ms = self.now[0] + self.config.delete_retention_ms
        return kept.horizon_ms > self.now[0]

    async def _end_of_range(self) -> int:
        """Whole compacted entries, up to the first that holds a record too young."""
        end = 0
        for entry in await self.entries():
            times = [
                kept.record.timestamp_ms
                for kept in self.model
                if entry.start_offset <= kept.record.offset <= entry.end_offset
            ]
            lag = self.config.min_compaction_lag_ms
            young = lag and max(times, default=0) > self.now[0] - lag
            if entry.value.type != "COMPACTED" or young:
                break
            end = entry.end_offset + 1
        return end


def random_rows(rng: random.Random, keys: Sequence[bytes | None], now_ms: int) -> list[Row]:
    rows = []
    for _ in range(rng.randint(1, 6)):
        key = rng.choice(keys)
        value = None if rng.random() < 0.25 else b"%d" % rng.getrandbits(24)
        rows.append(Row(key, value, now_ms - rng.choice([0, 0, 1, HOUR])))
    return rows
