"""CreateTopics. API key 19, versions 2-7.

| version | added |
|---|---|
| 4 | -1 partitions: LLOG_DEFAULT_PARTITIONS; -1 replicas: the default |
| 5 | the answer holds partitions, replication factor and all configs of a new topic |
| 7 | topic ids |

Topics begin at offset 0. Any replication factor is accepted and 1 is answered: the object store keeps the copies. An
assignment of replicas counts only as the number of partitions. Unlike Kafka, names may differ in `.` and `_` alone.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final
from uuid import UUID

from llog.errors import LlogError, TopicAlreadyExists, TopicBeingDeleted, TopicNotFound
from llog.kafka.administration import KAFKA_FIRST_OFFSET, audited
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import may_create, unauthorized
from llog.kafka.codec import ZERO_UUID
from llog.kafka.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from llog.kafka.error_codes import ErrorCode, Refusal, code_of
from llog.kafka.found_topics import found_topics
from llog.kafka.topic_configs import checked, shown_configs
from llog.log.topics.admin import create_topic
from llog.security.acl import Operation, ResourceType

REPLICATION_FACTOR: Final = 1
"""Of every topic, as clients see it."""
_DEFAULT: Final = -1


async def handle(call: Call) -> CreateTopicsResponse:
    request: CreateTopicsRequest = call.request
    times = Counter(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics if times[topic.name] == 1}
    outcomes = await call.services.changes.run(
        {name: partial(_create, call, topic) for name, topic in wanted.items()}, request.timeout_ms
    )
    twice = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    return CreateTopicsResponse(topics=[_result(name, outcomes.get(name, twice)) for name in times])


def _result(name: str, outcome: CreatableTopicResult | LlogError) -> CreatableTopicResult:
    if isinstance(outcome, CreatableTopicResult):
        return outcome
    code = ErrorCode.TOPIC_ALREADY_EXISTS if isinstance(outcome, TopicBeingDeleted) else code_of(outcome)
    return CreatableTopicResult(name, error_code=code, error_message=str(outcome), configs=[])


async def _create(call: Call, topic: CreatableTopic) -> CreatableTopicResult:
    broker, dry_run = call.services.broker, call.request.validate_only
    with audited(call, "topic.create", topic.name, topic.name, dry_run=dry_run):
        if not may_create(call, topic.name):
            raise unauthorized(ResourceType.TOPIC)
        found = (await found_topics(call, [topic.name]))[topic.name]
        if not isinstance(found, LlogError):
            raise TopicAlreadyExists(topic.name, f"it exists, with {found.partition_count} partitions")
        if not isinstance(found, TopicNotFound):
            raise found
        config = checked({one.name: one.value for one in topic.configs})
        count = partition_count(topic, broker.settings.default_partitions, broker.settings.topic_partitions_max)
        if dry_run:
            return _created(call, topic.name, ZERO_UUID, count, config)
        made = await create_topic(
            broker.context, topic.name, partitions=count, config=config, first_offset=KAFKA_FIRST_OFFSET
        )
    return _created(call, topic.name, UUID(made.record.topic_id).bytes, count, made.record.config)


def _created(call: Call, name: str, topic_id: bytes, count: int, config: dict[str, str]) -> CreatableTopicResult:
    if not call.sees(ResourceType.TOPIC, name, Operation.DESCRIBE_CONFIGS):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return CreatableTopicResult(
            name, topic_id=topic_id, error_message=None, topic_config_error_code=code, configs=[]
        )
    configs = [CreatableTopicConfigs(one.name, one.value, False, one.source, False) for one in shown_configs(config)]
    return CreatableTopicResult(
        name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=count,
        replication_factor=REPLICATION_FACTOR,
        configs=configs,
    )


def partition_count(topic: CreatableTopic, default: int, limit: int) -> int:
    """How many partitions the topic gets; `Refusal` with Kafka's codes."""
    if topic.assignments:
        if topic.num_partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
            reason = "with an assignment of replicas, partitions and replication factor must be -1"
            raise Refusal(ErrorCode.INVALID_REQUEST, reason)
        count = len(topic.assignments)
        if count <= limit and sorted(one.partition_index for one in topic.assignments) != list(range(count)):
            reason = "an assignment of replicas must name every partition from 0 on once"
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        if not all(one.broker_ids for one in topic.assignments):
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an assignment of replicas names no broker")
    else:
        if topic.replication_factor < 1 and topic.replication_factor != _DEFAULT:
            reason = f"replication factor {topic.replication_factor} must be positive, or -1 for the default"
            raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
        count = min(default, limit) if topic.num_partitions == _DEFAULT else topic.num_partitions
    if not 1 <= count <= limit:
        reason = f"{count} partitions: must be from 1 to {limit} (LLOG_TOPIC_PARTITIONS_MAX), or -1 for the default"
        raise Refusal(ErrorCode.INVALID_PARTITIONS, reason)
    return count


HANDLER = Handler(
    key=19,
    handle=handle,
    added={
        4: "-1 partitions or replicas: the default",
        5: "the answer holds partitions, replication factor and configs",
        7: "topic ids",
    },
    left_out=(
        "Replicas: any replication factor and any assignment is accepted, and 1 is answered. With validate_only, the"
        " answer has no topic id. Names that differ only in `.` and `_` do not collide."
    ),
)
