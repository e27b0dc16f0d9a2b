"""ConsumerGroupDescribe (KIP-848). API key 69, versions 0-1; version 1 adds the type of members.

Consumer groups of which this node is the coordinator. As in Kafka, a group with a topic that the client may not
describe is not described at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from llog.groups.codes import GroupCode
from llog.groups.consumer.group import ConsumerGroup
from llog.groups.records import Partitions
from llog.groups.views import DescribedConsumerMember
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group
from llog.kafka.operations import NO_OPERATIONS, group_operations
from llog.security.acl import ResourceType

CONSUMER_MEMBER: Final = 1
HIDDEN_TOPICS: Final = "the group has topics that the client is not authorized to describe"


async def handle(call: Call) -> ConsumerGroupDescribeResponse:
    request: ConsumerGroupDescribeRequest = call.request
    return ConsumerGroupDescribeResponse(groups=[await _described(call, group) for group in request.group_ids])


async def _described(call: Call, group: str) -> DescribedGroup:
    refused = check_group(call, group)
    if refused != ErrorCode.NONE:
        return DescribedGroup(refused, None, group)
    groups = call.services.groups
    existing = await groups.existing(group)
    if isinstance(existing, GroupCode):
        missing = f"Group {group} not found." if existing == GroupCode.GROUP_ID_NOT_FOUND else None
        return DescribedGroup(existing, missing, group)
    machine = existing[1]
    if not isinstance(machine, ConsumerGroup):
        return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.", group)
    shown, names = machine.describe(), groups.topic_names()
    if call.denied(ResourceType.TOPIC, _named(shown.members, names)):
        return DescribedGroup(ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS, group)
    return DescribedGroup(
        ErrorCode.NONE,
        None,
        group,
        shown.state,
        shown.group_epoch,
        shown.assignment_epoch,
        shown.assignor,
        [_member(one, names) for one in shown.members],
        group_operations(call, group) if call.request.include_authorized_operations else NO_OPERATIONS,
    )


def _named(members: Iterable[DescribedConsumerMember], names: Mapping[str, str]) -> set[str]:
    """The topics that the answer would name."""
    named: set[str] = set()
    for member in members:
        named.update(member.topics)
        named.update(names[topic] for topic in (*member.assignment, *member.target) if topic in names)
    return named


def _member(member: DescribedConsumerMember, names: Mapping[str, str]) -> Member:
    return Member(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        list(member.topics),
        member.regex or None,
        _assignment(member.assignment, names),
        _assignment(member.target, names),
        CONSUMER_MEMBER,
    )


def _assignment(partitions: Partitions, names: Mapping[str, str]) -> Assignment:
    """Partitions of topics that exist."""
    return Assignment(
        [
            TopicPartitions(bytes.fromhex(topic), names[topic], list(numbers))
            for topic, numbers in partitions.items()
            if topic in names
        ]
    )


HANDLER = Handler(key=69, handle=handle, added={1: "the type of members"})
