"""ListGroups. API key 16, versions 0-5.

| version | added |
|---|---|
| 1 | throttle time |
| 3 | flexible |
| 4 | states |
| 5 | types |

The groups that this node coordinates, as far as the client may describe them; clients ask every node. A group that only
stores positions is a classic one without members.
"""

from __future__ import annotations

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from llog.kafka.group_requests import outcome_code
from llog.security.acl import CLUSTER_NAME, ResourceType


async def handle(call: Call) -> ListGroupsResponse:
    request: ListGroupsRequest = call.request
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    try:
        rows = await call.services.groups.list()
    except LlogError as error:
        return ListGroupsResponse(error_code=outcome_code(error))
    sees_all = call.sees(ResourceType.CLUSTER, CLUSTER_NAME)
    groups = [
        ListedGroup(row.group_id, row.protocol_type, row.state, row.type)
        for row in rows
        if (not states or row.state.lower() in states)
        and (not types or row.type.lower() in types)
        and (sees_all or call.sees(ResourceType.GROUP, row.group_id))
    ]
    return ListGroupsResponse(groups=groups)


HANDLER = Handler(key=16, handle=handle, added={1: "throttle time", 3: "flexible", 4: "states", 5: "types"})
