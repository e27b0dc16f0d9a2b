"""Topics and the beginning of logs (R13).

A topic's record is never removed: it says which life of the name is current, and everything under a log carries that
number. Whoever meets a log of a LIVE topic that is only half there finishes it; what a dead life left behind is
replaced by version, and what a later life wrote is never touched.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from llog.errors import (
    AppendNotCommitted,
    LlogError,
    LogDeleted,
    MetadataStoreError,
    PartitionOutOfRange,
    VersionConflict,
)
from llog.formats.values import (
    VALUE_VERSION,
    CompactionRecord,
    ControlRecord,
    ProducerSnapshot,
    TopicRecord,
    Value,
    decode_value,
    encode_value,
)
from llog.log.context import LogContext, LogOptions
from llog.log.control import new_control
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT, Key

LOG_INITIALIZE_ROUNDS_MAX: Final = 32
# Partitions of one topic that are initialized or deleted at the same time.
TOPIC_PARTITIONS_IN_FLIGHT_MAX: Final = 16


T = TypeVar("T")
V = TypeVar("V", ControlRecord, CompactionRecord, ProducerSnapshot)


class KnownControl(NamedTuple):
    control: ControlRecord
    version: int


async def load_topic(context: LogContext, topic: str, *, strict: bool = False) -> tuple[TopicRecord, int] | None:
    record = await context.metadata.get(context.keys.topic(topic), strict=strict)
    return None if record is None else (decode_value(TopicRecord, record.value, record.key.path), record.version)


async def initialize(
    context: LogContext, log: Log, *, first_offset: int = 1, topic_id: str | None = None
) -> KnownControl:
    """The log's control record of the topic's current life, with everything that must stand beside it.

    Idempotent, and safe against anyone doing the same: every step is create-if-absent or replaces by version. Safe also
    when it comes late: by the time a topic is DELETED a tombstone stands at every control key, so the last step of an
    initialization that slept fails (h01e, h23), and what its first steps left is of a dead life.

    `topic_id` asks for this very topic: nothing is created or grown when it is not the one that is LIVE.
    """
    async for round_number in context.rounds(LOG_INITIALIZE_ROUNDS_MAX):
        strict = round_number > 0
        try:
            topic = await _live_topic(context, log, first_offset, topic_id, strict=strict)
            if topic is not None:
                # Control comes last: where it stands, the others stand too. The empty producer snapshot says from where
                # on producers are to be read; nobody could tell that later, when the log's first entries are gone.
                snapshot = ProducerSnapshot(incarnation=topic.incarnation, as_of=topic.first_offset, pages=0)
                await _ensure(context, context.keys.producers(log), ProducerSnapshot, snapshot, strict)
                await _ensure(context, context.keys.compaction(log), CompactionRecord, _first_compaction(topic), strict)
                known = await _control(context, log, topic, strict)
                # A tombstone of the life we took for LIVE: the topic's record has moved on, look at it again.
                if known is not None and known[0].log_state != "DELETED":
                    return KnownControl(*known)
        except MetadataStoreError as error:
            # Somebody else moved it, or nobody knows, or no answer came: the next round looks at what is there.
            if not (error.retriable or isinstance(error, VersionConflict)):
                raise
    raise AppendNotCommitted(*log, "it could not be initialized: its records kept changing, or no answers came")


async def _live_topic(
    context: LogContext, log: Log, first_offset: int, topic_id: str | None, *, strict: bool
) -> TopicRecord | None:
    """The topic's record once it is LIVE and holds the partition; None after a change, to look again."""
    if log.partition >= context.options.topic_partitions_max:
        limit = context.options.topic_partitions_max
        raise PartitionOutOfRange(*log, f"partitions go from 0 to {limit - 1} (LLOG_TOPIC_PARTITIONS_MAX)")
    key = context.keys.topic(log.topic)
    found = await load_topic(context, log.topic, strict=strict)
    topic, version = found if found is not None else (None, ABSENT)
    refusal = _refusal(context.options, topic, log.partition, topic_id)
    if refusal is not None:
        if not strict:
            return None  # no write would prove it, so it takes a strict read (R7)
        raise LogDeleted(*log, refusal)
    if topic is None or topic.state == "DELETED":
        again = new_topic(context, topic, partition_count=log.partition + 1, first_offset=first_offset)
        await context.metadata.put(key, encode_value(again, key.path), expected=version)
        return None
    if log.partition >= topic.partition_count:
        raised = replace(topic, partition_count=log.partition + 1)
        await context.metadata.put(key, encode_value(raised, key.path), expected=version)
        return None
    return topic


def _refusal(options: LogOptions, topic: TopicRecord | None, partition: int, topic_id: str | None) -> str | None:
    """Why the log cannot be initialized; None when it can."""
    if topic is not None and topic.state == "DELETING":
        return "the topic is being deleted"
    gone = topic is None or topic.state == "DELETED"
    if topic_id is not None:
        if topic is None or gone or topic.topic_id != topic_id:
            return "the topic was deleted"
        return None if partition < topic.partition_count else "the topic has no such partition"
    if gone and not options.auto_create_topics:
        what = "no such topic" if topic is None else "the topic was deleted"
        return f"{what}, and topics are not created by themselves"
    return None


def new_topic(
    context: LogContext,
    dead: TopicRecord | None,
    *,
    partition_count: int,
    first_offset: int,
    config: Mapping[str, str] | None = None,
) -> TopicRecord:
    """The record of a topic that begins, after its `dead` one; its id is drawn here, so that its maker knows it."""
    return TopicRecord(
        # What a newer release wrote is not ours to replace: encoding refuses this (h18).
        v=VALUE_VERSION if dead is None else max(VALUE_VERSION, dead.v),
        topic_id=str(uuid.UUID(int=context.random_bits(128), version=4)),
        incarnation=1 if dead is None else dead.incarnation + 1,
        state="LIVE",
        partition_count=partition_count,
        partition_count_ever=0 if dead is None else max(dead.partition_count, dead.partition_count_ever),
        first_offset=first_offset,
        config=dict(config or {}),
        created_at_ms=context.now_ms(),
    )


async def for_each_partition(count: int, act: Callable[[int], Awaitable[T]]) -> list[T]:
    """`act` on partitions 0 to `count` - 1, several at a time. Each gets its turn; then the first error is raised."""
    left, results, errors = iter(range(count)), list[T](), list[LlogError]()

    async def work() -> None:
        for partition in left:
            try:
                results.append(await act(partition))
            except LlogError as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(count, TOPIC_PARTITIONS_IN_FLIGHT_MAX)):
            group.create_task(work())
    if errors:
        raise errors[0]
    return results


async def _control(context: LogContext, log: Log, topic: TopicRecord, strict: bool) -> tuple[ControlRecord, int] | None:
    key = context.keys.control(log)
    found = await context.metadata.get(key, strict=strict)
    if found is not None:
        there = decode_value(ControlRecord, found.value, key.path)
        if there.incarnation >= topic.incarnation:
            return (there, found.version) if there.incarnation == topic.incarnation else None
    # A horizon of a clock that is ahead would refuse the blobs of everybody else until its time has come.
    first = new_control(
        incarnation=topic.incarnation,
        first_offset=topic.first_offset,
        now_ms=await context.earliest_now_ms(),
        vacuum_grace_ms=context.options.vacuum_grace_ms,
    )
    return await _ensure(context, key, ControlRecord, first, strict)


def _first_compaction(topic: TopicRecord) -> CompactionRecord:
    return CompactionRecord(incarnation=topic.incarnation, offset=topic.first_offset)


async def _ensure(context: LogContext, key: Key, kind: type[V], first: V, strict: bool) -> tuple[V, int] | None:
    """The value of this life, made if need be; None when what is there belongs to a later one (our topic is stale)."""
    record = await context.metadata.get(key, strict=strict)
    if record is None:
        return first, await context.metadata.put(key, _encoded(first, key), expected=ABSENT)
    value = decode_value(kind, record.value, key.path)
    if value.incarnation < first.incarnation:
        first = replace(first, v=max(first.v, value.v))  # a newer release's value refuses to be encoded (h18)
        return first, await context.metadata.put(key, _encoded(first, key), expected=record.version)
    return (value, record.version) if value.incarnation == first.incarnation else None


def _encoded(value: Value, key: Key) -> bytes:
    return encode_value(value, key.path)
