"""Answers of a node that takes no records: it is draining, or only reads. They name the node to use (KIP-951)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from llog.broker.cluster import zone_of_client
from llog.kafka.apis.handler import Call
from llog.kafka.authorization import judged_by_id
from llog.kafka.codec.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.produce.request import IDS_FROM_VERSION, NO_OFFSET

LEADERS_FROM_VERSION: Final = 10
LEADER_EPOCH: Final = 0


def moved_from(call: Call) -> bool:
    """Whether this node sends producers to another one."""
    return not call.services.broker.writes or call.services.cluster.draining


def moved(call: Call, denied: Collection[str] = ()) -> ProduceResponse:
    """Every partition with NOT_LEADER_OR_FOLLOWER; the leaders of topics that are known, for clients that read them."""
    request: ProduceRequest = call.request
    zone = zone_of_client(call.client_id)
    leaders: set[int] = set()
    responses = []
    for data in request.topic_data:
        topics = call.services.topics
        topic = topics.fresh_by_id(data.topic_id) if call.version >= IDS_FROM_VERSION else topics.fresh(data.name)
        if topic is not None and (data.name in denied or judged_by_id(call, topic) is not topic):
            topic = None
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if data.name in denied else ErrorCode.NOT_LEADER_OR_FOLLOWER
        partitions = []
        for partition in data.partition_data:
            leader = LeaderIdAndEpoch()
            if topic is not None and call.version >= LEADERS_FROM_VERSION:
                node_id = call.services.cluster.leader_of(topic.record.topic_id, partition.index, zone)
                leader = LeaderIdAndEpoch(node_id, LEADER_EPOCH)
                leaders.add(node_id)
            partitions.append(PartitionProduceResponse(partition.index, code, NO_OFFSET, current_leader=leader))
        responses.append(TopicProduceResponse(data.name, data.topic_id, partitions))
    nodes = [node for node in call.services.cluster.nodes() if node.node_id in leaders]
    endpoints = [NodeEndpoint(node.node_id, node.host, node.port, node.zone or None) for node in nodes]
    return ProduceResponse(responses, node_endpoints=endpoints)
