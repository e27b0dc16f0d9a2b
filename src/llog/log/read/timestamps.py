"""Offsets by timestamp, exact: the first record, in offset order, with at least the given timestamp.

The index answers most of it. An entry that is too old as a whole is skipped without reading it; a segment's footer
holds the newest timestamp of each batch, so only one batch is fetched; records of a `bytes-batch-v1` entry all have its
creation time, so it is never fetched. Records below the log's start never count, also where an entry straddles it.
Entries and footers only serve to skip: the answer is always a record that was read (or, of bare payloads, the entry's
creation time).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import numpy as np

from llog.errors import FormatError, InconsistentReadState, InvalidArgument, ObjectNotFound, ObjectRangeInvalid
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.limits import LOG_READ_COALESCE_BYTES_MAX
from llog.log.context import LogContext
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.metrics import READ_RESTARTS
from llog.log.read.fetch import Fetcher, is_segment
from llog.log.read.read import iter_runs, read_entries
from llog.log.read.records import RecordRun
from llog.log.read.segment_read import plan_rows, stream_batches
from llog.log.read.view import IndexWalk, LogView, view

T = TypeVar("T")


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp_ms: int


async def earliest_offset(context: LogContext, log: Log) -> int:
    """The first readable offset."""
    return (await view(context, log, strict=True)).log_start_offset


async def latest_offset(context: LogContext, log: Log) -> int:
    """The offset of the next record."""
    return (await view(context, log, strict=True)).next_offset


async def offset_for_timestamp(
    context: LogContext, log: Log, timestamp_ms: int, *, fetcher: Fetcher | None = None
) -> OffsetAndTimestamp | None:
    """The first record with a timestamp of at least `timestamp_ms`; None if there is none."""
    if timestamp_ms < 0:
        raise InvalidArgument("timestamp_ms", f"{timestamp_ms} is negative")
    seen = await view(context, log, strict=True)
    return await _first_since(context, log, seen, timestamp_ms, fetcher or Fetcher(context.find_object))


async def max_timestamp(context: LogContext, log: Log, *, fetcher: Fetcher | None = None) -> OffsetAndTimestamp | None:
    """The first record with the newest timestamp; None for a log without records."""
    fetcher = fetcher or Fetcher(context.find_object)
    seen = await view(context, log, strict=True)
    newest_ms = await _newest_ms(context, log, seen, fetcher)
    newest = None if newest_ms is None else await _first_since(context, log, seen, newest_ms, fetcher)
    if newest is None and newest_ms is not None:
        # An entry's timestamp is newer than its records, or retention removed the record: read all records.
        return await _newest_record(context, log, fetcher)
    return newest


def known_newest_ms(entry: Entry) -> int | None:
    """The timestamp of an entry's newest record; None if the entry does not hold it."""
    if entry.value.encoding == BYTES_BATCH:
        return entry.value.created_at_ms
    return entry.value.max_timestamp_ms if entry.value.max_timestamp_ms >= 0 else None


async def _visit(
    context: LogContext,
    log: Log,
    seen: LogView,
    fetcher: Fetcher,
    visitor: Callable[[Entry, int], Awaitable[T | None]],
) -> T | None:
    """Call the visitor with every entry and its first readable offset, until it returns an answer."""
    walk = IndexWalk(context, log, seen.log_start_offset, seen)
    while entries := await walk.ahead():
        for entry in entries:
            try:
                answer = await visitor(entry, walk.offset)
            except (ObjectNotFound, ObjectRangeInvalid) as error:
                fetcher.metrics.count(READ_RESTARTS)
                await walk.retry(error)  # compaction replaced the entry (R10)
                break
            except FormatError as error:
                raise InconsistentReadState(*log, f"offset {walk.offset}: {error}") from error
            if answer is not None:
                return answer
            walk.passed(entry.end_offset + 1)
    return None


async def _first_since(
    context: LogContext, log: Log, seen: LogView, timestamp_ms: int, fetcher: Fetcher
) -> OffsetAndTimestamp | None:
    async def first_in(entry: Entry, offset: int) -> OffsetAndTimestamp | None:
        newest_ms = known_newest_ms(entry)
        if newest_ms is not None and newest_ms < timestamp_ms:
            return None
        if entry.value.encoding == BYTES_BATCH:
            return OffsetAndTimestamp(offset, entry.value.created_at_ms)
        async with aclosing(_runs_since(fetcher, entry, offset, timestamp_ms)) as runs:
            async for run in runs:
                fitting = np.flatnonzero(run.columns.timestamps_ms >= timestamp_ms)
                if len(fitting):
                    return _row(run, int(fitting[0]))
        return None

    return await _visit(context, log, seen, fetcher, first_in)


async def _runs_since(
    fetcher: Fetcher, entry: Entry, offset: int, timestamp_ms: int
) -> AsyncGenerator[RecordRun, None]:
    """Runs of an entry that may hold the answer; of a segment, only the batches that may."""
    if not is_segment(entry):
        async with aclosing(read_entries(fetcher, (entry,), offset)) as runs:
            async for run in runs:
                yield run
        return
    footer = await fetcher.footer(entry)
    first = footer.batches_from(offset)
    newest_ms = footer.entries["max_timestamp_ms"][first:].astype(np.int64)
    for row in (np.flatnonzero(newest_ms >= timestamp_ms) + first).tolist():
        wanted = plan_rows(footer, entry, row, row + 1)
        async with aclosing(stream_batches(fetcher, wanted, offset, LOG_READ_COALESCE_BYTES_MAX)) as runs:
            async for run in runs:
                yield run


async def _newest_ms(context: LogContext, log: Log, seen: LogView, fetcher: Fetcher) -> int | None:
    """The newest timestamp in the log; reads only entries that do not hold theirs or straddle the log's start."""
    newest: list[int] = []

    async def collect(entry: Entry, offset: int) -> None:
        entry_newest_ms = known_newest_ms(entry)
        straddles = entry.start_offset < offset and entry.value.encoding != BYTES_BATCH
        if entry_newest_ms is None or straddles:
            entry_newest_ms = await _newest_in(fetcher, entry, offset)
        if entry_newest_ms is not None:
            newest[:] = [max([entry_newest_ms, *newest])]

    await _visit(context, log, seen, fetcher, collect)
    return newest[0] if newest else None


async def _newest_in(fetcher: Fetcher, entry: Entry, offset: int) -> int | None:
    """The newest timestamp among an entry's records from `offset` on."""
    newest: list[int] = []
    if is_segment(entry):
        footer = await fetcher.footer(entry)
        first = footer.batches_from(offset)
        # The footer holds the timestamps of batches that lie wholly behind `offset`; at most one batch straddles it.
        whole = first + int(first < len(footer.entries) and int(footer.entries["base_offset"][first]) < offset)
        newest += footer.entries["max_timestamp_ms"][whole:].tolist()
        straddling = plan_rows(footer, entry, first, whole)
        runs = stream_batches(fetcher, straddling, offset, LOG_READ_COALESCE_BYTES_MAX)
    else:
        runs = read_entries(fetcher, (entry,), offset)
    async with aclosing(runs):
        async for run in runs:
            newest += [int(run.columns.timestamps_ms.max())] if len(run.columns) else []
    return max(newest, default=None)


async def _newest_record(context: LogContext, log: Log, fetcher: Fetcher) -> OffsetAndTimestamp | None:
    best: OffsetAndTimestamp | None = None
    start = await earliest_offset(context, log)
    async with aclosing(iter_runs(context, log, start, fetcher=fetcher)) as runs:
        async for run in runs:
            if len(run.columns):
                newest = _row(run, int(run.columns.timestamps_ms.argmax()))
                best = newest if best is None or newest.timestamp_ms > best.timestamp_ms else best
    return best


def _row(run: RecordRun, row: int) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(int(run.columns.offsets[row]), int(run.columns.timestamps_ms[row]))
