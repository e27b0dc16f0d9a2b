"""DescribeGroups. API key 15, versions 0-6.

| version | added |
|---|---|
| 1 | throttle time |
| 3 | authorized operations |
| 4 | static members |
| 5 | flexible |
| 6 | GROUP_ID_NOT_FOUND with a message; before, such a group is Dead |

Classic groups of which this node is the coordinator.
"""

from __future__ import annotations

from typing import Final

from llog.groups.classic.group import ClassicGroup
from llog.groups.codes import GroupCode
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group
from llog.kafka.operations import NO_OPERATIONS, group_operations

NOT_FOUND_SINCE: Final = 6


async def handle(call: Call) -> DescribeGroupsResponse:
    request: DescribeGroupsRequest = call.request
    return DescribeGroupsResponse(groups=[await _described(call, group) for group in request.groups])


async def _described(call: Call, group: str) -> DescribedGroup:
    refused = check_group(call, group)
    if refused != ErrorCode.NONE:
        return DescribedGroup(refused, None, group)
    existing = await call.services.groups.existing(group)
    if isinstance(existing, GroupCode):
        if existing == GroupCode.GROUP_ID_NOT_FOUND:
            return _missing(call, group, f"Group {group} not found.")
        return DescribedGroup(existing, None, group)
    machine = existing[1]
    if not isinstance(machine, ClassicGroup):
        return _missing(call, group, f"Group {group} is not a classic group.")
    shown = machine.describe()
    members = [
        DescribedGroupMember(
            one.member_id, one.instance_id, one.client_id, one.client_host, one.metadata, one.assignment
        )
        for one in shown.members
    ]
    return DescribedGroup(
        ErrorCode.NONE,
        None,
        group,
        shown.state,
        shown.protocol_type,
        shown.protocol,
        members,
        group_operations(call, group) if call.request.include_authorized_operations else NO_OPERATIONS,
    )


def _missing(call: Call, group: str, reason: str) -> DescribedGroup:
    if call.version >= NOT_FOUND_SINCE:
        return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, reason, group, "Dead")
    return DescribedGroup(ErrorCode.NONE, None, group, "Dead")


HANDLER = Handler(
    key=15,
    handle=handle,
    added={
        1: "throttle time",
        3: "authorized operations",
        4: "static members",
        5: "flexible",
        6: "GROUP_ID_NOT_FOUND, with a message",
    },
)
