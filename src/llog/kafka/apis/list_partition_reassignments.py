"""ListPartitionReassignments. API key 46, version 0. Partitions have no replicas to move, so the list is empty."""

from __future__ import annotations

from llog.kafka.apis.handler import Call, Handler
from llog.kafka.authorization import cluster_refusal
from llog.kafka.codec.messages.list_partition_reassignments import ListPartitionReassignmentsResponse


def handle(call: Call) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=cluster_refusal(call), error_message=None)


HANDLER = Handler(
    key=46, handle=handle, left_out="Reassignments: partitions have no replicas to move. The answer is empty."
)
