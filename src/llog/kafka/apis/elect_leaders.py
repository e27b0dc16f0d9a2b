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
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.found_topics import found_topics
from llog.log.topics.known_topics import KnownTopic

ERROR_CODE_SINCE: Final = 1
ELECTION_TYPES: Final = (0, 1)
"""Preferred and unclean."""


async def handle(call: Call) -> ElectLeadersResponse:
    request: ElectLeadersRequest = call.request
    wanted = request.topic_partitions or []
    code = cluster_refusal(call)
    if code is ErrorCode.NONE and request.election_type not in ELECTION_TYPES:
        code = ErrorCode.INVALID_REQUEST
    if code is not ErrorCode.NONE:
        refused = [ReplicaElectionResult(one.topic, [_answered(n, code) for n in one.partitions]) for one in wanted]
        whole = code if call.version >= ERROR_CODE_SINCE else ErrorCode.NONE
        return ElectLeadersResponse(error_code=whole, replica_election_results=refused)
    found = await found_topics(call, (one.topic for one in wanted), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(one.topic, [_answered(n, _code(found[one.topic], n)) for n in one.partitions])
            for one in wanted
        ]
    )


def _code(topic: KnownTopic | LlogError, partition: int) -> ErrorCode:
    if isinstance(topic, LlogError):
        return code_of(topic)
    exists = 0 <= partition < topic.partition_count
    return ErrorCode.ELECTION_NOT_NEEDED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _answered(partition: int, code: ErrorCode) -> PartitionResult:
    return PartitionResult(partition, code, code.name)


HANDLER = Handler(
    key=43,
    handle=handle,
    added={1: "unclean elections; an error code"},
    left_out="Elections: a partition's leader follows from the nodes that are alive.",
)
