"""Manage topics: create, alter, add partitions, list, describe. (`delete_topic` is in `delete`.)

Every change is one compare-and-set on the topic's record, decided anew from the value just read (R5). The logs follow,
so a crash in between leaves a LIVE topic with missing logs, which any process that meets them initializes.

A topic starts as incarnation 1, or as one more than a DELETED record's (R13). The outcome of a write without an answer
is found by reading: the topic id, drawn before the first attempt, identifies our record (R4). A refusal rests on a
strict read (R7).
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
from llog.log.topics.create import for_each_partition, initialize, load_topic, new_topic, topic_change
from llog.stores.metadata.port import last_segment

FIRST_OFFSET_DEFAULT: Final = 1
ONLY_LIVE: Final[frozenset[TopicState]] = frozenset({"LIVE"})
Decide = Callable[[TopicRecord | None], TopicRecord | None]


class Topic(NamedTuple):
    """A topic's name and record."""

    name: str
    record: TopicRecord

    @property
    def config(self) -> TopicConfig:
        return TopicConfig.of(self.record.config)


class PartitionDescription(NamedTuple):
    partition: int
    log_state: LogState | None
    """None: not initialized yet; the first append, or `finish_partitions`, does that."""
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
    auto_created: bool = False,
) -> Topic:
    """Create a topic, or a new incarnation of a deleted one, with all its logs.

    `first_offset` None means the first offset of the previous incarnation, or 1. `auto_created`: on first use, not by
    an administrator.
    """
    _check_count(context, partitions)
    if first_offset is not None and not 0 <= first_offset < OFFSET_MAX:
        raise InvalidArgument("first_offset", f"{first_offset} must be from 0 to {OFFSET_MAX - 1}")
    checked = checked_config(config or {})
    written: TopicRecord | None = None

    def create(current: TopicRecord | None) -> TopicRecord | None:
        nonlocal written
        if current is not None and written is not None and current.topic_id == written.topic_id:
            return None  # our write succeeded, only its answer was lost
        if current is not None and current.state == "LIVE":
            raise TopicAlreadyExists(topic, f"it exists, with {current.partition_count} partitions")
        if current is not None and current.state == "DELETING":
            raise TopicBeingDeleted(topic, "it is being deleted; create it again when that is done")
        default = FIRST_OFFSET_DEFAULT if current is None else current.first_offset
        record = new_topic(
            context,
            current,
            partition_count=partitions,
            first_offset=default if first_offset is None else first_offset,
            config=checked,
            auto_created=auto_created,
        )
        # One id for all attempts, so that we recognise an earlier one.
        written = record if written is None else replace(record, topic_id=written.topic_id)
        return written

    created = Topic(topic, await change_topic(context, topic, create))
    await finish_partitions(context, created)
    return created


async def alter_topic(
    context: LogContext, topic: str, *, put: Mapping[str, str] | None = None, remove: Collection[str] = ()
) -> Topic:
    """Set some configs, and reset others to their default."""
    return await change_config(context, topic, lambda stored: altered_config(stored, put or {}, frozenset(remove)))


async def change_config(
    context: LogContext, topic: str, change: Callable[[Mapping[str, str]], dict[str, str]]
) -> Topic:
    """Replace the stored configs by `change` of them. `change` may be called several times, and checks its values."""

    def alter(current: TopicRecord | None) -> TopicRecord | None:
        live = _live(topic, current)
        config = change(live.config)
        return None if config == live.config else replace(live, config=config)

    return Topic(topic, await change_topic(context, topic, alter))


async def add_partitions(context: LogContext, topic: str, count: int) -> Topic:
    """Grow the topic to `count` partitions; its current count is accepted and changes nothing."""
    _check_count(context, count)

    def grow(current: TopicRecord | None) -> TopicRecord | None:
        live = _live(topic, current)
        if count < live.partition_count:
            raise InvalidArgument("partitions", f"{topic} has {live.partition_count}: it cannot shrink to {count}")
        return None if count == live.partition_count else replace(live, partition_count=count)

    grown = Topic(topic, await change_topic(context, topic, grow))
    await finish_partitions(context, grown)
    return grown


async def finish_partitions(context: LogContext, topic: Topic) -> None:
    """Initialize every missing log of this topic; a later topic of the same name is left alone."""

    async def finish(partition: int) -> None:
        await initialize(context, Log(topic.name, partition), topic_id=topic.record.topic_id)

    try:
        await for_each_partition(topic.record.partition_count, finish)
    except LogDeleted as error:
        raise TopicNotFound(topic.name, "it was deleted while its partitions were created") from error


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
        describe=lambda before, after: topic_change(topic, before, after),
    )
    assert record is not None, "an absent topic cannot be left unchanged"
    return record


def _live(topic: str, record: TopicRecord | None) -> TopicRecord:
    if record is None or record.state == "DELETED":
        raise TopicNotFound(topic, "no such topic")
    if record.state == "DELETING":
        raise TopicBeingDeleted(topic, "it is being deleted")
    return record


def _check_count(context: LogContext, partitions: int) -> None:
    limit = context.options.topic_partitions_max
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= limit:
        raise InvalidArgument("partitions", f"{partitions!r} must be from 1 to {limit} (LLOG_TOPIC_PARTITIONS_MAX)")


# -- reads -----------------------------------------------------------------------------------------------------------


async def list_topics(
    context: LogContext, *, states: Collection[TopicState] = ONLY_LIVE, strict: bool = False
) -> list[Topic]:
    """The topics in one of these states, by name."""
    return [
        Topic(last_segment(found.key.path), record)
        async for found in context.metadata.scan_all(context.keys.topics(), strict=strict)
        if (record := decode_value(TopicRecord, found.value, found.key.path)).state in states
    ]


async def describe_topic(context: LogContext, topic: str) -> TopicDescription:
    """The topic, and the first and next offset of each of its logs."""
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
    if control is None or control.incarnation != topic.incarnation:  # not initialized in this incarnation
        return PartitionDescription(partition, None, topic.first_offset, topic.first_offset)
    return PartitionDescription(partition, control.log_state, control.log_start_offset, control.sequence_counter)
