"""Which logs a read covers, and from which offset to which.

    Subscription(topics=("orders",))                 every partition of some topics
    Subscription(pattern="orders-.*")                every topic with a matching name
    Subscription(assigned=(Log("orders", 3),))       these logs

A topic or partition that is named but does not exist is an error, after a strict read, unless the caller asks to skip
it. A pattern may match nothing: topics may be created later. A log without records is empty, not an error. An offset
outside its log is an error that names the option, the log and the offset. If `fail_on_data_loss` is off, a starting
offset below the log's start means the start, and one past its end means the end.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from llog.concurrency import gather_bounded
from llog.errors import InvalidArgument, LogError, OffsetOutOfRange, PartitionOutOfRange, RecordsLost, TopicNotFound
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import SPLIT_PLAN_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext, get_all
from llog.log.keys import OFFSET_MAX, Log, check_partition, check_topic
from llog.log.read.timestamps import offset_for_timestamp
from llog.log.topics.admin import list_topics
from llog.pipeline.scan.splits import ScanRange

EARLIEST: Final = -2
LATEST: Final = -1

_log: Final = logging.getLogger("llog.pipeline")
# Logs of one scan or subscription.
SCAN_LOGS_MAX: Final = 100_000


class LogEnds(NamedTuple):
    log_start_offset: int
    next_offset: int
    incarnation: int
    first_offset: int
    """The first offset of logs of this incarnation; no record was ever below it."""
    topic_id: str
    """Unique among the topics of all clusters."""


class Subscription(msgspec.Struct, frozen=True):
    """Exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Log, ...] = ()

    def __post_init__(self) -> None:
        if (bool(self.topics), self.pattern is not None, bool(self.assigned)).count(True) != 1:
            raise InvalidArgument("subscription", "give exactly one of topics, a pattern, or assigned partitions")
        for topic in (*self.topics, *(log.topic for log in self.assigned)):
            check_topic(topic)
        for log in self.assigned:
            check_partition(log.partition)
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise InvalidArgument("subscription", f"pattern {self.pattern!r}: {error}") from None


async def find_logs(context: LogContext, wanted: Subscription, *, skip_missing: bool = False) -> dict[Log, LogEnds]:
    """Every log of the subscription, in order, with its ends by a strict read. `skip_missing` leaves out topics and
    partitions that are named but do not exist; otherwise they are an error."""
    logs = await _logs(context, wanted, skip_missing)
    if len(logs) > SCAN_LOGS_MAX:
        raise InvalidArgument(
            "subscription", f"{len(logs)} partitions are more than {SCAN_LOGS_MAX}; subscribe to fewer topics"
        )
    return await ends_of(context, logs)


async def ends_of(context: LogContext, logs: dict[Log, TopicRecord]) -> dict[Log, LogEnds]:
    keys = [context.keys.control(log) for log in logs]
    records = await get_all(context.metadata, keys, strict=True)
    ends: dict[Log, LogEnds] = {}
    for (log, topic), record in zip(logs.items(), records, strict=True):
        control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
        if control is None or control.incarnation != topic.incarnation or control.log_state == "DELETED":
            # The log is empty in this incarnation.
            start = next_offset = topic.first_offset
        else:
            start, next_offset = control.log_start_offset, control.sequence_counter
        ends[log] = LogEnds(start, next_offset, topic.incarnation, topic.first_offset, topic.topic_id)
    return ends


async def _logs(context: LogContext, wanted: Subscription, skip_missing: bool) -> dict[Log, TopicRecord]:
    if wanted.pattern is not None:
        fits = re.compile(wanted.pattern).fullmatch
        topics = {topic.name: topic.record for topic in await list_topics(context, strict=True) if fits(topic.name)}
    else:
        topics = await _live_topics(context, wanted.topics or {log.topic for log in wanted.assigned}, skip_missing)
    if not wanted.assigned:
        return {
            Log(name, partition): record
            for name, record in sorted(topics.items())
            for partition in range(record.partition_count)
        }
    logs: dict[Log, TopicRecord] = {}
    for log in sorted(set(wanted.assigned)):
        count = topics[log.topic].partition_count if log.topic in topics else 0
        if log.partition < count:
            logs[log] = topics[log.topic]
        elif not skip_missing:
            raise PartitionOutOfRange(*log, f"the topic has {count} partitions")
    return logs


async def _live_topics(context: LogContext, names: Iterable[str], skip_missing: bool) -> dict[str, TopicRecord]:
    names = sorted(set(names))
    records = await context.metadata.get_many([context.keys.topic(name) for name in names], strict=True)
    topics: dict[str, TopicRecord] = {}
    for name, record in zip(names, records, strict=True):
        topic = None if record is None else decode_value(TopicRecord, record.value, record.key.path)
        if topic is not None and topic.state == "LIVE":
            topics[name] = topic
        elif not skip_missing:
            raise TopicNotFound(name, "no such topic")
    return topics


# -- offsets -----------------------------------------------------------------------------------------------------------


class ReadBound(msgspec.Struct, frozen=True):
    """Where a read starts or ends, as the user gave it. The first field that is set counts, as in Spark's Kafka source.

    An offset may be `EARLIEST` (-2) or `LATEST` (-1), as in Kafka's JSON. A timestamp means the first record, in offset
    order, that is at least as new (`llog.log.read.timestamps`).
    """

    option: str
    """Its name in error messages."""
    timestamp_ms: int | None = None
    timestamps_by_log: dict[Log, int] | None = None
    by_log: dict[Log, int] | None = None
    all_logs: int = EARLIEST
    newer_than_all: Literal["error", "latest"] = "error"
    """For a timestamp newer than every record."""

    def __post_init__(self) -> None:
        for log, offset in (self.by_log or {}).items():
            if not LATEST - 1 <= offset <= OFFSET_MAX:
                raise InvalidArgument(
                    self.option, f"{log}: {offset} is neither an offset nor -1 (latest) or -2 (earliest)"
                )
        times = [self.timestamp_ms] if self.timestamp_ms is not None else list((self.timestamps_by_log or {}).values())
        for timestamp_ms in times:
            if timestamp_ms < 0:
                raise InvalidArgument(self.option, f"{timestamp_ms} must be a timestamp in milliseconds since 1970")


async def offsets_at(context: LogContext, bound: ReadBound, ends: Mapping[Log, LogEnds]) -> dict[Log, int]:
    """The offset of each log, not yet compared with the log's ends."""
    if bound.timestamp_ms is not None:
        return await _by_timestamp(context, bound, dict.fromkeys(ends, bound.timestamp_ms), ends)
    if bound.timestamps_by_log is not None:
        _check_logs(bound, bound.timestamps_by_log, ends)
        return await _by_timestamp(context, bound, bound.timestamps_by_log, ends)
    if bound.by_log is not None:
        _check_logs(bound, bound.by_log, ends)
        return {log: _known(bound.by_log[log], ends[log]) for log in ends}
    return {log: _known(bound.all_logs, at) for log, at in ends.items()}


def ranges_between(
    starts: Mapping[Log, int],
    stops: Mapping[Log, int],
    ends: Mapping[Log, LogEnds],
    *,
    starting_option: str,
    ending_option: str,
    fail_on_data_loss: bool,
) -> list[ScanRange]:
    """What is to be read of each log; logs without a wanted record are left out."""
    ranges: list[ScanRange] = []
    for log, start in starts.items():
        at, stop = ends[log], stops[log]
        if start > at.next_offset:
            if fail_on_data_loss:
                error = OffsetOutOfRange(*log, start, at.log_start_offset, at.next_offset)
                raise _named(starting_option, error, "start at the end of the log")
            _log.warning("%s: no record has offset %d: the log ends at offset %d", log, start, at.next_offset)
            continue
        if stop > at.next_offset:
            raise _named(ending_option, OffsetOutOfRange(*log, stop, at.log_start_offset, at.next_offset))
        if start < min(stop, at.log_start_offset):
            reason = f"the log now begins at offset {at.log_start_offset}"
            if fail_on_data_loss:
                raise _named(starting_option, RecordsLost(*log, start, reason), "skip them")
            _log.warning(
                "%s: records from offset %d to %d are lost: %s", log, start, min(stop, at.log_start_offset) - 1, reason
            )
            start = min(stop, at.log_start_offset)
        if stop < start:
            raise InvalidArgument(ending_option, f"{log}: {stop} is below the starting offset {start}")
        if stop > start:
            ranges.append(ScanRange(log, start, stop, at.incarnation))
    return ranges


def _named(option: str, error: LogError, otherwise: str = "") -> LogError:
    """`otherwise`: the effect of `fail_on_data_loss` being off."""
    spelling = "fail_on_data_loss=False" if "_" in option else "failOnDataLoss=false"
    hint = f"; set {spelling} to {otherwise}" if otherwise else ""
    error.args = (f"{option}: {error}{hint}",)
    return error


def _known(position: int, ends: LogEnds) -> int:
    if position == EARLIEST:
        return ends.log_start_offset
    # Kafka's logs begin at offset 0, ours at `first_offset`: nothing is lost between the two.
    return ends.next_offset if position == LATEST else max(position, ends.first_offset)


def _check_logs(bound: ReadBound, named: Mapping[Log, int], ends: Mapping[Log, LogEnds]) -> None:
    """As in Kafka's source, offsets by partition must name every subscribed partition and no other."""
    missing, unknown = sorted(ends.keys() - named.keys()), sorted(named.keys() - ends.keys())
    if missing:
        listed = ", ".join(map(str, missing[:10]))
        raise InvalidArgument(bound.option, f"names no offset for {listed}; -1 means latest, -2 earliest")
    if unknown:
        listed = ", ".join(map(str, unknown[:10]))
        raise InvalidArgument(bound.option, f"names {listed}, which the read does not subscribe to")


async def _by_timestamp(
    context: LogContext, bound: ReadBound, timestamps_ms: Mapping[Log, int], ends: Mapping[Log, LogEnds]
) -> dict[Log, int]:
    async def find(log: Log) -> int:
        if ends[log].log_start_offset == ends[log].next_offset:
            return ends[log].next_offset
        first = await offset_for_timestamp(context, log, timestamps_ms[log])
        if first is not None:
            # Records appended since the ends were read are not part of this plan.
            return min(first.offset, ends[log].next_offset)
        if bound.newer_than_all == "error":
            raise InvalidArgument(bound.option, f"{log}: no record is as new as timestamp {timestamps_ms[log]}")
        return ends[log].next_offset

    offsets = await gather_bounded(ends, find, limit=SPLIT_PLAN_LOGS_IN_FLIGHT_MAX)
    return dict(zip(ends, offsets, strict=True))
