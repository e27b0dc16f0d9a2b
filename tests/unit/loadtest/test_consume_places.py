"""Which partitions a client reads, and what it asks for next."""

from __future__ import annotations

from collections import Counter

import numpy as np

from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume.places import Place, Places
from llog.loadtest.client.consume.process import plan_places
from llog.loadtest.routing import plan_routes
from llog.loadtest.scenario.read import parse_scenario
from tests.unit.loadtest.consuming import places

SCENARIO = """
name: test
topics: [{name: one, partitions: 30}, {name: two, partitions: 7}]
load: {target_mb_per_s: 1}
stack: {brokers: 3, metadata: oxia}
consumers: {clients: 5, processes: 2}
routing: {owners: 2}
"""


def advance(at: Places, offsets: dict[int, int], ends: dict[int, int]) -> None:
    rows = np.array(list(offsets), np.int64)
    at.advance(rows, np.array([*offsets.values()]), np.array([ends[row] for row in offsets]))


def test_each_partition_is_read_by_exactly_one_client() -> None:
    scenario = parse_scenario(SCENARIO)
    brokers = [BrokerPlace(n, f"b{n}", "both", "", "", 0) for n in range(3)]
    routes = plan_routes(scenario, brokers).routes
    processes = [plan_places(routes, scenario, number, 2) for number in range(2)]
    assert [set(planned) for planned in processes] == [{0, 2, 4}, {1, 3}]
    read = Counter(place[:2] for planned in processes for some in planned.values() for place in some)
    assert read == Counter((topic, n) for topic, count in ((0, 30), (1, 7)) for n in range(count))
    sizes = [len(some) for planned in processes for some in planned.values()]
    assert max(sizes) - min(sizes) <= 1


def test_a_client_prefers_few_brokers() -> None:
    scenario = parse_scenario(SCENARIO)
    brokers = [BrokerPlace(n, f"b{n}", "both", "", "", 0) for n in range(3)]
    planned = plan_places(plan_routes(scenario, brokers).routes, scenario, 0, 1)
    asked = [len({place.readers[0] for place in some}) for some in planned.values()]
    assert sum(asked) <= len(planned) + len(brokers) - 1


def test_more_clients_than_partitions_leave_some_without_work() -> None:
    scenario = parse_scenario(SCENARIO, ["consumers.clients=100"])
    brokers = [BrokerPlace(0, "b0", "both", "", "", 0)]
    planned = plan_places(plan_routes(scenario, brokers).routes, scenario, 0, 1)
    assert sorted(len(some) for some in planned.values()) == [1] * 37


def test_partitions_with_more_to_read_come_first_and_those_that_waited_longest_before_all() -> None:
    at = places(4)
    advance(at, {0: 10, 1: 10, 2: 5, 3: 5}, {0: 10, 1: 10, 2: 50, 3: 50})
    advance(at, {3: 8}, {3: 50})
    assert at.to_ask(0, draining=False).tolist() == [2, 3, 0, 1]
    advance(at, {2: 9, 0: 10}, {2: 50, 0: 10})
    assert at.to_ask(0, draining=False).tolist() == [3, 2, 0, 1]


def test_drained_partitions_are_not_asked_for_again() -> None:
    at = places(3)
    at.drain_ends[:] = [4, 0, 9]
    at.offsets[:] = [4, 0, 8]
    assert at.drained().tolist() == [True, True, False]
    assert at.to_ask(0, draining=True).tolist() == [2]
    assert len(at.to_ask(0, draining=False)) == 3


def test_only_the_partitions_of_a_broker_are_asked_there() -> None:
    at = Places([Place(1, 2, (5,)), Place(0, 0, (6, 5)), Place(1, 0, (6,))], [1, 3])
    assert at.to_ask(5, draining=False).tolist() == [0]
    assert at.to_ask(6, draining=False).tolist() == [1, 2]
    assert [at.row(1, n) for n in range(3)] == [2, -1, 0]
    assert at.row(0, 0) == 1
