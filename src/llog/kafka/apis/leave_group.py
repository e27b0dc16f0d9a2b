"""LeaveGroup. API key 13, versions 0-5.

| version | added |
|---|---|
| 1 | throttle time |
| 3 | several members, also by instance id |
| 4 | flexible |
| 5 | reasons |

The answer leaves when the group is stored without the members. Reasons are not kept.
"""

from __future__ import annotations

from typing import Final

from llog.groups.classic.messages import LeaveAnswer, LeavingMember
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group

SEVERAL_MEMBERS_SINCE: Final = 3


async def handle(call: Call) -> LeaveGroupResponse:
    request: LeaveGroupRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return LeaveGroupResponse(error_code=refused)
    several = call.version >= SEVERAL_MEMBERS_SINCE
    members = (
        [LeavingMember(one.member_id, one.group_instance_id) for one in request.members]
        if several
        else [LeavingMember(request.member_id, None)]
    )
    answer: LeaveAnswer = await call.services.groups.leave(request.group_id, members)
    if several:
        return LeaveGroupResponse(
            error_code=answer.code,
            members=[MemberResponse(one.member_id, one.instance_id, one.code) for one in answer.members],
        )
    return LeaveGroupResponse(error_code=answer.code or (answer.members[0].code if answer.members else 0))


HANDLER = Handler(
    key=13,
    handle=handle,
    added={1: "throttle time", 3: "several members, also by instance id", 4: "flexible", 5: "reasons"},
)
