"""Topic records, and the initialization of logs (R13).

A topic's record is never removed: it holds the current incarnation of the name, and every value under a log carries
that number. Any process that meets a half-initialized log of a LIVE topic finishes it. Values of an earlier incarnation
are replaced by version; values of a later one are never touched.

The number of partitions decides where a key goes, so only administration changes the number of an existing topic. One
exception: a topic that a first write created (`TopicRecord.auto_created`) gets further partitions by HTTP produce, up
to `auto_partitions_max`.
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
    LogError,
    MetadataStoreError,
    MetadataUncertain,
    PartitionOutOfRange,
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
from llog.log.change import lost_race_or_unavailable
from llog.log.context import LogChange, LogContext, LogOptions
from llog.log.control import new_control
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT, Key

LOG_INITIALIZE_ROUNDS_MAX: Final = 32
# Partitions of one topic that are initialized or deleted at the same time.
TOPIC_PARTITIONS_IN_FLIGHT_MAX: Final = 16

CREATED_AGAIN: Final = "the topic was deleted and created again; this write was meant for the earlier one"

T = TypeVar("T")
V = TypeVar("V", ControlRecord, CompactionRecord, ProducerSnapshot)


class KnownControl(NamedTuple):
    control: ControlRecord
    version: int


class FirstWrite(NamedTuple):
    """What a write may do where the topic or its partition is missing. (Administration passes none, and may create the
    topic and add partitions up to `topic_partitions_max`.)"""

    partitions: int = 1
    """Partitions of the topic, if the write creates it."""
    grows: bool = False
    """The write adds partitions to a topic that a first write created: HTTP produce."""


class Expected(NamedTuple):
    """The incarnation of the topic that a write means, as a strict read has shown it. A lower one is a stale read."""

    incarnation: int
    only: bool = True
    """All of the write means it: nothing is created or grown, and a later incarnation refuses the write."""


async def load_topic(context: LogContext, topic: str, *, strict: bool = False) -> tuple[TopicRecord, int] | None:
    record = await context.metadata.get(context.keys.topic(topic), strict=strict)
    return None if record is None else (decode_value(TopicRecord, record.value, record.key.path), record.version)


async def initialize(
    context: LogContext,
    log: Log,
    *,
    first_offset: int = 1,
    topic_id: str | None = None,
    write: FirstWrite | None = None,
    expected: Expected | None = None,
) -> KnownControl:
    """The log's control record of the topic's current incarnation; creates it, and the records beside it, if missing.

    Idempotent and safe under concurrency: every step is create-if-absent or replaces by version. Safe also when it
    comes late: by the time a topic is DELETED, a tombstone is at every control key, so the last step of a delayed
    initialization fails (h01e, h23), and its first steps only wrote values of a dead incarnation.

    With `topic_id`, nothing is created or grown unless the LIVE topic has this id; with `expected`, as that says.
    `write` limits what a write may do to the topic; `PartitionOutOfRange` names the topic's partition count.
    """
    async for round_number in context.rounds(LOG_INITIALIZE_ROUNDS_MAX):
        strict = round_number > 0
        try:
            topic = await _live_topic(context, log, first_offset, topic_id, write, expected, strict=strict)
            if topic is not None:
                # Control comes last: if it exists, so do the others. The empty producer snapshot records from which
                # offset on producer state is read; that is unknown later, when the log's first entries are gone. A
                # topic that is created again has forgotten the producers of its earlier incarnations, which may go on.
                snapshot = ProducerSnapshot(
                    incarnation=topic.incarnation,
                    as_of=topic.first_offset,
                    pages=0,
                    forgot=topic.incarnation > 1,
                )
                await _ensure(context, context.keys.producers(log), ProducerSnapshot, snapshot, strict)
                await _ensure(context, context.keys.compaction(log), CompactionRecord, _first_compaction(topic), strict)
                known = await _control(context, log, topic, strict)
                # A tombstone of the incarnation that we took for LIVE: the topic's record has changed, read it again.
                if known is not None and known[0].log_state != "DELETED":
                    return KnownControl(*known)
        except MetadataStoreError as error:
            if not lost_race_or_unavailable(error):
                raise
    reason = "it could not be initialized: its records kept changing, or the metadata store did not answer; try again"
    raise AppendNotCommitted(*log, reason)


async def _live_topic(
    context: LogContext,
    log: Log,
    first_offset: int,
    topic_id: str | None,
    write: FirstWrite | None,
    expected: Expected | None,
    *,
    strict: bool,
) -> TopicRecord | None:
    """The topic's record if it is LIVE and has the partition; None after a change, to read again."""
    limit = context.options.topic_partitions_max
    if write is None and log.partition >= limit:
        raise PartitionOutOfRange(*log, f"partitions go from 0 to {limit - 1} (LLOG_TOPIC_PARTITIONS_MAX)")
    key = context.keys.topic(log.topic)
    found = await load_topic(context, log.topic, strict=strict)
    topic, version = found if found is not None else (None, ABSENT)
    if expected is not None and (topic is None or topic.incarnation < expected.incarnation):
        return None
    refusal = _refusal(context.options, topic, log, topic_id, write, expected)
    if refusal is not None:
        if not strict:
            return None  # no write proves a refusal, so it takes a strict read (R7)
        raise refusal
    if topic is None or topic.state == "DELETED":
        count = log.partition + 1 if write is None else min(write.partitions, _write_limit(context.options)[0])
        changed = new_topic(
            context, topic, partition_count=count, first_offset=first_offset, auto_created=write is not None
        )
    elif log.partition >= topic.partition_count:
        changed = replace(topic, partition_count=log.partition + 1)
    else:
        return topic
    change = topic_change(log.topic, topic, changed)
    change = change._replace(after={**change.after, "by": "first use"})
    try:
        await context.metadata.put(key, encode_value(changed, key.path), expected=version)
    except MetadataUncertain:
        context.on_change(change._replace(certain=False))
        raise
    context.on_change(change)
    return None


def _refusal(
    options: LogOptions,
    topic: TopicRecord | None,
    log: Log,
    topic_id: str | None,
    write: FirstWrite | None,
    expected: Expected | None,
) -> LogError | None:
    """Why the log cannot be initialized; None when it can."""
    if topic is not None and topic.state == "DELETING":
        return LogDeleted(*log, "the topic is being deleted")
    gone = topic is None or topic.state == "DELETED"
    if topic_id is not None:
        if topic is None or gone or topic.topic_id != topic_id:
            return LogDeleted(*log, "the topic was deleted")
        return None if log.partition < topic.partition_count else LogDeleted(*log, "the topic has no such partition")
    if expected is not None and expected.only:
        if topic is None or gone or topic.incarnation != expected.incarnation:
            return LogDeleted(*log, "the topic was deleted" if gone else CREATED_AGAIN)
        if log.partition >= topic.partition_count:
            return PartitionOutOfRange(*log, f"the topic has {_counted(topic.partition_count)}, numbered from 0")
        return None
    if gone and not options.auto_create_topics:
        state = "no such topic" if topic is None else "the topic was deleted"
        reason = f"{state}, and automatic creation is off (LLOG_AUTO_CREATE_TOPICS); create it first"
        return LogDeleted(*log, reason)
    return None if write is None else _growth_refusal(options, None if gone else topic, log, write)


def _growth_refusal(
    options: LogOptions, topic: TopicRecord | None, log: Log, write: FirstWrite
) -> PartitionOutOfRange | None:
    """Why this write may not create the topic (None: it does not exist) with the partition, or add the partition."""
    most, setting = _write_limit(options)
    if topic is None:
        count = min(write.partitions, most)
        if log.partition < count:
            return None
        limit = f" ({setting})" if count == most else ""
        reason = (
            f"no such topic, and this write would create it with {_counted(count)}{limit}; create it first with "
            f"`llog topic create {log.topic} --partitions {log.partition + 1}` or POST /topics"
        )
        return PartitionOutOfRange(*log, reason)
    if log.partition < topic.partition_count:
        return None
    if not topic.auto_created:
        rule = "no write adds partitions, because it was created explicitly"
    elif not write.grows:
        rule = "only HTTP produce adds partitions to it"
    elif log.partition < most:
        return None
    else:
        rule = f"HTTP produce adds partitions only up to {most} ({setting})"
    reason = (
        f"the topic has {_counted(topic.partition_count)}, numbered from 0, and {rule}; add partitions with "
        f"`llog topic partitions {log.topic} {log.partition + 1}` or POST /topics/{log.topic}/partitions"
    )
    return PartitionOutOfRange(*log, reason)


def _write_limit(options: LogOptions) -> tuple[int, str]:
    """Most partitions of a topic that writes create or extend, and the setting that says so."""
    if options.topic_partitions_max < options.auto_partitions_max:
        return options.topic_partitions_max, "LLOG_TOPIC_PARTITIONS_MAX"
    return options.auto_partitions_max, "LLOG_AUTO_PARTITIONS_MAX"


def _counted(partitions: int) -> str:
    return f"{partitions} partition" if partitions == 1 else f"{partitions} partitions"


def new_topic(
    context: LogContext,
    dead: TopicRecord | None,
    *,
    partition_count: int,
    first_offset: int,
    config: Mapping[str, str] | None = None,
    auto_created: bool = False,
) -> TopicRecord:
    """The record of a new topic, after the `dead` one of the same name; its random id lets the creator recognise it."""
    return TopicRecord(
        # We must not replace a newer release's record: encoding refuses this (h18).
        v=VALUE_VERSION if dead is None else max(VALUE_VERSION, dead.v),
        topic_id=str(uuid.UUID(int=context.random_bits(128), version=4)),
        incarnation=1 if dead is None else dead.incarnation + 1,
        state="LIVE",
        partition_count=partition_count,
        partition_count_ever=0 if dead is None else max(dead.partition_count, dead.partition_count_ever),
        first_offset=first_offset,
        config=dict(config or {}),
        created_at_ms=context.now_ms(),
        auto_created=auto_created,
    )


def topic_change(topic: str, before: TopicRecord | None, after: TopicRecord) -> LogChange:
    """What differs between two records of a topic."""
    if before is None or before.incarnation != after.incarnation:
        made = {"incarnation": after.incarnation, "partitions": after.partition_count, **after.config}
        if after.auto_created:
            made["by"] = "first use"
        return LogChange("topic.create", topic, after=made)
    if before.state != after.state:
        of = {"incarnation": after.incarnation, "partitions": after.partition_count}
        return LogChange("topic.delete", topic, {"state": before.state}, {"state": after.state, **of})
    if before.partition_count != after.partition_count:
        partitions = {"partitions": before.partition_count}, {"partitions": after.partition_count}
        return LogChange("topic.grow", topic, *partitions)
    names = sorted(dict(before.config.items() ^ after.config.items()))
    was, now = ({name: record.config.get(name) for name in names} for record in (before, after))
    return LogChange("topic.alter", topic, was, now)


async def for_each_partition(count: int, act: Callable[[int], Awaitable[T]]) -> list[T]:
    """Run `act` for partitions 0 to `count` - 1, several at a time; raise the first error after all have run."""
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
        control = decode_value(ControlRecord, found.value, key.path)
        if control.incarnation >= topic.incarnation:
            return (control, found.version) if control.incarnation == topic.incarnation else None
    # A commit horizon from a clock that is ahead would refuse the blobs of all other writers until that time.
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
    """The value of this incarnation, created if missing; None if the value is of a later one (our topic is stale)."""
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
