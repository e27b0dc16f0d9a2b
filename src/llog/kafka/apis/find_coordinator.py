"""FindCoordinator. API key 10, versions 0-6.

| version | added |
|---|---|
| 1 | kinds of keys, error messages, throttle time |
| 3 | flexible |
| 4 | several keys |

The coordinator of a group is the node that holds the claim of the group's slot, as this node saw it last: at most a
second ago. A node that gave the slot away meanwhile answers NOT_COORDINATOR, and clients ask again.

Left out: transactions and share groups have no coordinator.
"""

from __future__ import annotations

from typing import Final

from llog.broker.cluster import Node
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import unauthorized
from llog.kafka.codec.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from llog.kafka.error_codes import ErrorCode
from llog.kafka.group_requests import check_group
from llog.security.acl import ResourceType

SEVERAL_KEYS_SINCE: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1


def handle(call: Call) -> FindCoordinatorResponse:
    request: FindCoordinatorRequest = call.request
    if call.version >= SEVERAL_KEYS_SINCE:
        return FindCoordinatorResponse(coordinators=[_found(call, key) for key in request.coordinator_keys])
    found = _found(call, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _found(call: Call, key: str) -> Coordinator:
    request: FindCoordinatorRequest = call.request
    if request.key_type == TRANSACTION:
        if not call.allows(ResourceType.TRANSACTIONAL_ID, key):
            refusal = unauthorized(ResourceType.TRANSACTIONAL_ID)
            return _none(key, refusal.code, refusal.reason)
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "transactions are not served")
    if request.key_type != GROUP:
        return _none(key, ErrorCode.INVALID_REQUEST, f"no coordinator has keys of type {request.key_type}")
    refused = check_group(call, key)
    if refused == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return _none(key, refused, unauthorized(ResourceType.GROUP).reason)
    if refused != ErrorCode.NONE:
        return _none(key, refused, "the group's name is empty or too long")
    node = _node(call, key)
    if node is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no node coordinates this group now; try again")
    return Coordinator(key, node.node_id, node.host, node.port, error_message=None)


def _node(call: Call, group: str) -> Node | None:
    node_id = call.services.groups.find(group)
    return next((node for node in call.services.cluster.nodes() if node.node_id == node_id), None)


def _none(key: str, code: ErrorCode, reason: str) -> Coordinator:
    return Coordinator(key, -1, "", -1, code, reason)


HANDLER = Handler(
    key=10,
    handle=handle,
    added={1: "kinds of keys, error messages", 3: "flexible", 4: "several keys"},
    left_out="Transactions and share groups have no coordinator.",
)
