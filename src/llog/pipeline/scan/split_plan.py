"""The driver's part of reading: from wanted offsets to pieces and splits, through the sparse index.

What must stay true: entries come from `IndexWalk`, so a gap, a phantom or an entry that changed mean what they mean to
every reader (R9, R10); planning reads no object; the logs of a plan are walked several at a time, never all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from llog.errors import LlogError, OffsetOutOfRange, PartitionNotInitialized, RecordsLost
from llog.limits import SPLIT_BYTES_DEFAULT, SPLIT_PLAN_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext
from llog.log.index import Entry
from llog.log.read.timestamps import known_newest_ms
from llog.log.read.view import IndexWalk, checked_view, view
from llog.pipeline.scan.splits import Keep, LogRange, Piece, Split, pieces_of, plan_splits

_log: Final = logging.getLogger("llog.pipeline")


async def splits_of(
    context: LogContext,
    ranges: Sequence[LogRange],
    *,
    split_bytes: int = SPLIT_BYTES_DEFAULT,
    splits_min: int = 1,
    keep: Keep | None = None,
) -> list[Split]:
    """Splits that tile the ranges; without the entries that `keep` refuses."""
    pieces = [piece for found in await gathered_pieces(context, ranges, keep=keep) for piece in found]
    return plan_splits(pieces, split_bytes, splits_min=splits_min)


async def plan_again(
    context: LogContext,
    ranges: Sequence[LogRange],
    *,
    split_bytes: int = SPLIT_BYTES_DEFAULT,
    fail_on_data_loss: bool = True,
) -> list[Split]:
    """Splits of what is left of an older plan, whose objects are gone (R10): compacted since, or lost."""
    left: list[LogRange] = []
    for wanted in ranges:
        lost = await _lost(context, wanted)
        if lost is None:
            left.append(wanted)
            continue
        rest, reason = lost
        if fail_on_data_loss:
            raise RecordsLost(*wanted.log, wanted.start_offset, reason)
        _log.warning("%s: offsets from %d on are lost: %s", wanted.log, wanted.start_offset, reason)
        left += [] if rest is None else [rest]
    return await splits_of(context, left, split_bytes=split_bytes)


async def _lost(context: LogContext, wanted: LogRange) -> tuple[LogRange | None, str] | None:
    """What is left of a range, and why not all; None when it is all there."""
    try:
        seen = await view(context, wanted.log, strict=True)
    except PartitionNotInitialized:
        return None, "its topic was deleted"
    if wanted.incarnation is not None and seen.control.incarnation != wanted.incarnation:
        return None, "its topic was deleted and created again"
    start = max(wanted.start_offset, seen.log_start_offset)
    if start == wanted.start_offset:
        return None
    rest = wanted._replace(start_offset=start) if start < wanted.stop_offset else None
    return rest, f"the log begins at {seen.log_start_offset} now"


async def gathered_pieces(
    context: LogContext, ranges: Sequence[LogRange], *, keep: Keep | None = None, bytes_max: int | None = None
) -> list[list[Piece]]:
    """The pieces of each range, or of its beginning (`pieces_between`)."""
    slots = asyncio.Semaphore(SPLIT_PLAN_LOGS_IN_FLIGHT_MAX)

    async def one(wanted: LogRange) -> list[Piece]:
        async with slots:
            return await pieces_between(context, wanted, keep=keep, bytes_max=bytes_max)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(wanted)) for wanted in ranges]
    except* LlogError as failed:
        raise first_error(failed) from None
    return [task.result() for task in tasks]


async def pieces_between(
    context: LogContext, wanted: LogRange, *, keep: Keep | None = None, bytes_max: int | None = None
) -> list[Piece]:
    """The pieces that tile a range, or its beginning: with `bytes_max` no more is walked than it takes to pass it."""
    log, offset, stop_offset, incarnation = wanted
    seen = await checked_view(context, log, offset, end_is_data=False)
    if incarnation is not None and seen.control.incarnation != incarnation:
        raise RecordsLost(*log, offset, "the topic was deleted and created again")
    pieces: list[Piece] = []
    size = 0
    walk = IndexWalk(context, log, offset, seen)
    while walk.offset < stop_offset and (bytes_max is None or size < bytes_max):
        entries = await walk.ahead(stop_offset - 1)
        if not entries:
            raise OffsetOutOfRange(*log, stop_offset, seen.log_start_offset, walk.offset)
        rest = LogRange(log, walk.offset, stop_offset)
        found = list(pieces_of(rest, entries, keep))
        pieces += found
        size += sum(piece.wanted_bytes() for piece in found)
        walk.passed(entries[-1].end_offset + 1)
    return pieces


def newer_than(timestamp_ms: int) -> Keep:
    """Refuses entries whose newest record, as they tell, is older."""

    def keep(entry: Entry) -> bool:
        newest_ms = known_newest_ms(entry)
        return newest_ms is None or newest_ms >= timestamp_ms

    return keep


def first_error(failed: BaseExceptionGroup[LlogError]) -> LlogError:
    """One of those a group of tasks ended by: the others mostly say the same."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LlogError)
    return error
