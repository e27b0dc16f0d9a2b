"""Partition delete: how far the deletion of a topic has come, log by log, and going on with those that were left.

    DELETE_PARTITION_MARKED      nobody may begin anything in this log any more
    DELETE_PARTITION_STARTED     its tombstone stands; entries, segments and records are being removed
    DELETE_PARTITION_FINISHED    nothing of it is left

Each log's state is a record of its own (`meta/partition-delete`) that only moves forward within a life. Nobody sets it
by hand: `llog.log.topics.delete` drives it, for a state that was claimed rather than reached would leave data behind,
or take it from a log that lives. What must stay true: a deletion that anybody began can be finished by anybody, any
number of times, and never touches a later life (R13).
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
    """Of this life, by number; None: its deletion has not begun."""

    @property
    def done(self) -> bool:
        return self.state == "DELETED" and set(self.partitions) <= {"DELETE_PARTITION_FINISHED"}


class Resumed(NamedTuple):
    finished: tuple[TopicDeleted, ...]
    failed: tuple[tuple[str, LlogError], ...]
    """Topics whose deletion could not be finished now, and why: the next call goes on with them."""


async def deletion_of(context: LogContext, topic: str) -> TopicDeletion:
    """How far it is. Raises `TopicNotFound` where there never was such a topic."""
    found = await load_topic(context, topic, strict=True)
    if found is None:
        raise TopicNotFound(topic, "no such topic")
    record = found[0]
    keys = [context.keys.partition_delete(Log(topic, partition)) for partition in range(record.partition_count)]
    states: list[PartitionDeleteState | None] = []
    for key, there in zip(keys, await get_all(context.metadata, keys, strict=True), strict=True):
        value = None if there is None else decode_value(PartitionDelete, there.value, key.path)
        states.append(value.state if value is not None and value.incarnation == record.incarnation else None)
    return TopicDeletion(topic, record.incarnation, record.state, tuple(states))


async def resume_deletions(context: LogContext) -> Resumed:
    """Go on with every deletion that was begun and not finished. One that fails does not keep the others waiting."""
    finished: list[TopicDeleted] = []
    failed: list[tuple[str, LlogError]] = []
    for topic in await list_topics(context, states={"DELETING"}, strict=True):
        try:
            finished.append(await delete_topic(context, topic.name, topic.record.incarnation))
        except LlogError as error:
            failed.append((topic.name, error))
    return Resumed(tuple(finished), tuple(failed))
