"""The plan of a read: from a `ScanRequest` to splits, through the sparse index. The same for Spark and `llog.scan`.

Entries come from `IndexWalk`, so a gap, a phantom and a changed entry mean what they mean to every reader (R9, R10).
Planning reads no object, and walks a bounded number of logs at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from llog.concurrency import gather_bounded
from llog.errors import InvalidArgument, OffsetOutOfRange, PartitionNotInitialized, RecordsLost
from llog.limits import (
    SPLIT_BYTES_DEFAULT,
    SPLIT_BYTES_MAX,
    SPLIT_BYTES_MIN,
    SPLIT_PLAN_LOGS_IN_FLIGHT_MAX,
    SPLITS_MAX,
)
from llog.log.context import LogContext
from llog.log.read.view import IndexWalk, checked_view, view
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.splits import ScanRange, Split, SplitPart, parts_of, plan_splits
from llog.pipeline.scan.subscription import LATEST, ReadBound, Subscription, find_logs, offsets_at, ranges_between

_log: Final = logging.getLogger("llog.pipeline")


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True):
    subscription: Subscription
    starting: ReadBound = ReadBound("startingOffsets")
    ending: ReadBound = ReadBound("endingOffsets", all_logs=LATEST)
    split_bytes: int = SPLIT_BYTES_DEFAULT
    splits_min: int = 1
    fail_on_data_loss: bool = True
    shape: Shape = Shape()

    def __post_init__(self) -> None:
        if not SPLIT_BYTES_MIN <= self.split_bytes <= SPLIT_BYTES_MAX:
            reason = f"{self.split_bytes} must be from {SPLIT_BYTES_MIN} to {SPLIT_BYTES_MAX}"
            raise InvalidArgument("splitBytes", reason)
        if not 1 <= self.splits_min <= SPLITS_MAX:
            raise InvalidArgument("minPartitions", f"{self.splits_min} must be from 1 to {SPLITS_MAX}")


async def plan_scan(context: LogContext, request: ScanRequest) -> list[Split]:
    ends = await find_logs(context, request.subscription)
    starts = await offsets_at(context, request.starting, ends)
    stops = await offsets_at(context, request.ending, ends)
    ranges = ranges_between(
        starts,
        stops,
        ends,
        starting_option=request.starting.option,
        ending_option=request.ending.option,
        fail_on_data_loss=request.fail_on_data_loss,
    )
    return await splits_between(context, request, ranges)


async def splits_between(context: LogContext, request: ScanRequest, ranges: list[ScanRange]) -> list[Split]:
    size = request.split_bytes
    try:
        return await splits_of(context, ranges, split_bytes=size, splits_min=request.splits_min)
    except (OffsetOutOfRange, PartitionNotInitialized, RecordsLost):
        # Retention or a deletion happened since the ranges were computed.
        return await plan_again(context, ranges, split_bytes=size, fail_on_data_loss=request.fail_on_data_loss)


async def splits_of(
    context: LogContext,
    ranges: Sequence[ScanRange],
    *,
    split_bytes: int = SPLIT_BYTES_DEFAULT,
    splits_min: int = 1,
) -> list[Split]:
    """Splits that tile the ranges."""
    parts = [part for group in await gather_parts(context, ranges) for part in group]
    return plan_splits(parts, split_bytes, splits_min=splits_min)


async def plan_again(
    context: LogContext,
    ranges: Sequence[ScanRange],
    *,
    split_bytes: int = SPLIT_BYTES_DEFAULT,
    fail_on_data_loss: bool = True,
) -> list[Split]:
    """Splits of the rest of an older plan when its objects are gone (R10): compacted since, or lost."""
    left: list[ScanRange] = []
    for wanted in ranges:
        loss = await _find_loss(context, wanted)
        if loss is None:
            left.append(wanted)
            continue
        rest, reason = loss
        if fail_on_data_loss:
            raise RecordsLost(*wanted.log, wanted.start_offset, reason)
        _log.warning("%s: records from offset %d on are lost: %s", wanted.log, wanted.start_offset, reason)
        left += [] if rest is None else [rest]
    return await splits_of(context, left, split_bytes=split_bytes)


async def _find_loss(context: LogContext, wanted: ScanRange) -> tuple[ScanRange | None, str] | None:
    """The rest of a range and why some of it is lost; None if nothing is lost."""
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
    return rest, f"the log now begins at offset {seen.log_start_offset}"


async def gather_parts(
    context: LogContext, ranges: Sequence[ScanRange], *, bytes_max: int | None = None
) -> list[list[SplitPart]]:
    """The parts of each range, or of its beginning (`parts_between`)."""

    async def walk(wanted: ScanRange) -> list[SplitPart]:
        return await parts_between(context, wanted, bytes_max=bytes_max)

    return await gather_bounded(ranges, walk, limit=SPLIT_PLAN_LOGS_IN_FLIGHT_MAX)


async def parts_between(context: LogContext, wanted: ScanRange, *, bytes_max: int | None = None) -> list[SplitPart]:
    """The parts that tile a range. With `bytes_max` the walk stops once the parts exceed it."""
    log, offset, stop_offset, incarnation = wanted
    seen = await checked_view(context, log, offset, end_is_data=False)
    if incarnation is not None and seen.control.incarnation != incarnation:
        raise RecordsLost(*log, offset, "the topic was deleted and created again")
    parts: list[SplitPart] = []
    size = 0
    walk = IndexWalk(context, log, offset, seen)
    while walk.offset < stop_offset and (bytes_max is None or size < bytes_max):
        entries = await walk.ahead(stop_offset - 1)
        if not entries:
            raise OffsetOutOfRange(*log, stop_offset, seen.log_start_offset, walk.offset)
        rest = ScanRange(log, walk.offset, stop_offset)
        added = list(parts_of(rest, entries))
        parts += added
        size += sum(part.wanted_bytes() for part in added)
        walk.passed(entries[-1].end_offset + 1)
    return parts
