"""SyncGroup. API key 14, versions 0-5.

| version | added |
|---|---|
| 1 | throttle time |
| 3 | static members |
| 4 | flexible |
| 5 | protocol type and name |

The answer waits for the leader's assignments. A client that disconnects meanwhile stays a member.
"""

from __future__ import annotations

from collections.abc import Awaitable

from llog.groups.classic.messages import SyncAnswer, SyncRequest
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group

SYNC_WAIT_MS = 60_000


def handle(call: Call) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    request: SyncGroupRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return SyncGroupResponse(error_code=refused)
    call.wait_ms = SYNC_WAIT_MS
    sync = SyncRequest(
        request.member_id,
        request.generation_id,
        request.group_instance_id,
        request.protocol_type,
        request.protocol_name,
        tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    return _synced(call, sync)


async def _synced(call: Call, sync: SyncRequest) -> SyncGroupResponse:
    request: SyncGroupRequest = call.request
    answer: SyncAnswer = await call.services.groups.sync(request.group_id, sync)
    return SyncGroupResponse(
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


HANDLER = Handler(
    key=14,
    handle=handle,
    added={1: "throttle time", 3: "static members", 4: "flexible", 5: "protocol type and name"},
)
