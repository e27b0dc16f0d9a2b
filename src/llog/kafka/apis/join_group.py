"""JoinGroup. API key 11, versions 0-9.

| version | added |
|---|---|
| 1 | rebalance timeout |
| 2 | throttle time |
| 4 | a new member first gets its id, and joins with it |
| 5 | static members |
| 6 | flexible |
| 7 | protocol type in the answer |
| 8 | reason |
| 9 | the leader may be asked not to assign (KIP-814) |

The answer waits for the other members. A client that disconnects meanwhile stays a member until its session ends, as in
Kafka; the request's frame is counted until it is answered. The reason is not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from llog.groups.classic.messages import JoinAnswer, JoinRequest
from llog.groups.records import MemberProtocol
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group, client_host, new_member_id

NEEDS_MEMBER_ID_SINCE: Final = 4
NULL_PROTOCOL_SINCE: Final = 7
SKIPS_ASSIGNMENT_SINCE: Final = 9


def handle(call: Call) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    request: JoinGroupRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return _refused(call, refused)
    call.wait_ms = max(request.rebalance_timeout_ms, request.session_timeout_ms)
    return _joined(call, _request_of(call))


def _refused(call: Call, code: int) -> JoinGroupResponse:
    request: JoinGroupRequest = call.request
    return JoinGroupResponse(
        error_code=code,
        protocol_name=None if call.version >= NULL_PROTOCOL_SINCE else "",
        member_id=request.member_id,
    )


def _request_of(call: Call) -> JoinRequest:
    request: JoinGroupRequest = call.request
    rebalance_timeout_ms = request.rebalance_timeout_ms if call.version >= 1 else request.session_timeout_ms
    return JoinRequest(
        request.protocol_type,
        tuple(MemberProtocol(name=one.name, metadata=bytes(one.metadata)) for one in request.protocols),
        request.session_timeout_ms,
        rebalance_timeout_ms,
        request.member_id,
        request.group_instance_id,
        call.client_id or "",
        client_host(call),
        needs_member_id=call.version >= NEEDS_MEMBER_ID_SINCE,
        skips_assignment=call.version >= SKIPS_ASSIGNMENT_SINCE,
    )


async def _joined(call: Call, join: JoinRequest) -> JoinGroupResponse:
    request: JoinGroupRequest = call.request
    answer: JoinAnswer = await call.services.groups.join(
        request.group_id, join, new_member_id(call, request.group_instance_id)
    )
    return JoinGroupResponse(
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol or (None if call.version >= NULL_PROTOCOL_SINCE else ""),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id or request.member_id,
        members=[JoinGroupResponseMember(one.member_id, one.instance_id, one.metadata) for one in answer.members],
    )


HANDLER = Handler(
    key=11,
    handle=handle,
    added={
        1: "rebalance timeout",
        2: "throttle time",
        4: "a new member first gets its id",
        5: "static members",
        6: "flexible",
        7: "protocol type in the answer",
        8: "reason",
        9: "the leader may be asked not to assign",
    },
)
