"""Heartbeat. API key 12, versions 0-4.

| version | added |
|---|---|
| 1 | throttle time |
| 3 | static members |
| 4 | flexible |
"""

from __future__ import annotations

from collections.abc import Awaitable

from llog.groups.classic.messages import HeartbeatAnswer
from llog.groups.classic.messages import HeartbeatRequest as Beat
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group


def handle(call: Call) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    request: HeartbeatRequest = call.request
    refused = check_group(call, request.group_id)
    if refused != ErrorCode.NONE:
        return HeartbeatResponse(error_code=refused)
    beat = Beat(request.member_id, request.generation_id, request.group_instance_id)
    answer = call.services.groups.heartbeat(request.group_id, beat)
    if answer.done():
        return HeartbeatResponse(error_code=answer.result().code)
    return _answered(answer)


async def _answered(answer: Awaitable[HeartbeatAnswer]) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=(await answer).code)


HANDLER = Handler(key=12, handle=handle, added={1: "throttle time", 3: "static members", 4: "flexible"})
