"""Topics and the beginning of logs (R13).

A topic's record is never removed: it says which life of the name is current, and everything under a log carries that
number. Whoever meets a log of a LIVE topic that is only half there finishes it; what a dead life left behind is
replaced by version, and what a later life wrote is never touched.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from llog.errors import AppendNotCommitted, LogDeleted, MetadataStoreError, PartitionOutOfRange, VersionConflict
from llog.formats.values import (
    CompactionRecord,
    ControlRecord,
    ProducerSnapshot,
    TopicRecord,
    Value,
    decode_value,
    encode_value,
)
from llog.limits import LOG_INITIALIZE_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.control import new_control
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT, Key

V = TypeVar("V", ControlRecord, CompactionRecord, ProducerSnapshot)


class KnownControl(NamedTuple):
    control: ControlRecord
    version: int


async def load_topic(context: LogContext, topic: str, *, strict: bool = False) -> tuple[TopicRecord, int] | None:
    record = await context.metadata.get(context.keys.topic(topic), strict=strict)
    return None if record is None else (decode_value(TopicRecord, record.value, record.key.path), record.version)


async def initialize(context: LogContext, log: Log, *, first_offset: int = 1) -> KnownControl:
    """The log's control record of the topic's current life, with everything that must stand beside it.

    Idempotent, and safe against anyone doing the same: every step is create-if-absent or replaces by version.
    """
    for round_number in range(LOG_INITIALIZE_ROUNDS_MAX):
        strict = round_number > 0
        try:
            topic = await _live_topic(context, log, first_offset, strict=strict)
            if topic is not None:
                # Control comes last: where it stands, the others stand too. The empty producer snapshot says from where
                # on producers are to be read; nobody could tell that later, when the log's first entries are gone.
                snapshot = ProducerSnapshot(incarnation=topic.incarnation, as_of=topic.first_offset, pages=0)
                await _ensure(context, context.keys.producers(log), ProducerSnapshot, snapshot, strict)
                await _ensure(context, context.keys.compaction(log), CompactionRecord, _first_compaction(topic), strict)
                known = await _ensure(context, context.keys.control(log), ControlRecord, _first(context, topic), strict)
                if known is not None:
                    return KnownControl(*known)
        except MetadataStoreError as error:
            # Somebody else moved it, or nobody knows, or no answer came: the next round looks at what is there.
            if not (error.retriable or isinstance(error, VersionConflict)):
                raise
        await context.back_off(round_number)
    raise AppendNotCommitted(*log, "it could not be initialized: its records kept changing, or no answers came")


async def _live_topic(context: LogContext, log: Log, first_offset: int, *, strict: bool) -> TopicRecord | None:
    """The topic's record once it is LIVE and holds the partition; None after a change, to look again."""
    key = context.keys.topic(log.topic)
    found = await load_topic(context, log.topic, strict=strict)
    if log.partition >= context.options.topic_partitions_max:
        limit = context.options.topic_partitions_max
        raise PartitionOutOfRange(*log, f"partitions go from 0 to {limit - 1} (LLOG_TOPIC_PARTITIONS_MAX)")
    if found is None:
        if not context.options.auto_create_topics:
            raise LogDeleted(*log, "no such topic, and topics are not created by themselves")
        await context.metadata.put(key, encode_value(_new_topic(context, log, 1, first_offset)), expected=ABSENT)
        return None
    topic, version = found
    if topic.state == "DELETING":
        raise LogDeleted(*log, "the topic is being deleted")
    if topic.state == "DELETED":
        if not context.options.auto_create_topics:
            raise LogDeleted(*log, "the topic was deleted, and topics are not created by themselves")
        again = _new_topic(context, log, topic.incarnation + 1, first_offset)
        await context.metadata.put(key, encode_value(again), expected=version)
        return None
    if log.partition >= topic.partition_count:
        raised = replace(topic, partition_count=log.partition + 1)
        await context.metadata.put(key, encode_value(raised, key.path), expected=version)
        return None
    return topic


def _new_topic(context: LogContext, log: Log, incarnation: int, first_offset: int) -> TopicRecord:
    return TopicRecord(
        topic_id=str(uuid.UUID(int=context.random_bits(128), version=4)),
        incarnation=incarnation,
        state="LIVE",
        partition_count=log.partition + 1,
        first_offset=first_offset,
        created_at_ms=context.now_ms(),
    )


def _first(context: LogContext, topic: TopicRecord) -> ControlRecord:
    return new_control(
        incarnation=topic.incarnation,
        first_offset=topic.first_offset,
        now_ms=context.now_ms(),
        vacuum_grace_ms=context.options.vacuum_grace_ms,
    )


def _first_compaction(topic: TopicRecord) -> CompactionRecord:
    return CompactionRecord(incarnation=topic.incarnation, offset=topic.first_offset)


async def _ensure(context: LogContext, key: Key, kind: type[V], first: V, strict: bool) -> tuple[V, int] | None:
    """The value of this life, made if need be; None when what is there belongs to a later one (our topic is stale)."""
    record = await context.metadata.get(key, strict=strict)
    if record is None:
        return first, await context.metadata.put(key, _encoded(first, key), expected=ABSENT)
    value = decode_value(kind, record.value, key.path)
    if value.incarnation < first.incarnation:
        return first, await context.metadata.put(key, _encoded(first, key), expected=record.version)
    return (value, record.version) if value.incarnation == first.incarnation else None


def _encoded(value: Value, key: Key) -> bytes:
    return encode_value(value, key.path)
