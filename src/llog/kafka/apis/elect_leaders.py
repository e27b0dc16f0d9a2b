"""ElectLeaders. API key 43, versions 0-2.

| version | added |
|---|---|
| 1 | unclean elections; an error code for the whole answer |

Leaders are not elected: a partition's leader follows from the nodes that are alive, so every partition answers
ELECTION_NOT_NEEDED. Null asks for all partitions and is answered with none, as by Kafka where no election is needed.
"""

from __future__ import annotations

from typing import Final

from llog.errors import LlogError
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.found_topics import found_topic

ELECTION_TYPES: Final = (0, 1)
"""Preferred and unclean."""


async def handle(call: Call) -> ElectLeadersResponse:
    request: ElectLeadersRequest = call.request
    unknown = request.election_type not in ELECTION_TYPES
    results = []
    for wanted in request.topic_partitions or ():
        if unknown:
            count, code = 0, ErrorCode.INVALID_REQUEST
        else:
            count, code = await _partitions(call, wanted.topic)
        results.append(
            ReplicaElectionResult(
                wanted.topic,
                [
                    _answered(number, ErrorCode.ELECTION_NOT_NEEDED if 0 <= number < count else code)
                    for number in wanted.partitions
                ],
            )
        )
    return ElectLeadersResponse(
        error_code=ErrorCode.INVALID_REQUEST if unknown else ErrorCode.NONE, replica_election_results=results
    )


async def _partitions(call: Call, topic: str) -> tuple[int, ErrorCode]:
    """How many partitions the topic has, and the code of all others."""
    try:
        return (await found_topic(call, topic)).partition_count, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except LlogError as error:
        return 0, code_of(error)


def _answered(partition: int, code: ErrorCode) -> PartitionResult:
    return PartitionResult(partition, code, code.name)


HANDLER = Handler(
    key=43,
    handle=handle,
    added={1: "unclean elections; an error code"},
    left_out="Elections: a partition's leader follows from the nodes that are alive.",
)
