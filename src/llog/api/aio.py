"""Writer, reader and compactor for programs that run their own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from operator import index
from types import TracebackType
from typing import Self, SupportsIndex

from llog.api.groups import AppendResult, SharedAppendGroup, encode_group, judged_groups
from llog.errors import InvalidArgument, LogError
from llog.formats.buffers import total_length
from llog.limits import LOG_COMPACT_BYTES_DEFAULT, LOG_MERGE_BYTES_DEFAULT
from llog.log import fence as fencing
from llog.log.append.append import Appended, Appender, AppendOutcome, EncodedGroup
from llog.log.cleanup.retention import Limits, Retained, configured_limits, delete_records, retain
from llog.log.keys import Log, check_partition, check_topic
from llog.log.metrics import (
    APPEND_BYTES,
    APPEND_FAILURES,
    APPEND_GROUPS,
    APPEND_RECORDS,
    COMPACT_BYTES,
    COMPACT_RUNS,
    LogMetrics,
    NoMetrics,
)
from llog.log.read import read as reading
from llog.log.read.fetch import Fetcher
from llog.log.read.records import LogRecord, RecordRun
from llog.log.read.timestamps import OffsetAndTimestamp, max_timestamp, offset_for_timestamp
from llog.log.rewrite.publish import LOG_MERGE_INPUTS_MIN, Compacted
from llog.log.topics.create import initialize
from llog.log.topics.known_topics import KnownTopics
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.vacuum.job import VacuumReport, vacuum_here
from llog.settings import Settings
from llog.wiring import OpenedLog, Use, Wrapping, open_log


class _Face:
    """Opened by `open` (or `from_env`), closed by `close` or `async with`."""

    _blobs = _segments = Use.NOTHING

    def __init__(self, opened: OpenedLog, metrics: LogMetrics) -> None:
        self._opened, self.metrics = opened, metrics
        self.context = opened.context

    @classmethod
    async def open(
        cls,
        settings: Settings | None = None,
        *,
        metrics: LogMetrics | None = None,
        wrapping: Wrapping | None = None,
        **overrides: object,
    ) -> Self:
        """Open with `settings`, or with those of the environment; keywords override both: `metadata_url=…`.

        `metrics` counts appends, reads and compactions; `wrapping` counts store calls (`llog.telemetry.metering`).
        """
        settings = Settings.from_env(None, **overrides) if settings is None else settings.replaced(**overrides)
        opened = await open_log(settings, blobs=cls._blobs, segments=cls._segments, wrapping=wrapping)
        return cls(opened, NoMetrics() if metrics is None else metrics)

    @classmethod
    async def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        metrics: LogMetrics | None = None,
        wrapping: Wrapping | None = None,
    ) -> Self:
        """Open with the `LLOG_…` variables of `environ` (default: the process's)."""
        return await cls.open(Settings.from_env(environ), metrics=metrics, wrapping=wrapping)

    async def close(self) -> None:
        await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncLeaderlessLogWriter(_Face):
    """Appends to any log. Any number of writers may append to the same log."""

    # The writer puts no segments, but checks that the store is the cluster's: else compaction could not find its blobs.
    _blobs = _segments = Use.PUT

    def __init__(self, opened: OpenedLog, metrics: LogMetrics) -> None:
        super().__init__(opened, metrics)
        self._appender = Appender(self.context)
        self._configs = KnownTopics(self.context, lambda: asyncio.get_running_loop().time() * 1_000)

    async def initialize_partition(self, topic: str, partition: int) -> None:
        """Create the log unless it exists; adds partitions to the topic, or creates it. An append to a missing topic
        creates the topic with the partitions that the append names, but adds none to an existing topic."""
        await initialize(self.context, _log(topic, partition))

    async def append_shared(self, groups: Sequence[SharedAppendGroup]) -> list[AppendResult]:
        """Append every record group, all in one object. If some fail, the others are still appended; the first error is
        raised, and its `outcomes` hold the outcome of each group. A group with a record beyond its topic's limits
        (`max.message.bytes`, `message.timestamp.…`) fails as a whole."""
        encoding, now_ms = self.context.options.encoding, self.context.now_ms()
        measured = [encode_group(g, encoding=encoding, now_ms=now_ms) for g in _checked(groups)]
        judged = await judged_groups(self._configs, measured, now_ms)
        accepted = [group for group in judged if isinstance(group, EncodedGroup)]
        appended = await self._appender.append(accepted) if accepted else []
        landed = [group for group, outcome in zip(accepted, appended, strict=True) if isinstance(outcome, Appended)]
        self.metrics.count(APPEND_GROUPS, len(landed))
        self.metrics.count(APPEND_RECORDS, sum(group.msg_count for group in landed))
        self.metrics.count(APPEND_BYTES, sum(total_length(group.body) for group in landed))
        self.metrics.count(APPEND_FAILURES, len(measured) - len(landed))
        left = iter(appended)
        return results_of([next(left) if isinstance(group, EncodedGroup) else group for group in judged])

    async def fence(self, topic: str, partition: int, *, expected_epoch: int | None = None) -> int:
        """Close the log to appends. Returns the new epoch."""
        return await fencing.fence(self.context, _log(topic, partition), expected_epoch=expected_epoch)

    async def unfence(self, topic: str, partition: int, *, expected_epoch: int | None = None) -> int:
        return await fencing.unfence(self.context, _log(topic, partition), expected_epoch=expected_epoch)

    async def close(self) -> None:
        try:
            await self._appender.close()
        finally:
            await super().close()


class AsyncLeaderlessLogReader(_Face):
    """Reads any log, by offset or timestamp. It needs no bucket setting: index entries hold full URIs.

    `metrics.count(name, value)` is called for requests, bytes and records (names in `llog.log.metrics`).
    """

    def __init__(self, opened: OpenedLog, metrics: LogMetrics) -> None:
        super().__init__(opened, metrics)
        self._fetcher = Fetcher(self.context.find_object, metrics)

    async def read_offset(self, topic: str, partition: int, offset: int) -> LogRecord:
        """The record at `offset`, or the next one if key compaction removed it."""
        log = _log(topic, partition)
        return await reading.read_offset(self.context, log, _whole("offset", offset), fetcher=self._fetcher)

    async def read_range(self, topic: str, partition: int, start: int, end: int) -> list[LogRecord]:
        """Records from `start` to `end`, both included; fewer if the log ends earlier."""
        records: list[LogRecord] = []
        last = max(_whole("start", start), _whole("end", end))
        async with aclosing(self.iter_runs(topic, partition, start, end_offset=last)) as runs:
            async for run in runs:
                records += (record for record in run.records() if record.offset <= end)
        return records

    async def iter_from(self, topic: str, partition: int, offset: int) -> AsyncGenerator[LogRecord, None]:
        """Records from `offset` to the end of the log, including records appended while reading."""
        async with aclosing(self.iter_runs(topic, partition, offset)) as runs:
            async for run in runs:
                for record in run.records():
                    yield record

    def iter_runs(
        self, topic: str, partition: int, offset: int, *, end_offset: int | None = None
    ) -> AsyncGenerator[RecordRun, None]:
        """As `iter_from`, in columns of some MiB. `end_offset` stops the fetching behind that offset."""
        log, start = _log(topic, partition), _whole("offset", offset)
        return reading.iter_runs(self.context, log, start, end_offset=end_offset, fetcher=self._fetcher)

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record, in offset order, with a timestamp of at least `timestamp_ms`; None if there is none."""
        log, from_ms = _log(topic, partition), _whole("timestamp_ms", timestamp_ms)
        return await offset_for_timestamp(self.context, log, from_ms, fetcher=self._fetcher)

    async def max_timestamp(self, topic: str, partition: int) -> OffsetAndTimestamp | None:
        """The first record with the highest timestamp; None for a log without records."""
        return await max_timestamp(self.context, _log(topic, partition), fetcher=self._fetcher)

    async def log_start_offset(self, topic: str, partition: int) -> int:
        """The first readable offset."""
        return (await reading.view(self.context, _log(topic, partition), strict=True)).log_start_offset

    async def high_watermark(self, topic: str, partition: int) -> int:
        """The last readable offset; for an empty log, the one before the first."""
        return (await reading.view(self.context, _log(topic, partition), strict=True)).next_offset - 1


class AsyncLeaderlessLogCompactor(_Face):
    """Rewrites a log's slices into segments, merges segments, applies retention and deletes unused objects. Any number
    of compactors may run at the same time."""

    _blobs = _segments = Use.PUT

    async def compact_once(
        self,
        topic: str,
        partition: int,
        *,
        max_offsets: int | None = None,
        target_bytes: int = LOG_COMPACT_BYTES_DEFAULT,
        min_age_ms: int = 0,
    ) -> Compacted | None:
        """Finish an interrupted run, or compact the next one. Returns the run, or None when nothing is left to do."""
        return self._counted(
            await compact_once(
                self.context,
                _log(topic, partition),
                max_offsets=2**62 if max_offsets is None else _whole("max_offsets", max_offsets, at_least=1),
                target_bytes=_whole("target_bytes", target_bytes, at_least=1),
                min_age_ms=_whole("min_age_ms", min_age_ms, at_least=0),
            )
        )

    async def merge_once(
        self,
        topic: str,
        partition: int,
        *,
        target_bytes: int = LOG_MERGE_BYTES_DEFAULT,
        min_inputs: int = LOG_MERGE_INPUTS_MIN,
    ) -> Compacted | None:
        """Merge neighbouring segments of one level into one. Returns the run, or None when no neighbours fit."""
        log = _log(topic, partition)
        return self._counted(await merge_once(self.context, log, target_bytes=target_bytes, min_inputs=min_inputs))

    def _counted(self, done: Compacted | None) -> Compacted | None:
        if done is not None:
            self.metrics.count(COMPACT_RUNS)
            self.metrics.count(COMPACT_BYTES, done.byte_length)
        return done

    async def retain(
        self, topic: str, partition: int, *, retention_ms: int | None = None, retention_bytes: int | None = None
    ) -> Retained:
        """Remove whole entries that are too old or exceed the size limit. Without arguments the limits are those of the
        topic's config (`retention.ms`, `retention.bytes`), if its `cleanup.policy` contains delete."""
        log = _log(topic, partition)
        for name, limit in (("retention_ms", retention_ms), ("retention_bytes", retention_bytes)):
            # Kafka's -1 means "no limit"; as a number it would remove everything.
            if limit is not None and _whole(name, limit) < 0:
                raise InvalidArgument(name, f"must be at least 0, got {limit}; leave it out for no limit")
        limits = Limits(retention_ms, retention_bytes)
        if retention_ms is None and retention_bytes is None:
            limits = await configured_limits(self.context, topic)
        return await retain(self.context, log, limits)

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> Retained:
        """Make `before_offset` the first readable offset (-1: the end of the log)."""
        return await delete_records(self.context, _log(topic, partition), _whole("before_offset", before_offset))

    async def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Delete objects that no log and no unfinished Spark write names. `dry_run` only lists them."""
        return await vacuum_here(self.context, dry_run=dry_run)


def _log(topic: str, partition: int) -> Log:
    return Log(check_topic(topic), check_partition(partition))


def _whole(argument: str, value: int, *, at_least: int | None = None) -> int:
    """As a Python integer; accepts those of numpy."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidArgument(argument, f"must be an integer, got {value!r}")
    if at_least is not None and value < at_least:
        raise InvalidArgument(argument, f"must be at least {at_least}, got {value}")
    return index(value)


def _checked(groups: Iterable[SharedAppendGroup]) -> list[SharedAppendGroup]:
    checked = list(groups) if isinstance(groups, Iterable) else []
    if not checked or not all(isinstance(group, SharedAppendGroup) for group in checked):
        raise InvalidArgument("groups", "must be a list of at least one SharedAppendGroup")
    return checked


def results_of(outcomes: Sequence[AppendOutcome]) -> list[AppendResult]:
    results: list[AppendResult] = []
    for outcome in outcomes:
        if isinstance(outcome, LogError):
            outcome.outcomes = list(outcomes)
            raise outcome
        results.append(_result(outcome))
    return results


def _result(appended: Appended) -> AppendResult:
    count = appended.end_offset - appended.start_offset + 1
    return AppendResult(
        *appended.log, appended.start_offset, appended.end_offset, count, appended.index_key, appended.wal_uri
    )
