"""ConsumerGroupHeartbeat (KIP-848). API key 68, versions 0-1; version 1 adds regular expressions and lets clients make
up their member ids.

The one request of the consumer protocol: join, stay, leave, learn what to read. Assignors: `uniform` and `range`.
Patterns are RE2, and stand for topics that the client may describe.

Left out: groups with members do not change from the classic protocol to this one; racks are not considered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from llog.groups.consumer.messages import ConsumerHeartbeat
from llog.groups.records import Partitions
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group, client_host, new_member_id
from llog.security.acl import ResourceType

OWN_IDS_SINCE: Final = 1


async def handle(call: Call) -> ConsumerGroupHeartbeatResponse:
    request: ConsumerGroupHeartbeatRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return ConsumerGroupHeartbeatResponse(error_code=refused)
    if call.denied(ResourceType.TOPIC, set(request.subscribed_topic_names or ())):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    answer = await call.services.groups.consumer_heartbeat(
        request.group_id, heartbeat_of(call), new_member_id(call, request.instance_id)
    )
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.code,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None if answer.assignment is None else Assignment(_assigned(answer.assignment)),
    )


def heartbeat_of(call: Call) -> ConsumerHeartbeat:
    request: ConsumerGroupHeartbeatRequest = call.request
    names = request.subscribed_topic_names
    return ConsumerHeartbeat(
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else tuple(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        None if request.topic_partitions is None else _owned(request.topic_partitions),
        call.client_id or "",
        client_host(call),
        call.client.principal,
        makes_own_id=call.version >= OWN_IDS_SINCE,
    )


def _owned(topics: Sequence[TopicPartitions]) -> Partitions:
    return {topic.topic_id.hex(): tuple(topic.partitions) for topic in topics}


def _assigned(assignment: Mapping[str, Sequence[int]]) -> list[TopicPartitions]:
    return [TopicPartitions(bytes.fromhex(topic), list(partitions)) for topic, partitions in assignment.items()]


HANDLER = Handler(
    key=68,
    handle=handle,
    added={1: "regular expressions; clients make up their member ids"},
    left_out="Groups with members do not change their protocol. Racks are not considered.",
)
