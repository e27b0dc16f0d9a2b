"""Writer, reader and compactor for programs without an event loop; usable from several threads at once.

Each object runs an event loop in its own thread, because stores are bound to a loop. A process that forks must open
them after the fork.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from llog.api.aio import AsyncLeaderlessLogCompactor, AsyncLeaderlessLogReader, AsyncLeaderlessLogWriter
from llog.api.groups import AppendResult, SharedAppendGroup
from llog.errors import StoreClosed
from llog.limits import LOG_COMPACT_BYTES_DEFAULT, LOG_MERGE_BYTES_DEFAULT
from llog.log.cleanup.retention import Retained
from llog.log.metrics import LogMetrics
from llog.log.read.records import LogRecord, RecordRun
from llog.log.read.timestamps import OffsetAndTimestamp
from llog.log.rewrite.publish import LOG_MERGE_INPUTS_MIN, Compacted
from llog.pipeline.vacuum.job import VacuumReport
from llog.settings import Settings
from llog.wiring import Wrapping

T = TypeVar("T")
F = TypeVar("F", AsyncLeaderlessLogWriter, AsyncLeaderlessLogReader, AsyncLeaderlessLogCompactor)


class _LoopThread:
    """An event loop that runs in a thread until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise StoreClosed("use", self._thread.name, "it is closed; open a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        if self.runs:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _SyncFace(Generic[F]):
    _kind: type[F]

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        metrics: LogMetrics | None = None,
        wrapping: Wrapping | None = None,
        **overrides: object,
    ) -> None:
        """Open with `settings`, or with those of the environment; keywords override both: `metadata_url=…`.

        `metrics` counts appends, reads and compactions; `wrapping` counts store calls (`llog.telemetry.metering`).
        """
        self._thread = _LoopThread(type(self).__name__)
        opening = self._kind.open(settings, metrics=metrics, wrapping=wrapping, **overrides)
        try:
            self._face: F = self._thread.run(opening)
        except BaseException:
            self._thread.stop()
            raise

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        metrics: LogMetrics | None = None,
        wrapping: Wrapping | None = None,
    ) -> Self:
        """Open with the `LLOG_…` variables of `environ` (default: the process's)."""
        return cls(Settings.from_env(environ), metrics=metrics, wrapping=wrapping)

    def close(self) -> None:
        """Idempotent."""
        if self._thread.runs:
            try:
                self._thread.run(self._face.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LeaderlessLogWriter(_SyncFace[AsyncLeaderlessLogWriter]):
    """Appends to any log. Any number of writers may append to the same log."""

    _kind = AsyncLeaderlessLogWriter

    def initialize_partition(self, topic: str, partition: int) -> None:
        self._thread.run(self._face.initialize_partition(topic, partition))

    def append_shared(self, groups: Sequence[SharedAppendGroup]) -> list[AppendResult]:
        """Append every record group, all in one object. If some fail, the others are still appended; the first error is
        raised, and its `outcomes` hold the outcome of each group."""
        return self._thread.run(self._face.append_shared(groups))

    def fence(self, topic: str, partition: int, *, expected_epoch: int | None = None) -> int:
        """Close the log to appends. Returns the new epoch."""
        return self._thread.run(self._face.fence(topic, partition, expected_epoch=expected_epoch))

    def unfence(self, topic: str, partition: int, *, expected_epoch: int | None = None) -> int:
        return self._thread.run(self._face.unfence(topic, partition, expected_epoch=expected_epoch))


class LeaderlessLogReader(_SyncFace[AsyncLeaderlessLogReader]):
    """Reads any log, by offset or timestamp."""

    _kind = AsyncLeaderlessLogReader

    def read_offset(self, topic: str, partition: int, offset: int) -> LogRecord:
        return self._thread.run(self._face.read_offset(topic, partition, offset))

    def read_range(self, topic: str, partition: int, start: int, end: int) -> list[LogRecord]:
        """Records from `start` to `end`, both included; fewer if the log ends earlier."""
        return self._thread.run(self._face.read_range(topic, partition, start, end))

    def iter_from(self, topic: str, partition: int, offset: int) -> Iterator[LogRecord]:
        """Records from `offset` to the end of the log, including records appended while reading."""
        for run in self.iter_runs(topic, partition, offset):
            yield from run.records()

    def iter_runs(
        self, topic: str, partition: int, offset: int, *, end_offset: int | None = None
    ) -> Iterator[RecordRun]:
        """As `iter_from`, in columns of some MiB. `end_offset` stops the fetching behind that offset."""
        runs = self._face.iter_runs(topic, partition, offset, end_offset=end_offset)
        try:
            while (run := self._thread.run(_next_or_none(runs))) is not None:
                yield run
        finally:
            if self._thread.runs:
                self._thread.run(runs.aclose())

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record, in offset order, with a timestamp of at least `timestamp_ms`; None if there is none."""
        return self._thread.run(self._face.offset_for_timestamp(topic, partition, timestamp_ms))

    def max_timestamp(self, topic: str, partition: int) -> OffsetAndTimestamp | None:
        """The first record with the highest timestamp; None for a log without records."""
        return self._thread.run(self._face.max_timestamp(topic, partition))

    def log_start_offset(self, topic: str, partition: int) -> int:
        """The first readable offset."""
        return self._thread.run(self._face.log_start_offset(topic, partition))

    def high_watermark(self, topic: str, partition: int) -> int:
        return self._thread.run(self._face.high_watermark(topic, partition))


class LeaderlessLogCompactor(_SyncFace[AsyncLeaderlessLogCompactor]):
    """Rewrites a log's slices into segments, merges segments, applies retention and deletes unused objects. Any number
    of compactors may run at the same time."""

    _kind = AsyncLeaderlessLogCompactor

    def compact_once(
        self,
        topic: str,
        partition: int,
        *,
        max_offsets: int | None = None,
        target_bytes: int = LOG_COMPACT_BYTES_DEFAULT,
        min_age_ms: int = 0,
    ) -> Compacted | None:
        """Finish an interrupted run, or compact the next one. Returns the run, or None when nothing is left to do."""
        return self._thread.run(
            self._face.compact_once(
                topic, partition, max_offsets=max_offsets, target_bytes=target_bytes, min_age_ms=min_age_ms
            )
        )

    def merge_once(
        self,
        topic: str,
        partition: int,
        *,
        target_bytes: int = LOG_MERGE_BYTES_DEFAULT,
        min_inputs: int = LOG_MERGE_INPUTS_MIN,
    ) -> Compacted | None:
        """Merge neighbouring segments of one level into one. Returns the run, or None when no neighbours fit."""
        return self._thread.run(
            self._face.merge_once(topic, partition, target_bytes=target_bytes, min_inputs=min_inputs)
        )

    def retain(
        self, topic: str, partition: int, *, retention_ms: int | None = None, retention_bytes: int | None = None
    ) -> Retained:
        """Remove whole entries that are too old or exceed the size limit. Without arguments the limits are those of the
        topic's config (`retention.ms`, `retention.bytes`), if its `cleanup.policy` contains delete."""
        return self._thread.run(
            self._face.retain(topic, partition, retention_ms=retention_ms, retention_bytes=retention_bytes)
        )

    def delete_records(self, topic: str, partition: int, before_offset: int) -> Retained:
        """Make `before_offset` the first readable offset (-1: the end of the log)."""
        return self._thread.run(self._face.delete_records(topic, partition, before_offset))

    def vacuum(self, *, dry_run: bool = False) -> VacuumReport:
        """Delete objects that no log and no unfinished Spark write names. `dry_run` only lists them."""
        return self._thread.run(self._face.vacuum(dry_run=dry_run))


async def _next_or_none(runs: AsyncGenerator[RecordRun, None]) -> RecordRun | None:
    return await anext(runs, None)
