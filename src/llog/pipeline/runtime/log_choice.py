"""Which logs a job is about: all of every live topic, or those that its caller names.

What must stay true: a name that means nothing here is an error, never an empty job.
"""

from __future__ import annotations

from collections.abc import Sequence

from llog.errors import InvalidArgument, PartitionOutOfRange, TopicNotFound
from llog.log.context import LogContext
from llog.log.keys import Log, check_partition, check_topic
from llog.log.topics.admin import list_topics
from llog.log.topics.create import load_topic


def parse_choice(text: str) -> tuple[str, int | None]:
    """`topic`, or `topic:partition`. (A topic's name cannot hold a colon.)"""
    topic, separator, partition = text.partition(":")
    if separator and not (partition.isascii() and partition.isdigit()):
        raise InvalidArgument("log", f"{text!r}: behind the colon stands the number of a partition")
    return check_topic(topic), check_partition(int(partition)) if separator else None


async def logs_of(context: LogContext, topic: str, partition: int | None = None) -> list[Log]:
    """The one partition, or all of them. The topic must be there."""
    found = await load_topic(context, check_topic(topic), strict=True)
    if found is None or found[0].state != "LIVE":
        raise TopicNotFound(topic, "no such topic; `llog topic list` shows those there are")
    count = found[0].partition_count
    if partition is None:
        return [Log(topic, number) for number in range(count)]
    if check_partition(partition) >= count:
        raise PartitionOutOfRange(topic, partition, f"the topic has {count} partitions, numbered from 0")
    return [Log(topic, partition)]


async def chosen_logs(context: LogContext, names: Sequence[str] = ()) -> list[Log]:
    """In order, each once; without names every partition of every live topic."""
    if not names:
        topics = await list_topics(context, states=["LIVE"])
        return sorted(Log(topic, number) for topic, record in topics for number in range(record.partition_count))
    return sorted({log for choice in map(parse_choice, names) for log in await logs_of(context, *choice)})
