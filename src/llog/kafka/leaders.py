"""The partitions of topics as Metadata shows them: each with the node that clients of a zone should use.

Clients ask for the same topics again and again, so the partitions of a topic are kept until the nodes change. They are
made in steps, between which other requests have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.broker.cluster import ClusterView, Node
from llog.kafka.codec.messages.metadata import MetadataResponsePartition
from llog.log.topics.known_topics import KnownTopic

LEADERS_PARTITIONS_MAX: Final = 200_000
"""Partitions that are kept, over all topics and zones; at the limit, all are dropped."""
LEADERS_STEP_PARTITIONS: Final = 2_000
"""Partitions that are made before other requests have their turn, and more where one topic has more."""
LEADERS_TOPIC_COST: Final = 4
"""A topic takes the time of so many partitions."""
LEADER_EPOCH: Final = 0
"""Of every partition, always: a log's fence epoch is no leader epoch, and clients refuse to go back to a lower one."""

Partitions = list[MetadataResponsePartition]


class _Kept(NamedTuple):
    nodes: Sequence[Node]
    partitions: Partitions


class PartitionLeaders:
    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str], _Kept] = {}
        self._count = 0

    async def of(self, cluster: ClusterView, topics: Sequence[KnownTopic], zone: str) -> list[Partitions]:
        """The partitions of each topic, in order. Their replicas are the leader and, in other zones, a reader."""
        nodes = cluster.nodes()
        found: list[Partitions | None] = [self._kept_of(topic, zone, nodes) for topic in topics]
        missing = [place for place, partitions in enumerate(found) if partitions is None]
        for number, step in enumerate(_steps(topics, missing)):
            if number:
                await asyncio.sleep(0)
            nodes = cluster.nodes()
            ids = [topics[place].record.topic_id for place in step]
            leaders = cluster.leaders_of([(topics[i].record.topic_id, topics[i].partition_count) for i in step], zone)
            replicas = cluster.replicas_of(list(zip(ids, leaders, strict=True)))
            for place, leading, nodes_of in zip(step, leaders, replicas, strict=True):
                found[place] = made = _partitions(leading, nodes_of)
                self._keep((topics[place].id_bytes, zone), _Kept(nodes, made))
        return [partitions for partitions in found if partitions is not None]

    def _kept_of(self, topic: KnownTopic, zone: str, nodes: Sequence[Node]) -> Partitions | None:
        kept = self._kept.get((topic.id_bytes, zone))
        current = kept is not None and len(kept.partitions) == topic.partition_count and kept.nodes == nodes
        return kept.partitions if kept is not None and current else None

    def _keep(self, key: tuple[bytes, str], kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self._count += len(kept.partitions) - (0 if before is None else len(before.partitions))
        if self._count > LEADERS_PARTITIONS_MAX:
            self._kept.clear()
            self._count = len(kept.partitions)
        self._kept[key] = kept


def _steps(topics: Sequence[KnownTopic], missing: Sequence[int]) -> list[list[int]]:
    """Places of topics, in groups of about LEADERS_STEP_PARTITIONS partitions."""
    steps: list[list[int]] = []
    room = 0
    for place in missing:
        if room <= 0:
            steps.append([])
            room = LEADERS_STEP_PARTITIONS
        steps[-1].append(place)
        room -= topics[place].partition_count + LEADERS_TOPIC_COST
    return steps


def _partitions(leaders: Sequence[int], replicas: Sequence[tuple[int, ...]]) -> Partitions:
    lists = {nodes: list(nodes) for nodes in set(replicas)}  # shared by partitions with the same replicas
    return [
        MetadataResponsePartition(0, number, leader, LEADER_EPOCH, lists[nodes], lists[nodes])
        for number, (leader, nodes) in enumerate(zip(leaders, replicas, strict=True))
    ]
