"""Which brokers a partition's requests go to: owner sets by rendezvous hashing, computed once per run.

The weight of a broker for a partition is a hash of (topic, partition, broker_id, seed); the heaviest `owners` brokers
are the partition's owner set. The sets of writers and of readers are computed among the brokers of that role. A broker
that becomes unavailable is replaced inside the set; nothing else moves. `routing-manifest.json` has the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.scenario.model import Scenario


class Route(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    writers: tuple[int, ...]
    """Numbers of brokers, the preferred one first."""
    readers: tuple[int, ...]


class RoutingManifest(msgspec.Struct, frozen=True):
    seed: int
    owners: int
    select: str
    brokers: tuple[str, ...]
    """Broker ids by number."""
    routes: tuple[Route, ...]


def weight(topic: str, partition: int, broker_id: str, seed: int) -> int:
    text = f"{topic}\0{partition}\0{broker_id}\0{seed}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def owner_set(topic: str, partition: int, brokers: Sequence[BrokerPlace], owners: int, seed: int) -> tuple[int, ...]:
    """The numbers of the heaviest brokers, heaviest first."""
    ordered = sorted(brokers, key=lambda broker: (-weight(topic, partition, broker.broker_id, seed), broker.number))
    return tuple(broker.number for broker in ordered[:owners])


def plan_routes(scenario: Scenario, brokers: Sequence[BrokerPlace]) -> RoutingManifest:
    routing = scenario.routing
    writers = [broker for broker in brokers if broker.role != "read"]
    readers = [broker for broker in brokers if broker.role != "write"]
    routes = [
        Route(
            topic.name,
            partition,
            owner_set(topic.name, partition, writers, routing.owners, routing.seed),
            owner_set(topic.name, partition, readers, routing.owners, routing.seed),
        )
        for topic in scenario.topics
        for partition in range(topic.partitions)
    ]
    ids = tuple(broker.broker_id for broker in brokers)
    return RoutingManifest(routing.seed, routing.owners, routing.select, ids, tuple(routes))
