"""Read for consumers: many logs at once, from the stores, as chunks.

    read all control records in one call                       errors and ends of logs
    walk the index of each log that has records, plan slices
    fetch: one request per object for all logs of the request
    check the slices and build chunks; keep them for the next request (read-ahead)

"No such offset" and "no such log" are answered only after a strict read (h10). A missing object means stale metadata:
the log is read again, a bounded number of times and at last strictly (R10). An error of one log is that log's answer.
Requests that want the same bytes at the same time share one GET.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.broker.tail.batches import ReadAhead
from llog.broker.tail.cache import LONG_AGO
from llog.broker.tail.cached_batch import CachedBatch
from llog.concurrency import ByteBudget, Offload
from llog.errors import FormatError, InconsistentReadState, LlogError, ObjectNotFound, ObjectRangeInvalid, StoreError
from llog.formats.buffers import Buffer
from llog.formats.segment import SegmentFooter
from llog.limits import LOG_READ_ROUNDS_MAX, LOG_READ_STRICT_ROUNDS, MIB
from llog.log.context import LogContext, get_all
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.metrics import READ_RECORDS, READ_RESTARTS, LogMetrics, NoMetrics
from llog.log.read.fetch import EntrySlice, Fetcher, is_segment, whole_slice
from llog.log.read.segment_read import plan_rows
from llog.log.read.slices import Chunk, chunks_of
from llog.log.read.view import IndexWalk, LogView, checked_view, view, view_of
from llog.stores.objects.port import plan_object_fetches

# Indexes that one request walks at the same time, and entries that one answer takes of a log.
CONSUME_SCANS_IN_FLIGHT_MAX: Final = 16
CONSUME_ENTRIES_MAX: Final = 1_024
# Fetchers of a broker; each makes LOG_READ_GETS_IN_FLIGHT_MAX requests at a time and keeps LOG_FOOTERS_MAX footers.
CONSUME_FETCHERS: Final = 8
# Bytes that all consume requests together are fetching from object stores.
CONSUME_BYTES_IN_FLIGHT_MAX: Final = 128 * MIB
# A blob is read by one request for all logs, as long as the request is no longer than this; blobs are usually smaller.
CONSUME_GET_BYTES_MAX: Final = 16 * MIB
assert CONSUME_GET_BYTES_MAX <= CONSUME_BYTES_IN_FLIGHT_MAX


class LogFetch(NamedTuple):
    """What to read of one log."""

    log: Log
    offset: int
    bytes_max: int
    """What the answer can take."""
    window_bytes: int
    """How much to fetch."""
    known_incarnation: int | None = None
    known_end: int = 0
    """The known end in that incarnation: a control record with a lower one is stale."""
    stop_offset: int | None = None
    """From this offset on the log is in memory and not fetched."""


class StoreRead(NamedTuple):
    """What was read of one log."""

    view: LogView
    as_of_ms: float
    batches: list[CachedBatch]
    """Without a gap from the offset on; none at the log's end, or if the request had no bytes left."""


class _LogRead:
    """The read of one log, under way."""

    def __init__(self, fetch: LogFetch) -> None:
        self.fetch, self.log, self.offset = fetch, fetch.log, fetch.offset
        self.view: LogView | None = None
        self.as_of_ms = LONG_AGO
        self.slices: list[EntrySlice] = []
        self.batches: list[CachedBatch] = []
        self.error: LlogError | None = None
        self.stale: LlogError | None = None
        """Why the metadata must be read again."""
        self.rounds = 0

    def has_records(self) -> bool:
        return self.error is None and self.view is not None and self.offset < self.view.next_offset

    def planned_bytes(self) -> int:
        return sum(self.fetch.window_bytes if s.byte_length is None else s.byte_length for s in self.slices)

    def useful_bytes(self) -> int:
        return min(self.planned_bytes(), self.fetch.bytes_max)

    def has_bytes(self) -> bool:
        """Whether a batch reaches the wanted offset."""
        chunks = [batch.chunk for batch in self.batches if batch.chunk is not None and len(batch.chunk.batches)]
        return any(int(chunk.batches.last_offset[-1]) >= self.fetch.offset for chunk in chunks)

    def outcome(self) -> StoreRead | LlogError:
        if self.error is not None:
            return self.error
        assert self.view is not None
        return StoreRead(self.view, self.as_of_ms, self.batches)


class StoreReader:
    def __init__(
        self,
        context: LogContext,
        ahead: ReadAhead,
        offload: Offload,
        *,
        clock: Callable[[], float],
        metrics: LogMetrics | None = None,
    ) -> None:
        self._context, self._ahead, self._offload, self._clock = context, ahead, offload, clock
        self._metrics = NoMetrics() if metrics is None else metrics
        self._fetchers = [Fetcher(context.find_object, metrics) for _ in range(CONSUME_FETCHERS)]
        self._budget = ByteBudget(CONSUME_BYTES_IN_FLIGHT_MAX)
        self._in_flight: dict[tuple[str, int, int | None], asyncio.Task[Buffer]] = {}

    async def read(self, fetches: Sequence[LogFetch], bytes_max: int) -> list[StoreRead | LlogError]:
        """One outcome per fetch, in order. Logs are read in this order until `bytes_max` are read; of the others only
        the view is returned."""
        reads = [_LogRead(fetch) for fetch in fetches]
        await self._view_all(reads)
        waiting = [read for read in reads if read.has_records()]
        while waiting and bytes_max > 0:
            wave, waiting = waiting[:CONSUME_SCANS_IN_FLIGHT_MAX], waiting[CONSUME_SCANS_IN_FLIGHT_MAX:]
            bytes_max = await self._read_wave(wave, bytes_max)
        return [read.outcome() for read in reads]

    async def _read_wave(self, wave: list[_LogRead], bytes_max: int) -> int:
        """Read these logs; returns how many bytes are left for others."""
        left = bytes_max
        while wave and left > 0:
            await asyncio.gather(*(self._plan(read) for read in wave))
            chosen: list[_LogRead] = []
            for read in wave:
                if left > 0:
                    chosen.append(read)
                    left -= read.useful_bytes()
            async with self._budget.take(sum(read.planned_bytes() for read in chosen)):
                await self._fetch_and_build(chosen)
            stale = [read for read in chosen if read.stale is not None]
            left += sum(read.useful_bytes() for read in stale)
            await asyncio.gather(*(self._view_again(read) for read in stale))
            # Where key compaction removed all fetched records, the next ones are wanted.
            empty = [read for read in chosen if not read.has_bytes() and read not in stale]
            wave = [read for read in (*stale, *empty) if read.has_records()]
        return left

    # -- control records ---------------------------------------------------------------------------------------------
    async def _view_all(self, reads: Sequence[_LogRead]) -> None:
        keys, as_of_ms = self._context.keys, self._clock()
        wanted = [key for r in reads for key in (keys.control(r.log), keys.compaction(r.log))]
        try:
            records = await get_all(self._context.metadata, wanted, strict=False)
        except StoreError as error:
            for read in reads:
                read.error = error
            return
        unsure: list[_LogRead] = []
        for read, control, compaction in zip(reads, records[::2], records[1::2], strict=True):
            read.as_of_ms = as_of_ms
            try:
                read.view = view_of(control, compaction)
            except FormatError as error:
                read.error = error
                continue
            if read.view is None or not _is_certain(read.view, read.fetch):
                unsure.append(read)
        await asyncio.gather(*(self._view_strictly(read) for read in unsure))

    async def _view_strictly(self, read: _LogRead) -> None:
        read.as_of_ms = self._clock()
        try:
            read.view = await view(self._context, read.log, strict=True)
            if not _covers(read.view, read.offset):
                read.view = await checked_view(self._context, read.log, read.offset, end_is_data=False)
        except LlogError as error:
            read.error = error

    async def _view_again(self, read: _LogRead) -> None:
        """Read the metadata again: an object is missing because its entry was replaced (R10)."""
        cause, read.stale = read.stale, None
        read.rounds += 1
        read.offset, read.batches, read.slices = read.fetch.offset, [], []
        self._metrics.count(READ_RESTARTS)
        if read.rounds >= LOG_READ_ROUNDS_MAX:
            read.error = InconsistentReadState(*read.log, f"offset {read.offset}: {cause}")
            return
        await self._context.back_off(read.rounds)
        if read.rounds >= LOG_READ_ROUNDS_MAX - LOG_READ_STRICT_ROUNDS:
            await self._view_strictly(read)
        else:
            await self._view_all([read])

    # -- index -------------------------------------------------------------------------------------------------------
    async def _plan(self, read: _LogRead) -> None:
        assert read.view is not None
        read.slices = []
        try:
            read.slices = await self._slices(read, read.view)
            if not read.slices:
                read.stale = InconsistentReadState(*read.log, "the index ends before the log does")
        except (ObjectNotFound, ObjectRangeInvalid) as error:
            read.stale = error
        except FormatError as error:
            read.error = InconsistentReadState(*read.log, f"offset {read.offset}: {error}")
        except LlogError as error:
            read.error = error

    async def _slices(self, read: _LogRead, log_view: LogView) -> list[EntrySlice]:
        slices: list[EntrySlice] = []
        left = read.fetch.window_bytes
        walk = IndexWalk(self._context, read.log, read.offset, log_view)
        while left > 0 and len(slices) < CONSUME_ENTRIES_MAX:
            entries = await walk.ahead()
            for entry in entries:
                one = whole_slice(entry)
                if one is None or (is_segment(entry) and (one.byte_length or 0) > left):
                    footer = await self._fetcher(entry.value.data_key).footer(entry)
                    one = plan_segment_part(footer, entry, walk.offset, left)
                slices.append(one)
                left -= left if one.byte_length is None else one.byte_length
                walk.passed(one.end_offset + 1)
                stopped = read.fetch.stop_offset is not None and walk.offset >= read.fetch.stop_offset
                if left <= 0 or one.end_offset < entry.end_offset or stopped:
                    return slices
            if not entries or walk.offset >= log_view.next_offset:
                break
        return slices

    # -- objects -----------------------------------------------------------------------------------------------------
    async def _fetch_and_build(self, reads: Sequence[_LogRead]) -> None:
        owners = [read for read in reads for _ in read.slices]
        ranges = [one.range for read in reads for one in read.slices]
        fetches = plan_object_fetches(ranges, gap_bytes_max=sys.maxsize, fetch_bytes_max=CONSUME_GET_BYTES_MAX)
        answers = await asyncio.gather(*(self._get(*fetch[:3]) for fetch in fetches), return_exceptions=True)
        buffers: list[Buffer] = [b""] * len(ranges)
        for fetch, answer in zip(fetches, answers, strict=True):
            for i in fetch.members:
                if isinstance(answer, (ObjectNotFound, ObjectRangeInvalid)):
                    owners[i].stale = answer
                elif isinstance(answer, LlogError):
                    owners[i].error = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    buffers[i] = fetch.part(answer, ranges[i])
        first = 0
        for read in reads:
            own = buffers[first : first + len(read.slices)]
            first += len(read.slices)
            if read.error is None and read.stale is None and read.slices:
                await self._build(read, own)

    async def _build(self, read: _LogRead, buffers: Sequence[Buffer]) -> None:
        assert read.view is not None
        slices = read.slices
        try:
            chunks = await self._offload.run(sum(map(len, buffers)), lambda: chunks_of(slices, buffers))
        except FormatError as error:
            read.error = InconsistentReadState(*read.log, f"offset {read.offset}: {error}")
            return
        self._metrics.count(READ_RECORDS, sum(int(chunk.batches.record_count.sum()) for chunk in chunks))
        for chunk in chunks:
            batch = _cached(chunk, read.view)
            read.batches.append(batch)
            if len(chunk.data):
                self._ahead.put(read.log, batch)
        read.offset = max(read.offset, chunks[-1].end_offset + 1)

    async def _get(self, uri: str, byte_offset: int, byte_length: int | None) -> Buffer:
        key = uri, byte_offset, byte_length
        task = self._in_flight.get(key)
        if task is None:
            task = self._in_flight[key] = asyncio.create_task(self._fetcher(uri).get(*key))
            task.add_done_callback(lambda done: self._got(key, done))
        # Shielded: others may wait for the same bytes when this request is cancelled.
        return await asyncio.shield(task)

    def _got(self, key: tuple[str, int, int | None], task: asyncio.Task[Buffer]) -> None:
        self._in_flight.pop(key, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved: all waiting requests may be gone

    def _fetcher(self, name: str) -> Fetcher:
        """Always the same fetcher for a name, because it keeps the footer."""
        return self._fetchers[zlib.crc32(name.encode()) % len(self._fetchers)]

    async def close(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def plan_segment_part(footer: SegmentFooter, entry: Entry, offset: int, bytes_max: int) -> EntrySlice:
    """The batches of a segment from the one with `offset` on: as many as fit, at least one if any is left."""
    rows = footer.entries
    first = stop = footer.batches_from(offset)
    if first < len(rows):
        ends = rows["byte_position"][first:].astype(np.int64) + rows["batch_length"][first:]
        fit = int(np.searchsorted(ends, int(rows["byte_position"][first]) + bytes_max, side="right"))
        stop = first + max(1, fit)
    part = plan_rows(footer, entry, first, stop)
    return part._replace(start_offset=min(offset, part.start_offset))


def _covers(log_view: LogView, offset: int) -> bool:
    return log_view.log_start_offset <= offset <= log_view.next_offset


def _is_certain(log_view: LogView, fetch: LogFetch) -> bool:
    """Whether this view answers the fetch without a strict read."""
    incarnation = log_view.control.incarnation
    if fetch.known_incarnation is not None and incarnation < fetch.known_incarnation:
        return False
    stale = incarnation == fetch.known_incarnation and log_view.next_offset < fetch.known_end
    return _covers(log_view, fetch.offset) and not stale


def _cached(chunk: Chunk, log_view: LogView) -> CachedBatch:
    return CachedBatch(
        chunk.start_offset,
        chunk.end_offset,
        (),
        incarnation=log_view.control.incarnation,
        committed_at_ms=LONG_AGO,
        compaction_version=log_view.compaction_version,
        chunk=chunk,
    )
