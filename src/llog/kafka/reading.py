"""What Fetch, ListOffsets and OffsetForLeaderEpoch share: topics and logs of a request, and leader epochs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from llog.concurrency import batched, gather_bounded
from llog.errors import FormatError, InvalidArgument, LlogError, PartitionNotInitialized, TopicNotFound
from llog.kafka.apis.handler import Call
from llog.kafka.authorization import judged_by_id
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.services import KafkaServices
from llog.log.keys import Log
from llog.log.read.slices import LEADER_EPOCH
from llog.log.read.view import LogView, view_of
from llog.log.topics.create import initialize
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import ResourceType
from llog.stores.metadata.port import Record

# Partitions of one request that are planned or answered before other tasks get their turn: about a millisecond.
PARTITIONS_PER_TURN: Final = 512
# Strict reads of one request at the same time, and the logs of each.
VIEW_READS_IN_FLIGHT_MAX: Final = 4
VIEW_READ_LOGS_MAX: Final = 256
# Logs of one request that are initialized at the same time.
INITIALIZATIONS_IN_FLIGHT_MAX: Final = 16

NO_EPOCH: Final = -1

K = TypeVar("K")
T = TypeVar("T")
Found = KnownTopic | ErrorCode


async def in_turns(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The items, some at a time, with a turn for other tasks in between."""
    for number, some in enumerate(batched(items, PARTITIONS_PER_TURN)):
        if number:
            await asyncio.sleep(0)
        yield some


async def find_topics(call: Call, names: Sequence[str]) -> dict[str, Found]:
    """Each topic, or the code that its partitions are answered with; without waiting if all are fresh. Topics that the
    client has no right to are not looked up."""
    topics = call.services.topics
    denied = call.denied(ResourceType.TOPIC, names)
    if not denied:
        return _found(await topics.find(names), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refused: dict[str, Found] = dict.fromkeys(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    found = await topics.find([name for name in names if name not in denied])
    return refused | _found(found, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def find_topics_by_id(call: Call, ids: Sequence[bytes]) -> dict[bytes, Found]:
    topics = call.services.topics
    found: dict[bytes, KnownTopic | LlogError]
    try:
        found = await topics.find_by_id(ids)
    except LlogError as error:  # of listing all topics
        found = {topic_id: topics.fresh_by_id(topic_id) or error for topic_id in ids}
    if call.authorizer is not None:
        found = {topic_id: judged_by_id(call, topic) for topic_id, topic in found.items()}
    return _found(found, ErrorCode.UNKNOWN_TOPIC_ID)


def _found(answers: dict[K, KnownTopic | LlogError], unknown: ErrorCode) -> dict[K, Found]:
    found: dict[K, Found] = {}
    for key, answer in answers.items():
        if isinstance(answer, KnownTopic):
            found[key] = answer
        else:  # no topic has an invalid name
            is_unknown = isinstance(answer, TopicNotFound | InvalidArgument)
            found[key] = unknown if is_unknown else code_of(answer)
    return found


def partition_error(topic: Found, partition: int, current_leader_epoch: int) -> ErrorCode:
    """NONE if the partition exists and the client does not expect another leader epoch than it has."""
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= partition < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if current_leader_epoch in (NO_EPOCH, LEADER_EPOCH):
        return ErrorCode.NONE
    if current_leader_epoch > LEADER_EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.FENCED_LEADER_EPOCH


async def initialize_logs(services: KafkaServices, logs: Sequence[tuple[KnownTopic, Log]]) -> None:
    """Partitions that exist but were never written may have no control record: create it, so that they are empty logs.
    A log that cannot be initialized stays missing."""

    async def one(wanted: tuple[KnownTopic, Log]) -> None:
        topic, log = wanted
        try:
            await initialize(services.broker.context, log, topic_id=topic.record.topic_id)
        except LlogError:
            services.topics.forget(log.topic)

    await gather_bounded(logs, one, limit=INITIALIZATIONS_IN_FLIGHT_MAX)


async def read_views(services: KafkaServices, logs: Sequence[tuple[KnownTopic, Log]]) -> list[LogView | LlogError]:
    """What the control and compaction records of logs say now, in order; strict reads of many logs at a time."""
    views = await _read_views(services, logs)
    new = [place for place, seen in zip(logs, views, strict=True) if isinstance(seen, PartitionNotInitialized)]
    if new:
        await initialize_logs(services, new)
        views = await _read_views(services, logs)
    return views


async def _read_views(services: KafkaServices, logs: Sequence[tuple[KnownTopic, Log]]) -> list[LogView | LlogError]:
    context = services.broker.context

    async def read(some: Sequence[tuple[KnownTopic, Log]]) -> list[LogView | LlogError]:
        keys = [key for _, log in some for key in (context.keys.control(log), context.keys.compaction(log))]
        try:
            records = await context.metadata.get_many(keys, strict=True)
        except LlogError as error:
            return [error] * len(some)
        await asyncio.sleep(0)
        return [_view(*some[n], *records[2 * n : 2 * n + 2]) for n in range(len(some))]

    parts = await gather_bounded(batched(logs, VIEW_READ_LOGS_MAX), read, limit=VIEW_READS_IN_FLIGHT_MAX)
    return [seen for part in parts for seen in part]


def _view(topic: KnownTopic, log: Log, control: Record | None, compaction: Record | None) -> LogView | LlogError:
    try:
        seen = view_of(control, compaction)
    except FormatError as error:
        return error
    # A topic that we do not know to be re-created is the topic that its name means now.
    return seen if seen is not None and seen.control.incarnation >= topic.incarnation else PartitionNotInitialized(*log)
