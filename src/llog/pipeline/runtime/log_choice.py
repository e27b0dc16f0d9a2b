"""Which logs a job works on: "topic" or "topic:partition" as the caller names them, or all logs of all live topics.

An unknown name is an error, never an empty job. `claimed` claims the chosen logs for the duration of a job. A claim is
an ephemeral record that keeps two compactors from doing the same work. It only saves work (R12): a claim that is lost
with its session, or ignored, does no harm, because the compaction record alone guards the publishing of a run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from llog.concurrency import gather_bounded
from llog.errors import (
    FormatError,
    InvalidArgument,
    LlogError,
    MetadataUncertain,
    PartitionOutOfRange,
    TopicNotFound,
    VersionConflict,
)
from llog.formats.values import CompactorClaim, ControlRecord, decode_value, encode_value
from llog.limits import COMPACT_LOGS_AT_ONCE, METADATA_GET_MANY_MAX
from llog.log.context import LogContext
from llog.log.keys import Log, check_partition, check_topic
from llog.log.topics.admin import list_topics
from llog.log.topics.create import load_topic
from llog.stores.metadata.port import ABSENT, Session


def parse_choice(text: str) -> tuple[str, int | None]:
    """`topic`, or `topic:partition`. (A topic's name cannot hold a colon.)"""
    topic, separator, partition = text.partition(":")
    if separator and not (partition.isascii() and partition.isdigit()):
        raise InvalidArgument("log", f"{text!r}: a partition number must follow the colon")
    return check_topic(topic), check_partition(int(partition)) if separator else None


async def logs_of(context: LogContext, topic: str, partition: int | None = None) -> list[Log]:
    """The one partition, or all of them. Raises `TopicNotFound` unless the topic is live."""
    found = await load_topic(context, check_topic(topic), strict=True)
    if found is None or found[0].state != "LIVE":
        raise TopicNotFound(topic, "no such topic; `llog topic list` lists the topics")
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


# -- claims ------------------------------------------------------------------------------------------------------------


class LiveLogs(NamedTuple):
    incarnations: dict[Log, int]
    unreadable: dict[Log, FormatError]
    """Logs with a damaged control record."""


async def live_logs(context: LogContext, logs: Sequence[Log] | None) -> LiveLogs:
    """Those of `logs` (None: of every live topic) that exist and are not deleted."""
    logs = await chosen_logs(context) if logs is None else logs
    live = LiveLogs({}, {})
    for first in range(0, len(logs), METADATA_GET_MANY_MAX):
        some = logs[first : first + METADATA_GET_MANY_MAX]
        records = await context.metadata.get_many([context.keys.control(log) for log in some])
        for log, record in zip(some, records, strict=True):
            if record is None:
                continue
            try:
                control = decode_value(ControlRecord, record.value, record.key.path)
            except FormatError as error:
                live.unreadable[log] = error
                continue
            if control.log_state != "DELETED":
                live.incarnations[log] = control.incarnation
    return live


async def claim(context: LogContext, log: Log, session: Session, *, compactor_id: str, incarnation: int) -> bool:
    """Whether this compactor holds the claim on the log."""
    key = context.keys.claim(log)
    value = CompactorClaim(incarnation=incarnation, compactor_id=compactor_id, claimed_at_ms=context.now_ms())
    try:
        await context.metadata.put(key, encode_value(value), expected=ABSENT, session=session)
        return True
    except (VersionConflict, MetadataUncertain):
        held = await holder(context, log)
        return held is not None and held.compactor_id == compactor_id


async def holder(context: LogContext, log: Log) -> CompactorClaim | None:
    found = await context.metadata.get(context.keys.claim(log))
    return None if found is None else decode_value(CompactorClaim, found.value, found.key.path)


async def release(context: LogContext, log: Log, *, compactor_id: str) -> None:
    """Remove our claim; another compactor's claim stays."""
    found = await context.metadata.get(context.keys.claim(log), strict=True)
    if found is None or decode_value(CompactorClaim, found.value, found.key.path).compactor_id != compactor_id:
        return
    try:
        await context.metadata.delete(found.key, expected=found.version)
    except (VersionConflict, MetadataUncertain):
        return


class LogClaims(NamedTuple):
    ours: list[Log]
    failed: dict[Log, LlogError]
    """Logs with a claim that could not be read or written."""


@asynccontextmanager
async def claimed(
    context: LogContext, logs: dict[Log, int], *, owner: str, session_timeout_ms: int
) -> AsyncIterator[LogClaims]:
    """Claim the logs for as long as the session of the claims lasts. A lost session does no harm: a claim only saves
    work (R12)."""
    name = f"{owner}/{context.random_bits(64):016x}"
    session = await context.metadata.open_session(timeout_ms=session_timeout_ms, on_lost=lambda: None)
    try:

        async def take(log: Log) -> bool | LlogError:
            try:
                return await claim(context, log, session, compactor_id=name, incarnation=logs[log])
            except LlogError as error:
                return error

        taken = dict(zip(logs, await gather_bounded(list(logs), take, limit=COMPACT_LOGS_AT_ONCE), strict=True))
        yield LogClaims(
            [log for log, ours in taken.items() if ours is True],
            {log: error for log, error in taken.items() if isinstance(error, LlogError)},
        )
    finally:
        await session.close()
