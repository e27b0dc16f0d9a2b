"""Discovery: the configured logs, and every partition of every live topic.

It lists topics (one routing key) and reads their control records; it never scans every shard. A failed discovery
changes nothing, and the next successful one drops the logs of deleted topics. An unreadable record is reported and
hides no other topic or log. A topic counts as left behind when two discoveries saw it dying, so that the process that
deletes it has time to finish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from llog.compactor.plan import RandomBits, shuffled
from llog.concurrency import batched
from llog.errors import FormatError
from llog.formats.values import ControlRecord, TopicRecord, TopicState, decode_value
from llog.limits import METADATA_GET_MANY_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import Topic
from llog.stores.metadata.port import last_segment

# Logs that one service watches; of more, each discovery picks a random selection.
COMPACTOR_LOGS_MAX: Final = 100_000


class DyingTopic(NamedTuple):
    topic: str
    incarnation: int


class FencedLog(NamedTuple):
    log: Log
    reason: str


class Discovered(NamedTuple):
    logs: tuple[Log, ...] = ()
    fenced: tuple[FencedLog, ...] = ()
    dying: frozenset[DyingTopic] = frozenset()
    """Topics that are DELETING."""
    at_ms: int = 0
    left_out: int = 0
    """Number of logs beyond COMPACTOR_LOGS_MAX."""
    unreadable: tuple[str, ...] = ()
    """The errors of topics with an unreadable record."""


async def discover(context: LogContext, configured: Collection[Log]) -> Discovered:
    topics, unreadable = await readable_topics(context, ["LIVE", "DELETING"])
    live = [topic for topic in topics if topic.record.state == "LIVE"]
    live_logs, fenced = await _logs_of(context, live)
    logs, left_out = plan_targets(configured, live_logs, context.random_bits)
    dying = frozenset(DyingTopic(name, record.incarnation) for name, record in topics if record.state == "DELETING")
    return Discovered(logs, tuple(fenced), dying, context.now_ms(), left_out, tuple(unreadable))


async def readable_topics(context: LogContext, states: Collection[TopicState]) -> tuple[list[Topic], list[str]]:
    """Every topic in one of these states, by name; and the errors of unreadable topics."""
    topics, unreadable = list[Topic](), list[str]()
    async for record in context.metadata.scan_all(context.keys.topics()):
        try:
            topic = Topic(last_segment(record.key.path), decode_value(TopicRecord, record.value, record.key.path))
        except FormatError as error:
            unreadable.append(str(error))
            continue
        if topic.record.state in states:
            topics.append(topic)
    return topics, unreadable


def plan_targets(
    configured: Collection[Log], live: Iterable[Log], random_bits: RandomBits, *, limit: int = COMPACTOR_LOGS_MAX
) -> tuple[tuple[Log, ...], int]:
    """The configured logs, then as many others as fit, in random order, so that each is watched at some time; and the
    number of logs left out."""
    others = sorted(set(live) - set(configured))
    room = max(0, limit - len(set(configured)))
    left_out = max(0, len(others) - room)
    if left_out:
        others = shuffled(others, random_bits)[:room]
    return (*dict.fromkeys(configured), *others), left_out


def plan_left_behind(before: Discovered, now: Discovered) -> list[DyingTopic]:
    """Topics that were already being deleted at the previous discovery."""
    return sorted(before.dying & now.dying)


async def _logs_of(context: LogContext, topics: Iterable[Topic]) -> tuple[list[Log], list[FencedLog]]:
    """Logs of the current incarnation of each topic, and those of them that are fenced."""
    logs: list[Log] = []
    fenced: list[FencedLog] = []
    partitions = [(Log(name, number), record) for name, record in topics for number in range(record.partition_count)]
    for batch in batched(partitions, METADATA_GET_MANY_MAX):
        controls = await context.metadata.get_many([context.keys.control(log) for log, _ in batch])
        for (log, topic), record in zip(batch, controls, strict=True):
            if record is None:
                continue
            try:
                control = decode_value(ControlRecord, record.value, record.key.path)
            except FormatError:
                logs.append(log)  # its next inspection reports the error
                continue
            if control.incarnation != topic.incarnation or control.log_state == "DELETED":
                continue
            logs.append(log)
            if control.log_state == "FENCED":
                fenced.append(FencedLog(log, control.fence_reason))
    return logs, fenced
