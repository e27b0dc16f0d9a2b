"""DescribeCluster, API key 60, versions 0 to 2: the cluster's id, its nodes, and the node for administration.

- v1 adds the type of the endpoints that the client wants: brokers, or the controllers of Kafka's own quorum.
- v2 lists fenced brokers too, where the client asks for them.

Left out: there is no controller quorum, so a client that wants its endpoints gets MISMATCHED_ENDPOINT_TYPE. A node that
is not alive is not listed, so no broker is fenced.
"""

from __future__ import annotations

from typing import Final

from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.operations import cluster_operations

BROKERS: Final = 1
CONTROLLERS: Final = 2


def handle(call: Call) -> DescribeClusterResponse:
    request: DescribeClusterRequest = call.request
    if request.endpoint_type != BROKERS:
        return _other_endpoints(request.endpoint_type)
    cluster = call.services.cluster
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller(),
        brokers=[
            DescribeClusterBroker(node.node_id, node.host, node.port, node.zone or None) for node in cluster.nodes()
        ],
        cluster_authorized_operations=cluster_operations(call, asked=request.include_cluster_authorized_operations),
    )


def _other_endpoints(endpoint_type: int) -> DescribeClusterResponse:
    known = endpoint_type == CONTROLLERS
    return DescribeClusterResponse(
        error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        error_message=f"this is an endpoint of type {BROKERS} (brokers), not of type {endpoint_type}",
        endpoint_type=BROKERS,
    )


HANDLER: Final = Handler(
    key=60,
    handle=handle,
    added={1: "type of the wanted endpoints", 2: "fenced brokers"},
    left_out="Endpoints of controllers: there is no quorum. Fenced brokers: a node that is not alive is not listed.",
)
