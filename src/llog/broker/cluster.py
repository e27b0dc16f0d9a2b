"""The cluster as one broker sees it: the nodes that are alive, and the node that clients should use for a partition.

Any node serves any partition. A partition's leader is advice that keeps its tail in one cache and its commits without
rivals; nothing depends on it for correctness, so a view that is a second old does no harm.

The view is read again every `CLUSTER_REFRESH_MS`: one scan of a few records. A watch of the metadata store would show a
change sooner, but it brings every broker the changes of all logs (and LMDB writes a record more per append for it).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from llog.broker.rendezvous import pick, pick_many
from llog.errors import FormatError, StoreError
from llog.formats.values import BrokerRegistration, ClusterId, decode_value
from llog.log.context import LogContext
from llog.settings.urls import parse_host_port

CLUSTER_REFRESH_MS: Final = 1_000
CLIENT_ID_ZONE_LENGTH_MAX: Final = 64

_log: Final = logging.getLogger("llog.broker.cluster")
# A part of client.id, between separators: the names that other diskless brokers use are known too.
_ZONE: Final = re.compile(r"(?:^|[,;&\s])(?:zone|zone_id|diskless_az|automq_az)=([A-Za-z0-9._-]+)")


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
        self._own = own
        self._others: tuple[Node, ...] = ()
        self._arrange()

    @property
    def own(self) -> Node:
        return self._own

    @property
    def draining(self) -> bool:
        """This node is about to stop and another one can take its clients over."""
        return self._own.draining and any(node.writes and not node.draining for node in self._others)

    def nodes(self) -> Sequence[Node]:
        """Live nodes with a Kafka address, by id; this one is among them."""
        return self._nodes

    def controller(self) -> int:
        """The node that clients send administration to; any node does it."""
        return pick(self._leaders[""], self.cluster_id or "0", 0)

    def leader_of(self, topic_id: str, partition: int, zone: str = "") -> int:
        """The node that a client of this zone should write to and read from."""
        return pick(self._leaders.get(zone) or self._leaders[""], topic_id, partition)

    def leaders_of(self, topics: Sequence[tuple[str, int]], zone: str = "") -> list[list[int]]:
        """`leader_of` every partition of many topics, given by id and number of partitions. One partition at a time,
        the hashes of 10,000 would hold the event loop for tens of milliseconds."""
        return pick_many(self._leaders.get(zone) or self._leaders[""], topics)

    def replicas_of(self, topics: Sequence[tuple[str, Sequence[int]]]) -> list[list[tuple[int, ...]]]:
        """For each partition of topics, given by id and leaders: the leader and, for each other zone, the node that
        `preferred_reader` names there. Java's consumers use a preferred reader only if it is one of the replicas."""
        if len(self._readers) < 2:
            return [[(leader,) for leader in leaders] for _, leaders in topics]
        counts = [(topic_id, len(leaders)) for topic_id, leaders in topics]
        zones = [(frozenset(nodes), pick_many(nodes, counts)) for nodes in self._readers.values()]
        return [
            [
                (leader, *[picked[topic][partition] for nodes, picked in zones if leader not in nodes])
                for partition, leader in enumerate(leaders)
            ]
            for topic, (_, leaders) in enumerate(topics)
        ]

    def preferred_reader(self, topic_id: str, partition: int, zone: str) -> int:
        """A node of that zone to read from, when this node is in another one; -1: stay with this node."""
        if not zone or zone == self._own.zone:
            return -1
        readers = self._readers.get(zone)
        return -1 if readers is None else pick(readers, topic_id, partition)

    def zone_of_client(self, client_id: str | None) -> str:
        """The zone that a client names in its id; empty: none."""
        return zone_of_client(client_id)

    # -- changes -------------------------------------------------------------------------------------------------------
    def set_own(self, own: Node) -> None:
        self._own = own
        self._arrange()

    def set_others(self, nodes: Iterable[Node]) -> None:
        others = tuple(sorted(node for node in nodes if node.node_id != self._own.node_id))
        if others != self._others:
            self._others = others
            self._arrange()
            fields = {"node_id": self.node_id, "nodes": [node.node_id for node in self._nodes]}
            _log.info("the nodes of the cluster changed", extra={"llog": fields})

    def _arrange(self) -> None:
        """Candidates for leaders and readers, per zone; `""` stands for all zones and is never empty."""
        self.node_id = self._own.node_id
        self._nodes = tuple(sorted((self._own, *self._others)))
        steady = [node for node in self._nodes if not node.draining]
        writing = [node for node in steady if node.writes]
        self._leaders = {zone: [n.node_id for n in writing if n.zone == zone] for zone in {n.zone for n in writing}}
        self._leaders[""] = [node.node_id for node in writing or steady or self._nodes]
        reading = [node for node in steady if node.reads]
        zones = sorted({node.zone for node in reading} - {""})
        self._readers = {zone: [node.node_id for node in reading if node.zone == zone] for zone in zones}


def zone_of_client(client_id: str | None) -> str:
    """The zone that a client names in its `client.id`, such as `app,zone=eu-1a`; empty if it names none."""
    found = _ZONE.search(client_id) if client_id and "=" in client_id else None
    return "" if found is None else found[1][:CLIENT_ID_ZONE_LENGTH_MAX]


# -- reading the registrations -----------------------------------------------------------------------------------------


def node_of(registration: BrokerRegistration) -> Node | None:
    """None for a broker without a node id or without a Kafka address."""
    if registration.node_id < 0 or "kafka" not in registration.addresses:
        return None
    try:
        host, port = parse_host_port(registration.addresses["kafka"])
    except ValueError:
        return None
    roles = registration.roles
    return Node(
        registration.node_id,
        host,
        port,
        registration.zone,
        writes="write" in roles,
        reads="read" in roles,
        draining=registration.draining,
    )


async def read_nodes(context: LogContext) -> list[Node]:
    """The registered nodes. Of two brokers with one node id, one is about to go: the later start counts."""
    registrations = []
    async for record in context.metadata.scan_all(context.keys.brokers()):
        try:
            registrations.append(decode_value(BrokerRegistration, record.value, record.key.path))
        except FormatError as error:
            _log.warning("a broker's registration cannot be read: %s", error)
    registrations.sort(key=lambda registration: registration.started_at_ms)
    nodes = {node.node_id: node for registration in registrations if (node := node_of(registration)) is not None}
    return list(nodes.values())


async def read_cluster_id(context: LogContext) -> str:
    """Empty while there is no cluster: a broker that only reads does not create one."""
    record = await context.metadata.get(context.keys.cluster_id())
    return "" if record is None else decode_value(ClusterId, record.value, record.key.path).cluster_id


async def keep_current(view: ClusterView, context: LogContext) -> None:
    """Read the registrations again and again. While the store does not answer, the view stays as it is."""
    while True:
        try:
            view.cluster_id = view.cluster_id or await read_cluster_id(context)
            view.set_others(await read_nodes(context))
        except StoreError as error:
            _log.debug("the nodes of the cluster could not be read: %s", error)
        await context.sleep(CLUSTER_REFRESH_MS / 1_000)
