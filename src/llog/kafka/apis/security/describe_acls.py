"""DescribeAcls: the access control lists. API key 29, versions 1-3 (no version adds a field; 2 is flexible).

Without authorization the answer is SECURITY_DISABLED, as Kafka's is without an authorizer. The list is read now,
whatever this broker has seen.
"""

from __future__ import annotations

from typing import Final

from llog.errors import LlogError
from llog.kafka.acl_messages import filter_of
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.security.changes import list_acls


async def handle(call: Call) -> DescribeAclsResponse:
    if call.authorizer is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message="authorization is off")
    if refusal := cluster_refusal(call):
        return DescribeAclsResponse(error_code=refusal, error_message="cluster authorization failed")
    request: DescribeAclsRequest = call.request
    try:
        wanted = filter_of(request)
        acls = [acl for acl in await list_acls(call.services.broker.context) if wanted.matches(acl)]
    except LlogError as error:
        return DescribeAclsResponse(error_code=code_of(error), error_message=str(error))
    resources: dict[tuple[int, str, int], list[AclDescription]] = {}
    for acl in acls:
        resource = (int(acl.resource_type), acl.name, int(acl.pattern))
        described = AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
        resources.setdefault(resource, []).append(described)
    return DescribeAclsResponse(
        error_message=None, resources=[DescribeAclsResource(*resource, found) for resource, found in resources.items()]
    )


HANDLER: Final = Handler(key=29, handle=handle)
