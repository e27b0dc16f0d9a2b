"""Refusals by authorization, as Kafka answers them.

A client that may not even describe a topic gets the same answer whether the topic exists or not, before anything is
looked up. To a request that names such a topic by its id, the id is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from llog.errors import LlogError, TopicNotFound
from llog.kafka.apis.handler import Call
from llog.kafka.error_codes import ErrorCode, Refusal
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import CLUSTER_NAME, Operation, ResourceType

CODES: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def unauthorized(kind: ResourceType) -> Refusal:
    """Names nothing: the answer says which resource it is about."""
    return Refusal(CODES[kind], f"{kind.name.lower().replace('_', ' ')} authorization failed")


def check_allowed(call: Call, kind: ResourceType, name: str, operation: Operation | None = None) -> None:
    """`Refusal` if the client may not do this."""
    if not call.allows(kind, name, operation):
        raise unauthorized(kind)


def cluster_refusal(call: Call, operation: Operation | None = None) -> ErrorCode:
    """NONE if the client may do this to the cluster."""
    allowed = call.allows(ResourceType.CLUSTER, CLUSTER_NAME, operation)
    return ErrorCode.NONE if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def may_create(call: Call, topic: str) -> bool:
    """CREATE on the cluster suffices for any topic."""
    return call.sees(ResourceType.CLUSTER, CLUSTER_NAME, Operation.CREATE) or call.allows(
        ResourceType.TOPIC, topic, Operation.CREATE
    )


def visible(call: Call, topics: list[KnownTopic]) -> list[KnownTopic]:
    """The topics that the client may describe."""
    if call.authorizer is None:
        return topics
    return [topic for topic in topics if call.sees(ResourceType.TOPIC, topic.name, Operation.DESCRIBE)]


def judged_by_id(
    call: Call, topic: KnownTopic | LlogError, operation: Operation | None = None
) -> KnownTopic | LlogError:
    """What became of a topic's id, as far as the client may know: without the right to describe the topic, its id is
    unknown."""
    if isinstance(topic, LlogError) or call.authorizer is None:
        return topic
    if call.allows(ResourceType.TOPIC, topic.name, operation):
        return topic
    if call.operations(ResourceType.TOPIC, topic.name) & (1 << Operation.DESCRIBE):
        return unauthorized(ResourceType.TOPIC)
    return TopicNotFound(str(UUID(bytes=topic.id_bytes)), "no topic has this id")
