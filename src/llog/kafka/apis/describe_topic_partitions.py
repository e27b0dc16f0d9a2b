"""DescribeTopicPartitions: topics in pages of partitions. API key 75, version 0.

Topics are answered by name. The cursor names the first partition of the next page. An empty list asks for all topics.
"""

from __future__ import annotations

from typing import Final

from llog.broker.cluster import zone_of_client
from llog.errors import InvalidArgument, LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import unauthorized, visible
from llog.kafka.codec.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from llog.kafka.codec.messages.metadata import MetadataResponsePartition
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.operations import topic_operations
from llog.log.keys import check_topic
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import ResourceType

PARTITIONS_PER_ANSWER_MAX: Final = 2_000
"""As Kafka's default (`max.request.partition.size.limit`)."""


async def handle(call: Call) -> DescribeTopicPartitionsResponse:
    request: DescribeTopicPartitionsRequest = call.request
    cursor, everything = request.cursor, not request.topics
    first = "" if cursor is None else cursor.topic_name
    names = sorted({topic.name for topic in request.topics if topic.name >= first})
    if cursor is not None and (cursor.partition_index < 0 or not (everything or cursor.topic_name in names)):
        return _refused(request)
    topics: dict[str, KnownTopic | LlogError] = {}
    if everything:
        topics = {topic.name: topic for topic in visible(call, await call.services.topics.all()) if topic.name >= first}
        if cursor is not None and cursor.topic_name not in topics:
            cursor = None  # deleted since the last page: go on with the topic behind it
    else:
        denied = call.denied(ResourceType.TOPIC, names)
        valid = [name for name in names if name not in denied and _is_valid(name)]
        found = await call.services.topics.find(valid) | dict.fromkeys(denied, unauthorized(ResourceType.TOPIC))
        topics = {name: found.get(name) or InvalidArgument("topic", "its name is invalid") for name in names}
    return await _page(call, topics, 0 if cursor is None else cursor.partition_index)


async def _page(
    call: Call, topics: dict[str, KnownTopic | LlogError], first_partition: int
) -> DescribeTopicPartitionsResponse:
    """One page. `first_partition` is of the first topic."""
    services = call.services
    zone = zone_of_client(call.client_id)
    room = max(1, min(call.request.response_partition_limit, PARTITIONS_PER_ANSWER_MAX))
    answered: list[DescribeTopicPartitionsResponseTopic] = []
    for name, topic in topics.items():
        if room == 0:
            return DescribeTopicPartitionsResponse(topics=answered, next_cursor=Cursor(name, 0))
        if isinstance(topic, LlogError):
            answered.append(_failed(call, name, topic))
            continue
        [partitions] = await services.leaders.of(services.cluster, [topic], zone)
        end = min(first_partition + room, len(partitions))
        operations = topic_operations(call, name)
        shown = [_shown(one) for one in partitions[first_partition:end]]
        answered.append(
            DescribeTopicPartitionsResponseTopic(ErrorCode.NONE, name, topic.id_bytes, False, shown, operations)
        )
        if end < len(partitions):
            return DescribeTopicPartitionsResponse(topics=answered, next_cursor=Cursor(name, end))
        room -= len(shown)
        first_partition = 0
    return DescribeTopicPartitionsResponse(topics=answered)


def _shown(partition: MetadataResponsePartition) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=partition.error_code,
        partition_index=partition.partition_index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replica_nodes,
        isr_nodes=partition.isr_nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
    )


def _failed(call: Call, name: str, error: LlogError) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if isinstance(error, InvalidArgument) else code_of(error)
    return DescribeTopicPartitionsResponseTopic(code, name, topic_authorized_operations=topic_operations(call, name))


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """The cursor points to no partition that the request names."""
    names = dict.fromkeys(topic.name for topic in request.topics)
    code = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(topics=[DescribeTopicPartitionsResponseTopic(code, name) for name in names])


def _is_valid(name: str) -> bool:
    try:
        check_topic(name)
    except InvalidArgument:
        return False
    return True


HANDLER = Handler(key=75, handle=handle)
