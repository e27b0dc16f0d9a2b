"""CreateAcls. API key 30, versions 1-3 (no version adds a field; 2 is flexible).

Other brokers see the entries within seconds, this one at once.
"""

from __future__ import annotations

from typing import Final

from llog.audit_log import Principal, act_as
from llog.errors import InvalidArgument, LlogError
from llog.kafka.acl_messages import acl_of
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from llog.kafka.error_codes import ErrorCode, code_of
from llog.security.acl import Acl
from llog.security.changes import create_acls


async def handle(call: Call) -> CreateAclsResponse:
    request: CreateAclsRequest = call.request
    code = ErrorCode.SECURITY_DISABLED if call.authorizer is None else cluster_refusal(call)
    if code is not ErrorCode.NONE:
        return CreateAclsResponse(results=[AclCreationResult(code, code.name)] * len(request.creations))
    results: list[AclCreationResult] = []
    valid: list[Acl] = []
    for creation in request.creations:
        try:
            valid.append(acl_of(creation))
            results.append(AclCreationResult(error_message=None))
        except InvalidArgument as error:
            results.append(AclCreationResult(ErrorCode.INVALID_REQUEST, str(error)))
    act_as(Principal(call.client.principal, call.client.host))
    try:
        await create_acls(call.services.broker.context, valid)
        await call.services.broker.security.changed()
    except LlogError as error:
        failed = AclCreationResult(code_of(error), str(error))
        results = [result if result.error_code else failed for result in results]
    return CreateAclsResponse(results=results)


HANDLER: Final = Handler(key=30, handle=handle)
