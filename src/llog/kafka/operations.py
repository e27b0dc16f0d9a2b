"""Operations that a client may do on a resource, as the sets of bits in Kafka's answers.

The number of a bit is the code of the operation. Without authorization every client may do everything.
"""

from __future__ import annotations

from typing import Final

from llog.kafka.apis.handler import Call
from llog.security.acl import CLUSTER_NAME, OPERATIONS, Operation, ResourceType, bit

NO_OPERATIONS: Final = -(2**31)
"""The client did not ask for them."""
TOPIC_OPERATIONS: Final = sum(map(bit, OPERATIONS[ResourceType.TOPIC]))
CLUSTER_OPERATIONS: Final = sum(map(bit, OPERATIONS[ResourceType.CLUSTER]))
GROUP_OPERATIONS: Final = sum(map(bit, OPERATIONS[ResourceType.GROUP]))


def topic_operations(call: Call, name: str) -> int:
    return TOPIC_OPERATIONS & call.operations(ResourceType.TOPIC, name)


def group_operations(call: Call, name: str) -> int:
    return GROUP_OPERATIONS & call.operations(ResourceType.GROUP, name)


def cluster_operations(call: Call, *, asked: bool) -> int:
    """As in Kafka, a client that may not describe the cluster may do nothing to it."""
    if not asked:
        return NO_OPERATIONS
    bits = CLUSTER_OPERATIONS & call.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    return bits if bits & bit(Operation.DESCRIBE) else 0
