"""ConsumerGroupDescribe (KIP-848). API key 69, versions 0-1; version 1 adds the type of members.

Consumer groups of which this node is the coordinator.

Left out: authorized operations are not told.
"""

from __future__ import annotations

from collections.abc import Mapping
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

CONSUMER_MEMBER: Final = 1


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
    return DescribedGroup(
        ErrorCode.NONE,
        None,
        group,
        shown.state,
        shown.group_epoch,
        shown.assignment_epoch,
        shown.assignor,
        [_member(one, names) for one in shown.members],
    )


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


HANDLER = Handler(key=69, handle=handle, added={1: "the type of members"}, left_out="Authorized operations.")
