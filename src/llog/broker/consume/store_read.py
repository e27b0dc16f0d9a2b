"""Reading for consumers: many logs at once, from the stores, as chunks.

    look at all control records (one call)                     errors and ends are found here
    scan the index of each log that has records, plan pieces   (store_plan)
    fetch: one request per object over all logs of the request
    check and build chunks; keep them for who reads on         (read_ahead)

What must stay true: "no such offset" and "no such log" are said after a strict read only (h10); a 404 means "look again
with fresh metadata", a bounded number of times and at last strictly (R10); one log's trouble is that log's answer.
Requests that want the same bytes at the same time share one GET.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from llog.broker.consume.chunks import Chunk
from llog.broker.consume.read_ahead import ReadAhead
from llog.broker.consume.store_plan import Piece, build_chunks, plan_part, plan_piece, plan_requests
from llog.broker.offload import BytesGate, Offload
from llog.broker.tail.cache import LONG_AGO
from llog.broker.tail.shelf import CachedBatch
from llog.errors import FormatError, InconsistentReadState, LlogError, ObjectNotFound, ObjectRangeInvalid, StoreError
from llog.formats.buffers import Buffer
from llog.limits import LOG_READ_ROUNDS_MAX, LOG_READ_STRICT_ROUNDS, MIB
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.metrics import READ_RECORDS, READ_RESTARTS, LogMetrics, NoMetrics
from llog.log.read.fetch import Fetcher
from llog.log.read.view import IndexWalk, LogView, checked_view, view, view_of

# Logs whose index is scanned at the same time by one request, and entries that one answer takes of a log.
CONSUME_SCANS_IN_FLIGHT_MAX: Final = 16
CONSUME_ENTRIES_MAX: Final = 1_024
# Each makes LOG_READ_GETS_IN_FLIGHT_MAX requests at a time and keeps LOG_FOOTERS_MAX footers.
CONSUME_FETCHERS: Final = 8
# Bytes that all requests together have asked object stores for and not yet got.
CONSUME_BYTES_IN_FLIGHT_MAX: Final = 128 * MIB


class Want(NamedTuple):
    log: Log
    offset: int
    bytes_max: int
    """What the answer can take of this log."""
    window_bytes: int
    """How much to fetch, from entry to entry."""
    known_life: int | None = None
    known_end: int = 0
    """Where that life's end was seen: a control record that says less is from the past."""
    stop_offset: int | None = None
    """From here on it is in memory; nothing behind is fetched."""


class Found(NamedTuple):
    seen: LogView
    as_of_ms: float
    batches: list[CachedBatch]
    """In a row from the offset on; none at the end, or when the request had no room left."""


Outcome = Found | LlogError


class _Reading:
    """One log on its way."""

    def __init__(self, want: Want) -> None:
        self.want, self.log, self.offset = want, want.log, want.offset
        self.seen: LogView | None = None
        self.as_of_ms = LONG_AGO
        self.pieces: list[Piece] = []
        self.batches: list[CachedBatch] = []
        self.error: LlogError | None = None
        self.trouble: LlogError | None = None
        """Why metadata must be looked at again."""
        self.rounds = 0

    def has_records(self) -> bool:
        return self.error is None and self.seen is not None and self.offset < self.seen.next_offset

    def planned_bytes(self) -> int:
        return sum(self.want.window_bytes if p.byte_length is None else p.byte_length for p in self.pieces)

    def useful_bytes(self) -> int:
        return min(self.planned_bytes(), self.want.bytes_max)

    def outcome(self) -> Outcome:
        if self.error is not None:
            return self.error
        assert self.seen is not None
        return Found(self.seen, self.as_of_ms, self.batches)


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
        self._room = BytesGate(CONSUME_BYTES_IN_FLIGHT_MAX)
        self._in_flight: dict[tuple[str, int, int | None], asyncio.Task[Buffer]] = {}

    async def read(self, wants: Sequence[Want], bytes_max: int) -> list[Outcome]:
        """One outcome per want, in order. Logs are read in this order until `bytes_max` are found; of the others only
        where they end is told."""
        readings = [_Reading(want) for want in wants]
        await self._look(readings)
        waiting = [reading for reading in readings if reading.has_records()]
        while waiting and bytes_max > 0:
            wave, waiting = waiting[:CONSUME_SCANS_IN_FLIGHT_MAX], waiting[CONSUME_SCANS_IN_FLIGHT_MAX:]
            bytes_max = await self._read_wave(wave, bytes_max)
        return [reading.outcome() for reading in readings]

    async def _read_wave(self, wave: list[_Reading], bytes_max: int) -> int:
        """How many bytes are left for others."""
        left = bytes_max
        while wave and left > 0:
            await asyncio.gather(*(self._plan(reading) for reading in wave))
            chosen: list[_Reading] = []
            for reading in wave:
                if left > 0:
                    chosen.append(reading)
                    left -= reading.useful_bytes()
            async with self._room.taking(sum(reading.planned_bytes() for reading in chosen)):
                await self._fetch_and_build(chosen)
            troubled = [reading for reading in chosen if reading.trouble is not None]
            left += sum(reading.useful_bytes() for reading in troubled)
            await asyncio.gather(*(self._look_again(reading) for reading in troubled))
            # Where key compaction left nothing of what was fetched, the next records are wanted.
            nothing = [reading for reading in chosen if not _has_bytes(reading) and reading not in troubled]
            wave = [reading for reading in (*troubled, *nothing) if reading.has_records()]
        return left

    # -- control records ---------------------------------------------------------------------------------------------
    async def _look(self, readings: Sequence[_Reading]) -> None:
        keys, as_of_ms = self._context.keys, self._clock()
        wanted = [key for r in readings for key in (keys.control(r.log), keys.compaction(r.log))]
        try:
            records = await get_all(self._context.metadata, wanted, strict=False)
        except StoreError as error:
            for reading in readings:
                reading.error = error
            return
        doubtful: list[_Reading] = []
        for reading, control, compaction in zip(readings, records[::2], records[1::2], strict=True):
            reading.as_of_ms = as_of_ms
            try:
                reading.seen = view_of(control, compaction)
            except FormatError as error:
                reading.error = error
                continue
            if reading.seen is None or not _fits(reading.seen, reading.want):
                doubtful.append(reading)
        await asyncio.gather(*(self._look_strictly(reading) for reading in doubtful))

    async def _look_strictly(self, reading: _Reading) -> None:
        reading.as_of_ms = self._clock()
        try:
            reading.seen = await view(self._context, reading.log, strict=True)
            if not _covers(reading.seen, reading.offset):
                reading.seen = await checked_view(self._context, reading.log, reading.offset, end_is_data=False)
        except LlogError as error:
            reading.error = error

    async def _look_again(self, reading: _Reading) -> None:
        """An object was gone: the entry changed under us (R10)."""
        trouble, reading.trouble = reading.trouble, None
        reading.rounds += 1
        reading.offset, reading.batches, reading.pieces = reading.want.offset, [], []
        self._metrics.count(READ_RESTARTS)
        if reading.rounds >= LOG_READ_ROUNDS_MAX:
            reading.error = InconsistentReadState(*reading.log, f"offset {reading.offset}: {trouble}")
            return
        await self._context.back_off(reading.rounds)
        if reading.rounds >= LOG_READ_ROUNDS_MAX - LOG_READ_STRICT_ROUNDS:
            await self._look_strictly(reading)
        else:
            await self._look([reading])

    # -- index -------------------------------------------------------------------------------------------------------
    async def _plan(self, reading: _Reading) -> None:
        assert reading.seen is not None
        reading.pieces = []
        try:
            reading.pieces = await self._pieces(reading, reading.seen)
            if not reading.pieces:
                reading.trouble = InconsistentReadState(*reading.log, "the index ends before the log does")
        except (ObjectNotFound, ObjectRangeInvalid) as error:
            reading.trouble = error
        except FormatError as error:
            reading.error = InconsistentReadState(*reading.log, f"offset {reading.offset}: {error}")
        except LlogError as error:
            reading.error = error

    async def _pieces(self, reading: _Reading, seen: LogView) -> list[Piece]:
        pieces: list[Piece] = []
        left = reading.want.window_bytes
        walk = IndexWalk(self._context, reading.log, reading.offset, seen)
        while left > 0 and len(pieces) < CONSUME_ENTRIES_MAX:
            entries = await walk.ahead()
            for entry in entries:
                piece = plan_piece(entry, left)
                if piece is None:
                    footer = await self._fetcher(entry.value.data_key).footer(entry)
                    piece = plan_part(footer, entry, walk.offset, left)
                pieces.append(piece)
                left -= left if piece.byte_length is None else piece.byte_length
                walk.passed(piece.end_offset + 1)
                stopped = reading.want.stop_offset is not None and walk.offset >= reading.want.stop_offset
                if left <= 0 or piece.end_offset < entry.end_offset or stopped:
                    return pieces
            if not entries or walk.offset >= seen.next_offset:
                break
        return pieces

    # -- objects -----------------------------------------------------------------------------------------------------
    async def _fetch_and_build(self, readings: Sequence[_Reading]) -> None:
        owned = [(reading, piece) for reading in readings for piece in reading.pieces]
        pieces = [piece for _, piece in owned]
        requests = plan_requests(pieces)
        answers = await asyncio.gather(*(self._get(*request[:3]) for request in requests), return_exceptions=True)
        buffers: list[Buffer] = [b""] * len(pieces)
        for request, answer in zip(requests, answers, strict=True):
            for i in request.members:
                if isinstance(answer, (ObjectNotFound, ObjectRangeInvalid)):
                    owned[i][0].trouble = answer
                elif isinstance(answer, LlogError):
                    owned[i][0].error = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    begin, length = pieces[i].byte_offset - request.byte_offset, pieces[i].byte_length
                    buffers[i] = answer if length is None else memoryview(answer)[begin : begin + length]
        first = 0
        for reading in readings:
            own = buffers[first : first + len(reading.pieces)]
            first += len(reading.pieces)
            if reading.error is None and reading.trouble is None and reading.pieces:
                await self._build(reading, own)

    async def _build(self, reading: _Reading, buffers: Sequence[Buffer]) -> None:
        assert reading.seen is not None
        pieces = reading.pieces
        try:
            chunks = await self._offload.run(sum(map(len, buffers)), lambda: build_chunks(pieces, buffers))
        except FormatError as error:
            reading.error = InconsistentReadState(*reading.log, f"offset {reading.offset}: {error}")
            return
        self._metrics.count(READ_RECORDS, sum(int(chunk.batches.record_count.sum()) for chunk in chunks))
        for chunk in chunks:
            batch = _fetched(chunk, reading.seen)
            reading.batches.append(batch)
            if len(chunk.data):
                self._ahead.put(reading.log, batch)
        reading.offset = max(reading.offset, chunks[-1].end_offset + 1)

    async def _get(self, uri: str, byte_offset: int, byte_length: int | None) -> Buffer:
        key = uri, byte_offset, byte_length
        task = self._in_flight.get(key)
        if task is None:
            task = self._in_flight[key] = asyncio.create_task(self._fetcher(uri).get(*key))
            task.add_done_callback(lambda done: self._got(key, done))
        # Others may wait for the same bytes: who leaves does not take them away.
        return await asyncio.shield(task)

    def _got(self, key: tuple[str, int, int | None], task: asyncio.Task[Buffer]) -> None:
        self._in_flight.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may wait any more

    def _fetcher(self, name: str) -> Fetcher:
        """Always the same one for a name: it keeps the footer."""
        return self._fetchers[zlib.crc32(name.encode()) % len(self._fetchers)]

    async def close(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _covers(seen: LogView, offset: int) -> bool:
    return seen.log_start_offset <= offset <= seen.next_offset


def _fits(seen: LogView, want: Want) -> bool:
    """Can this view be believed without a strict look?"""
    if want.known_life is not None and seen.control.incarnation < want.known_life:
        return False
    behind = seen.control.incarnation == want.known_life and seen.next_offset < want.known_end
    return _covers(seen, want.offset) and not behind


def _has_bytes(reading: _Reading) -> bool:
    """Is there a batch that reaches the offset asked for?"""
    chunks = [batch.chunk for batch in reading.batches if batch.chunk is not None and len(batch.chunk.batches)]
    return any(int(chunk.batches.last_offset[-1]) >= reading.want.offset for chunk in chunks)


def _fetched(chunk: Chunk, seen: LogView) -> CachedBatch:
    return CachedBatch(
        chunk.start_offset,
        chunk.end_offset,
        (),
        incarnation=seen.control.incarnation,
        committed_at_ms=LONG_AGO,
        compaction_version=seen.compaction_version,
        chunk=chunk,
    )
