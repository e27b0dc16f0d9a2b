"""From how a user names a position (earliest, latest, an offset, a timestamp) to offsets of each log.

A position is an offset, or `EARLIEST` (-2), or `LATEST` (-1), as in Kafka's own JSON. A timestamp means the first
record, in offset order, that is at least as new; it is exact (`log.timestamps`).

What must stay true: an offset outside its log is an error that names the option, the log and the offset, never moved
in silence; one below the log's start is lost data, which is an error unless the caller said that it need not be
(`fail_on_data_loss`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from llog.errors import InvalidArgument, LlogError, OffsetOutOfRange, RecordsLost
from llog.limits import SPLIT_PLAN_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext
from llog.log.keys import OFFSET_MAX, Log
from llog.log.read.timestamps import offset_for_timestamp
from llog.pipeline.scan.split_plan import first_error
from llog.pipeline.scan.splits import LogRange
from llog.pipeline.scan.subscription import LogEnds

EARLIEST: Final = -2
LATEST: Final = -1

_log: Final = logging.getLogger("llog.pipeline")


class Positions(msgspec.Struct, frozen=True):
    """Where to begin or to stop. What is given first in this order counts, as in Spark's Kafka source."""

    option: str
    """What a message calls it."""
    timestamp_ms: int | None = None
    timestamps_by_log: dict[Log, int] | None = None
    by_log: dict[Log, int] | None = None
    all_logs: int = EARLIEST
    newer_than_all: Literal["error", "latest"] = "error"
    """What a timestamp means that is newer than every record."""

    def __post_init__(self) -> None:
        for log, offset in (self.by_log or {}).items():
            if not LATEST - 1 <= offset <= OFFSET_MAX:
                raise InvalidArgument(self.option, f"{log}: {offset} is no offset, nor -1 (latest) or -2 (earliest)")
        times = [self.timestamp_ms] if self.timestamp_ms is not None else list((self.timestamps_by_log or {}).values())
        for timestamp_ms in times:
            if timestamp_ms < 0:
                raise InvalidArgument(self.option, f"{timestamp_ms} is no timestamp in milliseconds")


async def offsets_at(context: LogContext, where: Positions, ends: Mapping[Log, LogEnds]) -> dict[Log, int]:
    """The offset of each log; not compared with its ends yet where the user named it."""
    if where.timestamp_ms is not None:
        return await _by_timestamp(context, where, dict.fromkeys(ends, where.timestamp_ms), ends)
    if where.timestamps_by_log is not None:
        _check_logs(where, where.timestamps_by_log, ends)
        return await _by_timestamp(context, where, where.timestamps_by_log, ends)
    if where.by_log is not None:
        _check_logs(where, where.by_log, ends)
        return {log: _known(where.by_log[log], ends[log]) for log in ends}
    return {log: _known(where.all_logs, at) for log, at in ends.items()}


def ranges_between(
    starts: Mapping[Log, int],
    stops: Mapping[Log, int],
    ends: Mapping[Log, LogEnds],
    *,
    starting_option: str,
    ending_option: str,
    fail_on_data_loss: bool,
) -> list[LogRange]:
    """What is to be read of each log; logs without a wanted record are left out."""
    ranges: list[LogRange] = []
    for log, start in starts.items():
        at, stop = ends[log], stops[log]
        for option, offset in ((starting_option, start), (ending_option, stop)):
            if offset > at.next_offset:
                raise _named(option, OffsetOutOfRange(*log, offset, at.log_start_offset, at.next_offset))
        if start < min(stop, at.log_start_offset):
            reason = f"the log begins at {at.log_start_offset} now"
            if fail_on_data_loss:
                raise _named(starting_option, RecordsLost(*log, start, reason))
            _log.warning("%s: offsets %d … %d are lost: %s", log, start, min(stop, at.log_start_offset) - 1, reason)
            start = min(stop, at.log_start_offset)
        if stop < start:
            raise InvalidArgument(ending_option, f"{log}: {stop} lies before where reading begins, {start}")
        if stop > start:
            ranges.append(LogRange(log, start, stop, at.incarnation))
    return ranges


def _named(option: str, error: OffsetOutOfRange | RecordsLost) -> OffsetOutOfRange | RecordsLost:
    told_as = "fail_on_data_loss=False" if "_" in option else "failOnDataLoss=false"
    hint = f"; {told_as} goes on with what is left" if isinstance(error, RecordsLost) else ""
    error.args = (f"{option}: {error}{hint}",)
    return error


def _known(position: int, ends: LogEnds) -> int:
    if position == EARLIEST:
        return ends.log_start_offset
    # Offset 0, where Kafka's logs begin, is before the first record of ours: nothing is lost between them.
    return ends.next_offset if position == LATEST else max(position, ends.first_offset)


def _check_logs(where: Positions, named: Mapping[Log, int], ends: Mapping[Log, LogEnds]) -> None:
    """As in Kafka's source: whoever names offsets names them for every partition, and for no other."""
    missing, unknown = sorted(ends.keys() - named.keys()), sorted(named.keys() - ends.keys())
    if missing:
        listed = ", ".join(map(str, missing[:10]))
        raise InvalidArgument(where.option, f"names no position for {listed}; -1 means latest, -2 earliest")
    if unknown:
        listed = ", ".join(map(str, unknown[:10]))
        raise InvalidArgument(where.option, f"names {listed}, which is not subscribed to")


async def _by_timestamp(
    context: LogContext, where: Positions, timestamps_ms: Mapping[Log, int], ends: Mapping[Log, LogEnds]
) -> dict[Log, int]:
    slots = asyncio.Semaphore(SPLIT_PLAN_LOGS_IN_FLIGHT_MAX)

    async def one(log: Log) -> int:
        if ends[log].log_start_offset == ends[log].next_offset:
            return ends[log].next_offset
        async with slots:
            found = await offset_for_timestamp(context, log, timestamps_ms[log])
        if found is not None:
            # What was appended since the ends were looked at is not part of this plan.
            return min(found.offset, ends[log].next_offset)
        if where.newer_than_all == "error":
            raise InvalidArgument(where.option, f"{log}: no record is as new as timestamp {timestamps_ms[log]}")
        return ends[log].next_offset

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {log: group.create_task(one(log)) for log in ends}
    except* LlogError as failed:
        raise first_error(failed) from None
    return {log: task.result() for log, task in tasks.items()}
