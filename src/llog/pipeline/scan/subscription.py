"""Which logs a reader wants, and where they begin and end now.

    Subscription(topics=("orders",))                 every partition of some topics
    Subscription(pattern="orders-.*")                of all topics whose whole name fits
    Subscription(assigned=(Log("orders", 3),))       these logs

What must stay true: a topic or partition named and not there is an error that names it, after a strict read, unless the
caller can do without (`there_only`); a pattern may fit nothing (topics come later). A log that nobody has appended to
yet is empty, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from llog.errors import InvalidArgument, PartitionOutOfRange, TopicNotFound
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.log.context import LogContext, get_all
from llog.log.keys import Log, check_partition, check_topic
from llog.log.topics.admin import list_topics

# Logs of one scan or subscription.
SCAN_LOGS_MAX: Final = 100_000


class LogEnds(NamedTuple):
    log_start_offset: int
    next_offset: int
    incarnation: int
    """Which life of the topic this is."""
    first_offset: int
    """Where logs of this life begin: no record ever stood before it."""
    topic_id: str
    """No other topic has it, of any cluster."""


class Subscription(msgspec.Struct, frozen=True):
    """Exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Log, ...] = ()

    def __post_init__(self) -> None:
        if (bool(self.topics), self.pattern is not None, bool(self.assigned)).count(True) != 1:
            raise InvalidArgument("subscription", "name topics, or a pattern, or assigned partitions: one of the three")
        for topic in (*self.topics, *(log.topic for log in self.assigned)):
            check_topic(topic)
        for log in self.assigned:
            check_partition(log.partition)
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise InvalidArgument("subscription", f"pattern {self.pattern!r}: {error}") from None


async def find_logs(context: LogContext, wanted: Subscription, *, there_only: bool = False) -> dict[Log, LogEnds]:
    """Every log of the subscription, in order, with its ends as a strict read sees them; `there_only`: without those
    that are named and not there."""
    logs = await _logs(context, wanted, there_only)
    if len(logs) > SCAN_LOGS_MAX:
        raise InvalidArgument("subscription", f"{len(logs)} partitions, more than {SCAN_LOGS_MAX} at a time")
    return await ends_of(context, logs)


async def ends_of(context: LogContext, logs: dict[Log, TopicRecord]) -> dict[Log, LogEnds]:
    keys = [context.keys.control(log) for log in logs]
    found = await get_all(context.metadata, keys, strict=True)
    ends: dict[Log, LogEnds] = {}
    for (log, topic), record in zip(logs.items(), found, strict=True):
        control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
        if control is None or control.incarnation != topic.incarnation or control.log_state == "DELETED":
            # Nobody has appended in this life.
            start = next_offset = topic.first_offset
        else:
            start, next_offset = control.log_start_offset, control.sequence_counter
        ends[log] = LogEnds(start, next_offset, topic.incarnation, topic.first_offset, topic.topic_id)
    return ends


async def _logs(context: LogContext, wanted: Subscription, there_only: bool) -> dict[Log, TopicRecord]:
    if wanted.pattern is not None:
        fits = re.compile(wanted.pattern).fullmatch
        topics = {topic.name: topic.record for topic in await list_topics(context, strict=True) if fits(topic.name)}
    else:
        topics = await _live_topics(context, wanted.topics or {log.topic for log in wanted.assigned}, there_only)
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
        elif not there_only:
            raise PartitionOutOfRange(*log, f"the topic has {count} partitions")
    return logs


async def _live_topics(context: LogContext, names: Iterable[str], there_only: bool) -> dict[str, TopicRecord]:
    names = sorted(set(names))
    found = await context.metadata.get_many([context.keys.topic(name) for name in names], strict=True)
    topics: dict[str, TopicRecord] = {}
    for name, record in zip(names, found, strict=True):
        topic = None if record is None else decode_value(TopicRecord, record.value, record.key.path)
        if topic is not None and topic.state == "LIVE":
            topics[name] = topic
        elif not there_only:
            raise TopicNotFound(name, "no such topic")
    return topics
