"""DeleteAcls: by filters. API key 31, versions 1-3 (no version adds a field; 2 is flexible)."""

from __future__ import annotations

from typing import Final

from llog.audit_log import Principal, act_as
from llog.errors import InvalidArgument, LlogError
from llog.kafka.acl_messages import filter_of
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.security.acl import Acl, AclFilter
from llog.security.changes import delete_acls


async def handle(call: Call) -> DeleteAclsResponse:
    request: DeleteAclsRequest = call.request
    code = ErrorCode.SECURITY_DISABLED if call.authorizer is None else cluster_refusal(call)
    if code is not ErrorCode.NONE:
        return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(code, code.name)] * len(request.filters))
    results: dict[int, DeleteAclsFilterResult] = {}
    wanted: dict[int, AclFilter] = {}
    for number, one in enumerate(request.filters):
        try:
            wanted[number] = filter_of(one)
        except InvalidArgument as error:
            results[number] = DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, str(error))
    act_as(Principal(call.client.principal, call.client.host))
    try:
        matched = await delete_acls(call.services.broker.context, list(wanted.values()))
        await call.services.broker.security.changed()
    except LlogError as error:
        results |= dict.fromkeys(wanted, DeleteAclsFilterResult(code_of(error), str(error)))
    else:
        for number, acls in zip(wanted, matched, strict=True):
            results[number] = DeleteAclsFilterResult(error_message=None, matching_acls=list(map(_shown, acls)))
    return DeleteAclsResponse(filter_results=[results[number] for number in range(len(request.filters))])


def _shown(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


HANDLER: Final = Handler(key=31, handle=handle)
