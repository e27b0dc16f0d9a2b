"""The view of the cluster: which node clients are sent to, by zone, role and draining."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llog.broker import cluster as module
from llog.broker.cluster import ClusterView, Node, keep_current, node_of, read_nodes, zone_of_client
from llog.errors import MetadataUnavailable
from llog.formats.values import BrokerRegistration, ClusterId, encode_value
from llog.log.context import LogContext
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import Key, Record
from llog.stores.objects.memory import MemoryObjectStore
from tests.contexts import log_context
from tests.patience import until

TOPIC = "3f0e6b6e-2d0b-4c58-8f5e-7a9b3a1c2d4e"
PARTITIONS = range(300)


def node(node_id: int, zone: str = "", **more: bool) -> Node:
    return Node(node_id, f"node-{node_id}", 9092, zone, **more)


def view(own: Node, *others: Node) -> ClusterView:
    made = ClusterView("c0ffee", own)
    made.set_others(others)
    return made


def leaders(cluster: ClusterView, zone: str = "") -> set[int]:
    one_by_one = [cluster.leader_of(TOPIC, partition, zone) for partition in PARTITIONS]
    assert cluster.leaders_of([(TOPIC, len(PARTITIONS))], zone) == [one_by_one]
    return set(one_by_one)


# -- leaders -----------------------------------------------------------------------------------------------------------


def test_every_node_sees_the_same_leaders_and_controller() -> None:
    nodes = [node(1), node(4), node(9)]
    views = [view(own, *(other for other in nodes if other is not own)) for own in nodes]
    assert {tuple(one.leaders_of([(TOPIC, 300)])[0]) for one in views} == {
        tuple(views[0].leaders_of([(TOPIC, 300)])[0])
    }
    assert len({one.controller() for one in views}) == 1
    assert [one.nodes() for one in views] == [tuple(nodes)] * 3
    assert leaders(views[0]) == {1, 4, 9}


def test_clients_of_a_zone_are_sent_to_its_nodes_and_others_to_all() -> None:
    cluster = view(node(0, "a"), node(1, "a"), node(2, "b"), node(3))
    assert leaders(cluster, "a") == {0, 1}
    assert leaders(cluster, "b") == {2}
    assert leaders(cluster, "unknown") == leaders(cluster) == {0, 1, 2, 3}


def test_nodes_that_only_read_or_drain_lead_nothing() -> None:
    cluster = view(node(0, "a"), node(1, "a", draining=True), node(2, "b", writes=False))
    assert leaders(cluster) == {0}
    assert leaders(cluster, "b") == {0}
    assert cluster.controller() == 0
    assert [one.node_id for one in cluster.nodes()] == [0, 1, 2]


def test_when_no_node_is_better_the_rest_lead() -> None:
    assert leaders(view(node(0, writes=False), node(1, draining=True))) == {0}
    assert leaders(view(node(0, draining=True), node(1, draining=True))) == {0, 1}


def test_a_node_drains_only_if_another_can_take_its_clients() -> None:
    assert not view(node(0), node(1)).draining
    assert view(node(0, draining=True), node(1)).draining
    for useless in (node(1, draining=True), node(1, writes=False)):
        assert not view(node(0, draining=True), useless).draining
    assert not view(node(0, draining=True)).draining


# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_consumer_in_another_zone_is_given_a_reader_of_it() -> None:
    cluster = view(node(0, "a"), node(1, "b"), node(2, "b", writes=False), node(3, "b", reads=False))
    preferred = {cluster.preferred_reader(TOPIC, partition, "b") for partition in PARTITIONS}
    assert preferred == {1, 2}
    assert cluster.preferred_reader(TOPIC, 0, "a") == -1, "this node is in the consumer's zone"
    assert cluster.preferred_reader(TOPIC, 0, "c") == -1, "no node is"
    assert cluster.preferred_reader(TOPIC, 0, "") == -1


def test_preferred_readers_are_among_the_replicas() -> None:
    nodes = [node(0, "a"), node(1, "b"), node(2, "b"), node(3, "c"), node(4)]
    cluster = view(nodes[0], *nodes[1:])
    [leading] = cluster.leaders_of([(TOPIC, len(PARTITIONS))])
    for partition, replicas in enumerate(cluster.replicas_of([(TOPIC, leading)])[0]):
        leader = leading[partition]
        assert replicas[0] == leader
        assert len(set(replicas)) == len(replicas)
        zones = {"a", "b", "c"} - {nodes[leader].zone}
        readers = {view(nodes[4], *nodes[:4]).preferred_reader(TOPIC, partition, zone) for zone in zones}
        assert readers == set(replicas[1:])
    assert view(node(0, "a"), node(1, "a")).replicas_of([(TOPIC, [1, 0])]) == [[(1,), (0,)]]


# -- zones of clients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("zone=eu-1a", "eu-1a"),
        ("app-7,zone=eu_1.a", "eu_1.a"),
        ("zone=a;app=b", "a"),
        ("diskless_az=use1-az4", "use1-az4"),
        ("x zone_id=z1", "z1"),
        ("automq_type=producer&automq_az=eu-2", "eu-2"),
        ("app", ""),
        ("timezone=utc", ""),
        ("zone=", ""),
        ("zone=<script>", ""),
        ("", ""),
        (None, ""),
        ("zone=" + "z" * 1_000, "z" * 64),
    ],
)
def test_the_zone_in_a_client_id_is_found(client_id: str | None, zone: str) -> None:
    assert zone_of_client(client_id) == zone
    assert view(node(0)).zone_of_client(client_id) == zone


# -- registrations -----------------------------------------------------------------------------------------------------


def registration(node_id: int, **more: object) -> BrokerRegistration:
    given = {"addresses": {"kafka": f"node-{node_id}:9092"}, "roles": ("read", "write"), **more}
    return BrokerRegistration(broker_id=f"broker-{node_id}", node_id=node_id, **given)  # type: ignore[arg-type]


def test_a_registration_with_a_kafka_address_is_a_node() -> None:
    full = registration(3, zone="a", draining=True, roles=("read",), addresses={"http": "h:1", "kafka": "[::1]:9092"})
    assert node_of(full) == Node(3, "::1", 9092, "a", writes=False, reads=True, draining=True)
    assert node_of(registration(3, addresses={"http": "h:1"})) is None
    assert node_of(registration(3, addresses={"kafka": "not an address"})) is None
    assert node_of(BrokerRegistration(broker_id="of an earlier release", addresses={"kafka": "h:1"})) is None


class Store(MemoryStore):
    failing = False
    scans = 0

    async def scan(self, parent: Key, **more: object) -> list[Record]:
        self.scans += 1
        if self.failing:
            raise MetadataUnavailable("scan", "memory://", "gone")
        return await super().scan(parent, **more)  # type: ignore[arg-type]


async def put(context: LogContext, *values: BrokerRegistration) -> None:
    for value in values:
        await context.metadata.put(context.keys.broker(value.broker_id), encode_value(value))


async def test_of_two_brokers_with_one_id_the_later_start_counts() -> None:
    context = log_context(MemoryStore(), MemoryObjectStore("memory://cluster"))
    old = BrokerRegistration(broker_id="z", node_id=1, addresses={"kafka": "old:1"}, started_at_ms=1)
    new = BrokerRegistration(broker_id="a", node_id=1, addresses={"kafka": "new:1"}, started_at_ms=2)
    await put(context, old, new, registration(2))
    await context.metadata.put(context.keys.broker("unreadable"), b"{}")
    assert sorted(one.host for one in await read_nodes(context)) == ["new", "node-2"]


async def test_the_view_follows_the_registrations_and_survives_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLUSTER_REFRESH_MS", 1)
    store = Store()
    context = log_context(store, MemoryObjectStore("memory://cluster"))
    cluster = ClusterView("", node(1))
    await put(context, registration(1, addresses={"kafka": "stale:1"}))
    following = asyncio.create_task(keep_current(cluster, context))
    try:
        await put(context, registration(2), registration(3, draining=True))
        await until(lambda: ids(cluster.nodes()) == [1, 2, 3])
        assert cluster.nodes()[0].host == "node-1", "a node knows its own address best"
        await context.metadata.put(context.keys.cluster_id(), encode_value(ClusterId(cluster_id="ab", created_at_ms=1)))
        await until(lambda: cluster.cluster_id == "ab")
        store.failing, before = True, store.scans
        await until(lambda: store.scans > before + 3)
        assert ids(cluster.nodes()) == [1, 2, 3]
        store.failing = False
        await context.metadata.delete(context.keys.broker("broker-2"))
        await until(lambda: ids(cluster.nodes()) == [1, 3])
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def ids(nodes: Sequence[Node]) -> list[int]:
    return [one.node_id for one in nodes]
