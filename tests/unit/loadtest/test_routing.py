"""Owner sets: the same everywhere, spread evenly, and disturbed as little as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.routing import owner_set, plan_routes, weight
from llog.loadtest.scenario.model import Role, Routing, Scenario, Stack, Topic


def places(roles: Sequence[Role]) -> list[BrokerPlace]:
    return [BrokerPlace(number, f"broker-{number}", role, "", "", 0) for number, role in enumerate(roles)]


BOTH = places(["both"] * 5)


def test_weights_do_not_change_between_versions() -> None:
    assert weight("load", 7, "broker-2", 1) == 0xFEC6BB76049130F9


def test_a_partition_has_as_many_owners_as_wanted_and_no_more_than_brokers() -> None:
    assert [len(set(owner_set("load", 0, BOTH, owners, 1))) for owners in (1, 2, 5, 9)] == [1, 2, 5, 5]


def test_a_smaller_set_is_the_beginning_of_a_larger_one() -> None:
    for partition in range(50):
        assert owner_set("load", partition, BOTH, 3, 1)[:2] == owner_set("load", partition, BOTH, 2, 1)


def test_partitions_spread_over_the_brokers() -> None:
    counts = Counter(owner_set("load", partition, BOTH, 1, 1)[0] for partition in range(5_000))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150


def test_only_the_partitions_of_a_lost_broker_move() -> None:
    left = [broker for broker in BOTH if broker.number != 3]
    for partition in range(500):
        before, after = owner_set("load", partition, BOTH, 1, 1), owner_set("load", partition, left, 1, 1)
        assert before == after or before == (3,)


def test_topics_and_seeds_have_owners_of_their_own() -> None:
    def owners(topic: str, seed: int) -> list[tuple[int, ...]]:
        return [owner_set(topic, partition, BOTH, 1, seed) for partition in range(100)]

    assert owners("a", 1) == owners("a", 1)
    assert owners("a", 1) != owners("b", 1)
    assert owners("a", 1) != owners("a", 2)


def test_writers_and_readers_are_brokers_of_that_role() -> None:
    scenario = Scenario(
        "split",
        stack=Stack(brokers=4, roles=("write", "read")),
        topics=(Topic("a", 8), Topic("b", 3)),
        routing=Routing(owners=2, seed=9),
    )
    manifest = plan_routes(scenario, places(["write", "read", "write", "read"]))
    assert [(route.topic, route.partition) for route in manifest.routes] == [
        *(("a", partition) for partition in range(8)),
        *(("b", partition) for partition in range(3)),
    ]
    for route in manifest.routes:
        assert set(route.writers) == {0, 2}
        assert set(route.readers) == {1, 3}
    assert manifest.brokers == ("broker-0", "broker-1", "broker-2", "broker-3")
    assert (manifest.seed, manifest.owners) == (9, 2)
