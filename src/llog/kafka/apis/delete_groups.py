"""DeleteGroups. API key 42, versions 0-2; version 2 is flexible.

Deletes groups without members, of any type, with all their positions.
"""

from __future__ import annotations

from llog.audit_log import Principal, act_as, write_line
from llog.groups.codes import GroupCode
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group


async def handle(call: Call) -> DeleteGroupsResponse:
    request: DeleteGroupsRequest = call.request
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group, await _deleted(call, group)) for group in request.groups_names]
    )


async def _deleted(call: Call, group: str) -> int:
    refused = check_group(call, group)
    if refused != ErrorCode.NONE:
        return refused
    code = await call.services.groups.delete(group)
    act_as(Principal(call.client.principal, call.client.host))
    if code == GroupCode.NONE:
        write_line("group.delete", group, "done")
    else:
        write_line("group.delete", group, "refused", reason=code.name)
    return code


HANDLER = Handler(key=42, handle=handle, added={2: "flexible"})
