"""What each Kafka API and each HTTP route requires of its caller. One table; a test checks that nothing is missing.

Kafka's rows are those of its documentation ("Operations and Resources on Protocols"), where they differ those of its
code. Front ends take the operations from here: what a row does not name cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from llog.security.acl import Operation, ResourceType

_O, _R = Operation, ResourceType


class Need(NamedTuple):
    operation: Operation
    kind: ResourceType
    when: str = ""
    """Where the need does not apply to every request, or what suffices instead."""


NOTHING: Final[tuple[Need, ...]] = ()

KAFKA: Final[Mapping[int, tuple[Need, ...]]] = {
    0: (
        Need(_O.WRITE, _R.TOPIC),
        Need(_O.WRITE, _R.TRANSACTIONAL_ID, "with a transactional id"),
    ),
    1: (Need(_O.READ, _R.TOPIC),),
    2: (Need(_O.DESCRIBE, _R.TOPIC),),
    3: (
        Need(_O.DESCRIBE, _R.TOPIC),
        Need(_O.CREATE, _R.TOPIC, "to create a missing topic; or CREATE CLUSTER"),
        Need(_O.CREATE, _R.CLUSTER, "instead of CREATE TOPIC"),
        Need(_O.DESCRIBE, _R.CLUSTER, "for the cluster's authorized operations"),
    ),
    8: (Need(_O.READ, _R.GROUP), Need(_O.READ, _R.TOPIC)),
    9: (Need(_O.DESCRIBE, _R.GROUP), Need(_O.DESCRIBE, _R.TOPIC)),
    10: (
        Need(_O.DESCRIBE, _R.GROUP, "coordinators of groups"),
        Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID, "coordinators of transactions"),
    ),
    11: (Need(_O.READ, _R.GROUP),),
    12: (Need(_O.READ, _R.GROUP),),
    13: (Need(_O.READ, _R.GROUP),),
    14: (Need(_O.READ, _R.GROUP),),
    15: (Need(_O.DESCRIBE, _R.GROUP),),
    16: (
        Need(_O.DESCRIBE, _R.GROUP, "others are left out; or DESCRIBE CLUSTER"),
        Need(_O.DESCRIBE, _R.CLUSTER, "instead of DESCRIBE GROUP"),
    ),
    17: NOTHING,
    18: NOTHING,
    19: (
        Need(_O.CREATE, _R.TOPIC, "or CREATE CLUSTER"),
        Need(_O.CREATE, _R.CLUSTER, "instead of CREATE TOPIC"),
        Need(_O.DESCRIBE_CONFIGS, _R.TOPIC, "for configs in the answer"),
    ),
    20: (Need(_O.DELETE, _R.TOPIC), Need(_O.DESCRIBE, _R.TOPIC, "to learn that the topic of an id exists")),
    21: (Need(_O.DELETE, _R.TOPIC),),
    22: (
        Need(_O.IDEMPOTENT_WRITE, _R.CLUSTER, "without a transactional id; or WRITE on any topic"),
        Need(_O.WRITE, _R.TOPIC, "instead of IDEMPOTENT_WRITE CLUSTER"),
        Need(_O.WRITE, _R.TRANSACTIONAL_ID, "with a transactional id"),
    ),
    23: (Need(_O.DESCRIBE, _R.TOPIC),),
    24: (Need(_O.WRITE, _R.TRANSACTIONAL_ID), Need(_O.WRITE, _R.TOPIC)),
    25: (Need(_O.WRITE, _R.TRANSACTIONAL_ID), Need(_O.READ, _R.GROUP)),
    26: (Need(_O.WRITE, _R.TRANSACTIONAL_ID),),
    27: (Need(_O.CLUSTER_ACTION, _R.CLUSTER, "or ALTER CLUSTER"), Need(_O.ALTER, _R.CLUSTER)),
    28: (Need(_O.WRITE, _R.TRANSACTIONAL_ID), Need(_O.READ, _R.GROUP), Need(_O.READ, _R.TOPIC)),
    29: (Need(_O.DESCRIBE, _R.CLUSTER),),
    30: (Need(_O.ALTER, _R.CLUSTER),),
    31: (Need(_O.ALTER, _R.CLUSTER),),
    32: (
        Need(_O.DESCRIBE_CONFIGS, _R.TOPIC),
        Need(_O.DESCRIBE_CONFIGS, _R.GROUP),
        Need(_O.DESCRIBE_CONFIGS, _R.CLUSTER, "configs of brokers, loggers and client metrics"),
    ),
    33: (
        Need(_O.ALTER_CONFIGS, _R.TOPIC),
        Need(_O.ALTER_CONFIGS, _R.GROUP),
        Need(_O.ALTER_CONFIGS, _R.CLUSTER, "configs of brokers, loggers and client metrics"),
    ),
    35: (Need(_O.DESCRIBE, _R.CLUSTER),),
    36: NOTHING,
    37: (Need(_O.ALTER, _R.TOPIC),),
    42: (Need(_O.DELETE, _R.GROUP),),
    43: (Need(_O.ALTER, _R.CLUSTER),),
    44: (
        Need(_O.ALTER_CONFIGS, _R.TOPIC),
        Need(_O.ALTER_CONFIGS, _R.GROUP),
        Need(_O.ALTER_CONFIGS, _R.CLUSTER, "configs of brokers, loggers and client metrics"),
    ),
    46: (Need(_O.DESCRIBE, _R.CLUSTER),),
    47: (Need(_O.DELETE, _R.GROUP), Need(_O.READ, _R.TOPIC)),
    48: (Need(_O.DESCRIBE_CONFIGS, _R.CLUSTER),),
    50: (Need(_O.DESCRIBE, _R.CLUSTER),),
    51: (Need(_O.ALTER, _R.CLUSTER),),
    60: (Need(_O.DESCRIBE, _R.CLUSTER, "for the cluster's authorized operations"),),
    61: (Need(_O.READ, _R.TOPIC),),
    65: (Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID), Need(_O.DESCRIBE, _R.TOPIC, "other topics are left out")),
    66: (Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID, "others are left out"),),
    68: (Need(_O.READ, _R.GROUP), Need(_O.DESCRIBE, _R.TOPIC, "topics of the subscription")),
    69: (Need(_O.DESCRIBE, _R.GROUP), Need(_O.DESCRIBE, _R.TOPIC, "topics of the assignments")),
    74: (Need(_O.DESCRIBE_CONFIGS, _R.CLUSTER),),
    75: (Need(_O.DESCRIBE, _R.TOPIC),),
}
"""By API key."""

HTTP: Final[Mapping[str, tuple[Need, ...]]] = {
    "POST /produce": (
        Need(_O.WRITE, _R.TOPIC),
        Need(_O.CREATE, _R.TOPIC, "to create a missing topic or partition; or CREATE CLUSTER"),
        Need(_O.CREATE, _R.CLUSTER, "instead of CREATE TOPIC"),
    ),
    "POST /consume": (Need(_O.READ, _R.TOPIC),),
    "POST /offsets/commit": (Need(_O.READ, _R.GROUP), Need(_O.READ, _R.TOPIC)),
    "POST /offsets/fetch": (Need(_O.DESCRIBE, _R.GROUP), Need(_O.DESCRIBE, _R.TOPIC)),
    "POST /topics": (
        Need(_O.CREATE, _R.TOPIC, "or CREATE CLUSTER"),
        Need(_O.CREATE, _R.CLUSTER, "instead of CREATE TOPIC"),
    ),
    "GET /topics": (Need(_O.DESCRIBE, _R.TOPIC, "others are left out"),),
    "GET /topics/{topic}": (Need(_O.DESCRIBE, _R.TOPIC),),
    "PATCH /topics/{topic}": (Need(_O.ALTER_CONFIGS, _R.TOPIC),),
    "DELETE /topics/{topic}": (Need(_O.DELETE, _R.TOPIC),),
    "POST /topics/{topic}/partitions": (Need(_O.ALTER, _R.TOPIC),),
    "POST /topics/{topic}/partitions/{partition}/fence": (Need(_O.ALTER, _R.TOPIC),),
    "POST /topics/{topic}/partitions/{partition}/unfence": (Need(_O.ALTER, _R.TOPIC),),
    "POST /topics/{topic}/partitions/{partition}/delete-records": (Need(_O.DELETE, _R.TOPIC),),
    "GET /topics/{topic}/partitions/{partition}/offsets": (Need(_O.DESCRIBE, _R.TOPIC),),
    "GET /topics/{topic}/partitions/{partition}/tail": (Need(_O.READ, _R.TOPIC),),
    "GET /metrics": (Need(_O.DESCRIBE, _R.CLUSTER),),
    "GET /metrics/prometheus": (Need(_O.DESCRIBE, _R.CLUSTER),),
    "GET /health": (Need(_O.DESCRIBE, _R.CLUSTER, "for more than the state; it names logs"),),
    "GET /ready": (Need(_O.DESCRIBE, _R.CLUSTER, "for the reasons"),),
}
"""By method and path."""


def operation_of(needs: tuple[Need, ...], kind: ResourceType) -> Operation:
    """The operation of a row that asks for one on resources of this type."""
    for need in needs:
        if need.kind is kind:
            return need.operation
    raise LookupError(f"the row asks for nothing on a {kind.name}")


def asks_for(needs: tuple[Need, ...], operation: Operation, kind: ResourceType) -> bool:
    return any(need.operation is operation and need.kind is kind for need in needs)
