"""The partitions of topics as Metadata shows them: each with the node that clients of a zone should use.

Ranking the nodes for every partition of a large topic would hold the event loop for long, and clients ask again and
again, so the partitions of a topic are kept until the nodes change. They are made in steps, between which other
requests have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.broker.cluster import ClusterView, Node
from llog.kafka.codec.messages.metadata import MetadataResponsePartition
from llog.kafka.error_codes import ErrorCode
from llog.log.topics.known_topics import KnownTopic

LEADERS_PARTITIONS_MAX: Final = 200_000
"""Partitions that are kept, over all topics and zones; at the limit, all are dropped."""
LEADERS_STEP_PARTITIONS: Final = 1_000
"""Partitions that are made before other requests have their turn."""
LEADER_EPOCH: Final = 0
"""Of every partition, always: a log's fence epoch is no leader epoch, and clients refuse to go back to a lower one."""


class _Kept(NamedTuple):
    nodes: Sequence[Node]
    partitions: list[MetadataResponsePartition]


class PartitionLeaders:
    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str], _Kept] = {}
        self._count = 0
        self._replicas: dict[int, list[int]] = {}
        """The list of each node alone, shared by its partitions."""

    async def of(self, cluster: ClusterView, topic: KnownTopic, zone: str) -> Sequence[MetadataResponsePartition]:
        """The topic's partitions in order; their leader is the one replica."""
        nodes, key = cluster.nodes(), (topic.id_bytes, zone)
        kept = self._kept.get(key)
        if kept is not None and kept.nodes == nodes and len(kept.partitions) == topic.partition_count:
            return kept.partitions
        partitions: list[MetadataResponsePartition] = []
        for first in range(0, topic.partition_count, LEADERS_STEP_PARTITIONS):
            if first:
                await asyncio.sleep(0)
            step = range(first, min(first + LEADERS_STEP_PARTITIONS, topic.partition_count))
            partitions += (self._partition(cluster, topic, number, zone) for number in step)
        if cluster.nodes() == nodes:  # else some were made from other nodes
            self._keep(key, _Kept(nodes, partitions))
        return partitions

    def _partition(self, cluster: ClusterView, topic: KnownTopic, number: int, zone: str) -> MetadataResponsePartition:
        leader = cluster.leader_of(topic.record.topic_id, number, zone)
        if leader < 0:
            return MetadataResponsePartition(int(ErrorCode.LEADER_NOT_AVAILABLE), number, leader, LEADER_EPOCH)
        replicas = self._replicas.get(leader)
        if replicas is None:
            replicas = self._replicas[leader] = [leader]
        return MetadataResponsePartition(0, number, leader, LEADER_EPOCH, replicas, replicas)

    def _keep(self, key: tuple[bytes, str], kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self._count += len(kept.partitions) - (0 if before is None else len(before.partitions))
        if self._count > LEADERS_PARTITIONS_MAX:
            self._kept.clear()
            self._count = len(kept.partitions)
        self._kept[key] = kept
