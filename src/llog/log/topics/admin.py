"""Topics as users manage them: create, alter, add partitions, list, describe. (Deleting is `delete_topic`.)

Every change is one compare-and-set on the topic's record, decided anew from the value just read (R5). Partitions come
after it, so whoever crashes in between leaves a LIVE topic with logs that are not there yet, and anyone who meets one
finishes it (`initialize`).

What must stay true: a topic begins as incarnation 1 or as one more than a DELETED one, and from nothing else (R13); an
answer that never came is found out by reading: the topic id, drawn before the first attempt, tells our record from
another's (R4); a refusal rests on a strict read (R7).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import (
    InvalidArgument,
    LogDeleted,
    TopicAlreadyExists,
    TopicBeingDeleted,
    TopicBusy,
    TopicNotFound,
)
from llog.formats.values import ControlRecord, LogState, TopicRecord, TopicState, decode_value
from llog.limits import TOPIC_ROUNDS_MAX
from llog.log.change import change_value, lost_race_or_unavailable
from llog.log.context import LogContext, get_all
from llog.log.keys import OFFSET_MAX, Log
from llog.log.topics.config import TopicConfig, altered_config, checked_config
from llog.log.topics.create import for_each_partition, initialize, load_topic, new_topic
from llog.stores.metadata.port import last_segment

FIRST_OFFSET_DEFAULT: Final = 1
ONLY_LIVE: Final[frozenset[TopicState]] = frozenset({"LIVE"})
Decide = Callable[[TopicRecord | None], TopicRecord | None]


class Topic(NamedTuple):
    """A topic's record by its name."""

    name: str
    record: TopicRecord

    @property
    def config(self) -> TopicConfig:
        return TopicConfig.of(self.record.config)


class PartitionDescription(NamedTuple):
    partition: int
    log_state: LogState | None
    """None: not there yet; the first append, or `finish_partitions`, makes it."""
    log_start_offset: int
    next_offset: int


class TopicDescription(NamedTuple):
    topic: Topic
    partitions: tuple[PartitionDescription, ...]


# -- changes ---------------------------------------------------------------------------------------------------------


async def create_topic(
    context: LogContext,
    topic: str,
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    first_offset: int | None = None,
) -> Topic:
    """A new topic, or a new life of a deleted one, with all its logs.

    `first_offset` None means: where the life before began, or 1.
    """
    _check_count(context, partitions)
    if first_offset is not None and not 0 <= first_offset < OFFSET_MAX:
        raise InvalidArgument("first_offset", f"{first_offset} must be from 0 to {OFFSET_MAX - 1}")
    kept = checked_config(config or {})
    mine: TopicRecord | None = None

    def begin(there: TopicRecord | None) -> TopicRecord | None:
        nonlocal mine
        if there is not None and mine is not None and there.topic_id == mine.topic_id:
            return None  # the answer was lost, the deed was not
        if there is not None and there.state == "LIVE":
            raise TopicAlreadyExists(topic, f"it exists, with {there.partition_count} partitions")
        if there is not None and there.state == "DELETING":
            raise TopicBeingDeleted(topic, "it is being deleted; create it again when that is done")
        before = FIRST_OFFSET_DEFAULT if there is None else there.first_offset
        made = new_topic(
            context,
            there,
            partition_count=partitions,
            first_offset=before if first_offset is None else first_offset,
            config=kept,
        )
        # One id for all attempts, so that a late one is still known as ours.
        mine = made if mine is None else replace(made, topic_id=mine.topic_id)
        return mine

    made = Topic(topic, await change_topic(context, topic, begin))
    await finish_partitions(context, made)
    return made


async def alter_topic(
    context: LogContext, topic: str, *, put: Mapping[str, str] | None = None, remove: Collection[str] = ()
) -> Topic:
    """Set some configs, and bring others back to their default."""

    def alter(there: TopicRecord | None) -> TopicRecord | None:
        live = _live(topic, there)
        config = altered_config(live.config, put or {}, frozenset(remove))
        return None if config == live.config else replace(live, config=config)

    return Topic(topic, await change_topic(context, topic, alter))


async def add_partitions(context: LogContext, topic: str, count: int) -> Topic:
    """Let the topic have `count` partitions. It only grows; the count that it has already is fine."""
    _check_count(context, count)

    def grow(there: TopicRecord | None) -> TopicRecord | None:
        live = _live(topic, there)
        if count < live.partition_count:
            raise InvalidArgument("partitions", f"{topic} has {live.partition_count}: it cannot shrink to {count}")
        return None if count == live.partition_count else replace(live, partition_count=count)

    grown = Topic(topic, await change_topic(context, topic, grow))
    await finish_partitions(context, grown)
    return grown


async def finish_partitions(context: LogContext, topic: Topic) -> None:
    """Make every log of the topic that is not there yet. For this very topic: one created since then is left alone."""

    async def finish(partition: int) -> None:
        await initialize(context, Log(topic.name, partition), topic_id=topic.record.topic_id)

    try:
        await for_each_partition(topic.record.partition_count, finish)
    except LogDeleted as error:
        raise TopicNotFound(topic.name, "it was deleted while its partitions were made") from error


async def change_topic(context: LogContext, topic: str, decide: Decide) -> TopicRecord:
    """Compare-and-set the topic's record to the result of `decide`; None from `decide` leaves it unchanged."""
    record, _ = await change_value(
        context,
        context.keys.topic(topic),
        TopicRecord,
        decide,
        rounds_max=TOPIC_ROUNDS_MAX,
        busy=TopicBusy(topic, "its record kept changing, or the metadata store did not answer; try again"),
        retry=lost_race_or_unavailable,
    )
    assert record is not None, "an absent topic cannot be left unchanged"
    return record


def _live(topic: str, there: TopicRecord | None) -> TopicRecord:
    if there is None or there.state == "DELETED":
        raise TopicNotFound(topic, "no such topic")
    if there.state == "DELETING":
        raise TopicBeingDeleted(topic, "it is being deleted")
    return there


def _check_count(context: LogContext, partitions: int) -> None:
    limit = context.options.topic_partitions_max
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= limit:
        raise InvalidArgument("partitions", f"{partitions!r} must be from 1 to {limit} (LLOG_TOPIC_PARTITIONS_MAX)")


# -- looking ---------------------------------------------------------------------------------------------------------


async def list_topics(
    context: LogContext, *, states: Collection[TopicState] = ONLY_LIVE, strict: bool = False
) -> list[Topic]:
    """Every topic in one of these states, by name. Those DELETING are for whoever finishes deletions."""
    return [
        Topic(last_segment(found.key.path), record)
        async for found in context.metadata.scan_all(context.keys.topics(), strict=strict)
        if (record := decode_value(TopicRecord, found.value, found.key.path)).state in states
    ]


async def describe_topic(context: LogContext, topic: str) -> TopicDescription:
    """The topic, and where each of its logs begins and ends."""
    found = await load_topic(context, topic)
    if found is None or found[0].state != "LIVE":
        found = await load_topic(context, topic, strict=True)
    record = _live(topic, None if found is None else found[0])
    keys = [context.keys.control(Log(topic, partition)) for partition in range(record.partition_count)]
    controls = await get_all(context.metadata, keys, strict=False)
    partitions = []
    for partition, control_record in enumerate(controls):
        control = None
        if control_record is not None:
            control = decode_value(ControlRecord, control_record.value, control_record.key.path)
        partitions.append(_describe(partition, record, control))
    return TopicDescription(Topic(topic, record), tuple(partitions))


def _describe(partition: int, topic: TopicRecord, control: ControlRecord | None) -> PartitionDescription:
    if control is None or control.incarnation != topic.incarnation:  # not there yet, in this life
        return PartitionDescription(partition, None, topic.first_offset, topic.first_offset)
    return PartitionDescription(partition, control.log_state, control.log_start_offset, control.sequence_counter)
