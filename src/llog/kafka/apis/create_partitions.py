"""CreatePartitions: grow a topic. API key 37, versions 0-3 (no version adds a field).

An assignment of replicas must have an entry per new partition, and has no effect.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from llog.errors import LlogError
from llog.kafka.administration import audited
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import check_allowed
from llog.kafka.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.found_topics import found_topic
from llog.log.topics.admin import add_partitions
from llog.security.acl import ResourceType


async def handle(call: Call) -> CreatePartitionsResponse:
    request: CreatePartitionsRequest = call.request
    times = Counter(topic.name for topic in request.topics)
    outcomes = await call.services.changes.run(
        {topic.name: partial(_grow, call, topic) for topic in request.topics if times[topic.name] == 1},
        request.timeout_ms,
    )
    twice = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    return CreatePartitionsResponse(results=[_result(name, outcomes.get(name, twice)) for name in times])


async def _grow(call: Call, topic: CreatePartitionsTopic) -> None:
    dry_run, settings = call.request.validate_only, call.services.broker.settings
    with audited(call, "topic.grow", topic.name, topic.name, dry_run=dry_run):
        check_allowed(call, ResourceType.TOPIC, topic.name)
        known = await found_topic(call, topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        check_growth(topic, known.partition_count, settings.topic_partitions_max)
        if not dry_run:
            await add_partitions(call.services.broker.context, topic.name, topic.count)


def check_growth(topic: CreatePartitionsTopic, before: int, limit: int) -> None:
    """`Refusal` with Kafka's codes."""
    if topic.count <= before:
        reason = f"{topic.name} has {before} partitions, so {topic.count} would not be an increase"
        raise Refusal(ErrorCode.INVALID_PARTITIONS, reason)
    if topic.count > limit:
        reason = f"{topic.count} partitions are more than {limit} (LLOG_TOPIC_PARTITIONS_MAX)"
        raise Refusal(ErrorCode.INVALID_PARTITIONS, reason)
    if topic.assignments is not None:
        if len(topic.assignments) != topic.count - before:
            reason = f"{topic.count - before} partitions are added, but {len(topic.assignments)} are assigned"
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        if not all(one.broker_ids for one in topic.assignments):
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an assignment of replicas names no broker")


def _result(name: str, outcome: LlogError | None) -> CreatePartitionsTopicResult:
    if outcome is None:
        return CreatePartitionsTopicResult(name)
    return CreatePartitionsTopicResult(name, code_of(outcome), str(outcome))


HANDLER = Handler(key=37, handle=handle, left_out="Replicas: an assignment is checked and has no effect.")
