"""What a reader asks for, as one value, and the plan that answers it: the same for Spark and for `llog.scan`.

What must stay true: narrowing (a pushed filter) only ever leaves out what its filter would refuse, and everything that
it refuses, so that whoever pushed it need not look again.
"""

from __future__ import annotations

import msgspec

from llog.errors import InvalidArgument, OffsetOutOfRange, PartitionNotInitialized, RecordsLost
from llog.limits import SPLIT_BYTES_DEFAULT, SPLIT_BYTES_MAX, SPLIT_BYTES_MIN, SPLITS_MAX
from llog.log.context import LogContext
from llog.log.keys import OFFSET_MAX, PARTITION_MAX
from llog.pipeline.scan.positions import LATEST, Positions, offsets_at, ranges_between
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.split_plan import newer_than, plan_again, splits_of
from llog.pipeline.scan.splits import LogRange, Split
from llog.pipeline.scan.subscription import Subscription, find_logs


class Narrowing(msgspec.Struct, frozen=True):
    """What filters leave of the logs; None: all."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_from: int = 0
    partition_before: int = PARTITION_MAX + 1
    offset_from: int = 0
    offset_before: int = OFFSET_MAX + 1

    def of(self, wanted: LogRange) -> LogRange | None:
        log, start, stop = wanted.log, wanted.start_offset, wanted.stop_offset
        if self.topics is not None and log.topic not in self.topics:
            return None
        if self.partitions is not None and log.partition not in self.partitions:
            return None
        if not self.partition_from <= log.partition < self.partition_before:
            return None
        start, stop = max(start, self.offset_from), min(stop, self.offset_before)
        return wanted._replace(start_offset=start, stop_offset=stop) if start < stop else None


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True):
    subscription: Subscription
    starting: Positions = Positions("startingOffsets")
    ending: Positions = Positions("endingOffsets", all_logs=LATEST)
    split_bytes: int = SPLIT_BYTES_DEFAULT
    splits_min: int = 1
    fail_on_data_loss: bool = True
    narrowing: Narrowing = Narrowing()
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
    narrowed = [left for wanted in ranges if (left := request.narrowing.of(wanted)) is not None]
    return await splits_between(context, request, narrowed)


async def splits_between(context: LogContext, request: ScanRequest, ranges: list[LogRange]) -> list[Split]:
    since_us = request.shape.since_us
    # A record has whole milliseconds: the first that can fit is the next one.
    keep = None if since_us is None else newer_than(-(-since_us // 1_000))
    size = request.split_bytes
    try:
        return await splits_of(context, ranges, split_bytes=size, splits_min=request.splits_min, keep=keep)
    except (OffsetOutOfRange, PartitionNotInitialized, RecordsLost):
        # Retention or a deletion came since the ranges were made.
        return await plan_again(context, ranges, split_bytes=size, fail_on_data_loss=request.fail_on_data_loss)
