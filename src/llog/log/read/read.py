"""Read the records of a log from an offset on.

    IndexWalk     which entries tile the log from the offset on            (view)
    Fetcher       a window of entries, by as few requests as possible      (fetch; long segments: segment_read)
    decode        bytes to records, checked against their entries          (slices)

A missing object or a gap in the index means stale metadata, never the end of the log (R10, h21); what does not fit
after strict rounds is `InconsistentReadState`. A reader holds the bytes of one window or range (less than twice the
budget, unless one batch is larger) and a few MiB of decoded records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from llog.errors import FormatError, InconsistentReadState, ObjectNotFound, ObjectRangeInvalid
from llog.limits import KIB, LOG_READ_COALESCE_BYTES_MAX
from llog.log.context import LogContext
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.metrics import READ_RECORDS, READ_RESTARTS
from llog.log.read.fetch import Fetcher, plan_window
from llog.log.read.records import LogRecord, RecordRun
from llog.log.read.segment_read import stream_segment
from llog.log.read.slices import decode_slices
from llog.log.read.view import IndexWalk, LogView, checked_view, view

# Ranges of a streamed segment are at least this long, whatever the budget: a request costs more than these bytes.
LOG_READ_RANGE_BYTES_MIN: Final = 64 * KIB

__all__ = ["LogView", "checked_view", "iter_runs", "read_entries", "read_offset", "view"]


async def iter_runs(
    context: LogContext,
    log: Log,
    offset: int,
    *,
    end_offset: int | None = None,
    fetcher: Fetcher | None = None,
    bytes_max: int = LOG_READ_COALESCE_BYTES_MAX,
) -> AsyncGenerator[RecordRun, None]:
    """Runs of records from `offset` to the current end of the log, without a gap.

    With `end_offset`, no more is fetched than needed to reach it; the last run may reach beyond it.
    """
    seen = await checked_view(context, log, offset, end_is_data=False)
    walk = IndexWalk(context, log, offset, seen)
    async with aclosing(_runs(walk, log, end_offset, fetcher or Fetcher(context.find_object), bytes_max)) as runs:
        async for run in runs:
            yield run


async def read_offset(context: LogContext, log: Log, offset: int, *, fetcher: Fetcher | None = None) -> LogRecord:
    """The record at `offset`, or the next one if key compaction removed it."""
    fetcher = fetcher or Fetcher(context.find_object)
    while True:
        seen = await checked_view(context, log, offset, end_is_data=True)
        walk = IndexWalk(context, log, offset, seen)
        async with aclosing(_runs(walk, log, offset, fetcher, LOG_READ_COALESCE_BYTES_MAX)) as runs:
            async for run in runs:
                for record in run.records():
                    return record
        offset = walk.offset


async def read_entries(
    fetcher: Fetcher,
    entries: tuple[Entry, ...],
    offset: int,
    *,
    end_offset: int | None = None,
    bytes_max: int = LOG_READ_COALESCE_BYTES_MAX,
) -> AsyncGenerator[RecordRun, None]:
    """The records of the first of these entries, and of as many others as the budget allows, from `offset` on."""
    window = plan_window(entries, bytes_max, offset, end_offset)
    if window:
        buffers = await fetcher.window(window, bytes_max)
        for run in decode_slices([(wanted.entry, data) for wanted, data in zip(window, buffers, strict=True)], offset):
            yield run
        return
    range_bytes = max(bytes_max, LOG_READ_RANGE_BYTES_MIN)
    streamed = stream_segment(fetcher, entries[0], offset, end_offset=end_offset, bytes_max=range_bytes)
    async with aclosing(streamed) as runs:
        async for run in runs:
            yield run


async def _runs(
    walk: IndexWalk, log: Log, end_offset: int | None, fetcher: Fetcher, bytes_max: int
) -> AsyncGenerator[RecordRun, None]:
    while end_offset is None or walk.offset <= end_offset:
        entries = await walk.ahead(end_offset)
        if not entries:
            return
        try:
            async with aclosing(
                read_entries(fetcher, entries, walk.offset, end_offset=end_offset, bytes_max=bytes_max)
            ) as runs:
                async for run in runs:
                    walk.passed(run.next_offset)
                    fetcher.metrics.count(READ_RECORDS, len(run.columns))
                    yield run
        except (ObjectNotFound, ObjectRangeInvalid) as error:
            # Compaction replaced the entry and its object is deleted (R10).
            fetcher.metrics.count(READ_RESTARTS)
            await walk.retry(error)
        except FormatError as error:
            raise InconsistentReadState(*log, f"offset {walk.offset}: {error}") from error
