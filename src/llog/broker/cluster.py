"""The cluster as one broker sees it: the nodes that are alive, and the node that clients should use for a partition.

Any node serves any partition. A partition's leader is advice that keeps its tail in one cache and its commits without
rivals; nothing depends on it for correctness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    zone: str = ""
    writes: bool = True
    reads: bool = True
    draining: bool = False


class ClusterView:
    def __init__(self, cluster_id: str, own: Node) -> None:
        self.cluster_id = cluster_id
        self._nodes: tuple[Node, ...] = (own,)
        self.node_id = own.node_id

    def nodes(self) -> Sequence[Node]:
        """Live nodes with a Kafka address, by id; this one is among them."""
        return self._nodes

    def controller(self) -> int:
        """The node that clients send administration to; any node does it."""
        return self._nodes[0].node_id

    def zone_of_client(self, client_id: str | None) -> str:
        """The zone that a client names in its id; empty: none."""
        return ""

    def leader_of(self, topic_id: str, partition: int, zone: str = "") -> int:
        """The node that a client of this zone should write to and read from."""
        return self._nodes[0].node_id

    def preferred_reader(self, topic_id: str, partition: int, zone: str) -> int:
        """A node of that zone to read from, when the leader is in another one; -1: stay with the leader."""
        return -1
