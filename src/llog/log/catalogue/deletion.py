"""The progress of topic deletions, log by log, and how to finish interrupted ones.

    DELETE_PARTITION_MARKED      nothing may begin in this log any more
    DELETE_PARTITION_STARTED     its tombstone exists; entries, segments and records are being removed
    DELETE_PARTITION_FINISHED    nothing is left of it

Each log's state is a record (`meta/partition-delete`) that only moves forward within an incarnation.
`llog.log.topics.delete` drives it; setting it by hand could leave data behind, or delete data of a live log. Any
process can finish a deletion that another one began, any number of times, without touching a later incarnation (R13).
"""

from __future__ import annotations

from typing import NamedTuple

from llog.errors import LlogError, TopicNotFound
from llog.formats.values import PartitionDelete, PartitionDeleteState, TopicState, decode_value
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.topics.admin import list_topics
from llog.log.topics.create import load_topic
from llog.log.topics.delete import TopicDeleted, delete_topic


class TopicDeletion(NamedTuple):
    topic: str
    incarnation: int
    state: TopicState
    partitions: tuple[PartitionDeleteState | None, ...]
    """By partition number, in this incarnation; None: the deletion has not begun."""

    @property
    def done(self) -> bool:
        return self.state == "DELETED" and set(self.partitions) <= {"DELETE_PARTITION_FINISHED"}


class ResumedDeletions(NamedTuple):
    finished: tuple[TopicDeleted, ...]
    failed: tuple[tuple[str, LlogError], ...]
    """Topics that could not be deleted now, and why; the next call tries again."""


async def deletion_of(context: LogContext, topic: str) -> TopicDeletion:
    """The progress of a deletion. Raises `TopicNotFound` if the topic never existed."""
    loaded = await load_topic(context, topic, strict=True)
    if loaded is None:
        raise TopicNotFound(topic, "no such topic")
    record = loaded[0]
    keys = [context.keys.partition_delete(Log(topic, partition)) for partition in range(record.partition_count)]
    states: list[PartitionDeleteState | None] = []
    for key, stored in zip(keys, await get_all(context.metadata, keys, strict=True), strict=True):
        value = None if stored is None else decode_value(PartitionDelete, stored.value, key.path)
        states.append(value.state if value is not None and value.incarnation == record.incarnation else None)
    return TopicDeletion(topic, record.incarnation, record.state, tuple(states))


async def resume_deletions(context: LogContext) -> ResumedDeletions:
    """Finish every interrupted deletion. A failure does not stop the others."""
    finished: list[TopicDeleted] = []
    failed: list[tuple[str, LlogError]] = []
    for topic in await list_topics(context, states={"DELETING"}, strict=True):
        try:
            finished.append(await delete_topic(context, topic.name, topic.record.incarnation))
        except LlogError as error:
            failed.append((topic.name, error))
    return ResumedDeletions(tuple(finished), tuple(failed))
