"""Writer and reader for programs that run an event loop of their own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from llog.api.groups import AppendResult, SharedAppendGroup, encode_group
from llog.errors import LogError
from llog.limits import LOG_COMPACT_BYTES_DEFAULT
from llog.log import fence as fencing
from llog.log import read as reading
from llog.log.append import Appended, Appender, AppendOutcome
from llog.log.compact import Compacted, compact_once
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys, Log, check_partition, check_topic
from llog.log.records import LogRecord
from llog.log.topics import initialize
from llog.settings import Settings
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectStore
from llog.wiring import ObjectStores, open_metadata_store


class _Opened:
    """The stores behind a face, opened from settings and closed with it."""

    def __init__(self, context: LogContext, metadata: MetadataStore, objects: ObjectStores) -> None:
        self.context, self._metadata, self._objects = context, metadata, objects

    @classmethod
    async def open(cls, settings: Settings, *, puts_blobs: bool, puts_segments: bool) -> Self:
        metadata = await open_metadata_store(settings.metadata_url, settings)
        objects = ObjectStores(settings)
        try:
            wal = await objects.at(settings.wal_url) if puts_blobs else None
            segments = await objects.at(settings.objects_url) if puts_segments else None
        except BaseException:
            await objects.close()
            await metadata.close()
            raise

        async def find(uri: str) -> tuple[ObjectStore, str]:
            found = await objects.resolve(uri)
            return found.store, found.name

        options = LogOptions(
            writer_id=settings.client_identifier,
            encoding=settings.encoding,
            vacuum_grace_ms=settings.vacuum_grace_ms,
            auto_create_topics=settings.auto_create_topics,
            topic_partitions_max=settings.topic_partitions_max,
        )
        context = LogContext(
            metadata=metadata,
            wal=wal,
            segments=segments,
            find_object=find,
            now_ms=lambda: time.time_ns() // 1_000_000,
            random_bits=secrets.randbits,
            sleep=asyncio.sleep,
            keys=Keys(settings.root_prefix),
            options=options,
        )
        return cls(context, metadata, objects)

    async def close(self) -> None:
        try:
            await self._objects.close()
        finally:
            await self._metadata.close()


class _Face:
    """What writer and reader share: opened by `open` (or `from_env`), closed by `close` or `async with`."""

    _puts_blobs = _puts_segments = False

    def __init__(self, opened: _Opened) -> None:
        self._opened = opened
        self.context = opened.context

    @classmethod
    async def open(cls, settings: Settings | None = None, **overrides: object) -> Self:
        """With settings, or with those in force; keywords beat both: `metadata_url=…`, `objects_url=…`."""
        if settings is None or overrides:
            settings = Settings.from_env(None if settings is None else {}, **overrides)
        return cls(await _Opened.open(settings, puts_blobs=cls._puts_blobs, puts_segments=cls._puts_segments))

    @classmethod
    async def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """From `LLOG_…` variables."""
        return await cls.open(Settings.from_env(environ))

    async def close(self) -> None:
        await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncLeaderlessLogWriter(_Face):
    """Appends to any log; any number of writers may append to the same one."""

    _puts_blobs = True

    def __init__(self, opened: _Opened) -> None:
        super().__init__(opened)
        self._appender = Appender(self.context)

    async def initialize_partition(self, topic: str, partition: int) -> None:
        """Create the log if it is not there. Appending does so by itself."""
        await initialize(self.context, _log(topic, partition))

    async def append_shared(self, groups: Sequence[SharedAppendGroup]) -> list[AppendResult]:
        """Append every group, all in one object. When some fail, the first error is raised, with what became of each
        group in its `outcomes`; the others are appended all the same."""
        encoding, now_ms = self.context.options.encoding, self.context.now_ms()
        outcomes = await self._appender.append([encode_group(g, encoding=encoding, now_ms=now_ms) for g in groups])
        return results_of(outcomes)

    async def fence(self, topic: str, partition: int, *, expected_epoch: int | None = None) -> int:
        """Close the log to appends; its epoch afterwards."""
        return await fencing.fence(self.context, _log(topic, partition), expected_epoch=expected_epoch)

    async def unfence(self, topic: str, partition: int, *, expected_epoch: int | None = None) -> int:
        return await fencing.unfence(self.context, _log(topic, partition), expected_epoch=expected_epoch)

    async def close(self) -> None:
        try:
            await self._appender.close()
        finally:
            await super().close()


class AsyncLeaderlessLogReader(_Face):
    """Reads any log, by offset. Needs no bucket setting: index entries hold full URIs."""

    async def read_offset(self, topic: str, partition: int, offset: int) -> LogRecord:
        """The record at `offset` (the next that is left, where key compaction removed it)."""
        return await reading.read_offset(self.context, _log(topic, partition), offset)

    async def read_range(self, topic: str, partition: int, start: int, end: int) -> list[LogRecord]:
        """Records from `start` to `end`, both included; fewer when the log ends before."""
        records = []
        async for record in self.iter_from(topic, partition, start):
            if record.offset > end:
                break
            records.append(record)
            if record.offset == end:
                break
        return records

    async def iter_from(self, topic: str, partition: int, offset: int) -> AsyncIterator[LogRecord]:
        """Records from `offset` to the end of the log as it is when it is reached."""
        async for run in reading.iter_runs(self.context, _log(topic, partition), offset):
            for record in run.records():
                yield record

    async def high_watermark(self, topic: str, partition: int) -> int:
        """The last readable offset (one below the first of an empty log)."""
        return (await reading.view(self.context, _log(topic, partition), strict=True)).next_offset - 1


class AsyncLeaderlessLogCompactor(_Face):
    """Rewrites a log's fresh slices into segments of its own. Any number may run; they get in nobody's way."""

    _puts_segments = True

    async def compact_once(
        self,
        topic: str,
        partition: int,
        *,
        max_offsets: int | None = None,
        target_bytes: int = LOG_COMPACT_BYTES_DEFAULT,
        min_age_ms: int = 0,
    ) -> Compacted | None:
        """Finish an interrupted run, or compact the next one; what it did, or None when nothing is left."""
        return await compact_once(
            self.context,
            _log(topic, partition),
            max_offsets=2**62 if max_offsets is None else max_offsets,
            target_bytes=target_bytes,
            min_age_ms=min_age_ms,
        )


def _log(topic: str, partition: int) -> Log:
    return Log(check_topic(topic), check_partition(partition))


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
