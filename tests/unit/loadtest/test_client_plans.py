"""Which client sends what where, and when it is due."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from llog.loadtest.artifacts import SearchStep
from llog.loadtest.client.schedule import NEVER, PhaseClock, Schedule, request_interval_s
from llog.loadtest.client.search import judge, next_rate, sustained_mb_per_s
from llog.loadtest.client.selection import Choice, choose
from llog.loadtest.client.streams import plan_groups, plan_streams
from llog.loadtest.routing import Route
from llog.loadtest.scenario.model import Producers, Scenario, Search, Topic


def routes(*owners: tuple[int, ...], topic: str = "load") -> list[Route]:
    return [Route(topic, partition, own, own) for partition, own in enumerate(owners)]


def scenario(partitions: int, **producers: int) -> Scenario:
    return Scenario("test", topics=(Topic(partitions=partitions),), producers=Producers(**producers))


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_group_has_one_topic_and_one_owner_set() -> None:
    mixed = [*routes((0,), (1,), (0,), (1,), (0,)), *routes((0,), topic="other")]
    groups = plan_groups(["load", "other"], mixed, 2)
    assert sorted(group.partitions for group in groups if group.topic_name == "load") == [(0, 4), (1, 3), (2,)]
    assert [(group.topic, group.partitions) for group in groups if group.topic_name == "other"] == [(1, (0,))]
    for group in groups:
        assert {route.writers for route in mixed if route.partition in group.partitions and route.topic == "load"} >= {
            group.owners
        }


def test_groups_of_different_brokers_alternate() -> None:
    groups = plan_groups(["load"], routes((0,), (0,), (1,), (1,)), 1)
    assert [group.owners for group in groups] == [(0,), (1,), (0,), (1,)]


@pytest.mark.parametrize(
    ("partitions", "clients", "together"), [(32, 512, 1), (40, 20, 2), (10_000, 16, 128), (7, 5, 3)]
)
def test_every_partition_gets_the_same_rate(partitions: int, clients: int, together: int) -> None:
    plans = plan_streams(
        scenario(partitions, clients=clients, partitions_per_request=together, records_per_request=256),
        routes(*[(partition % 3,) for partition in range(partitions)]),
    )
    rates = Counter[int]()
    for plan in plans:
        assert 1 <= len(plan.group.partitions) <= together
        for partition in plan.group.partitions:
            rates[partition] += plan.byte_share / len(plan.group.partitions)  # type: ignore[assignment]
    assert len(rates) == partitions
    assert all(math.isclose(rate, 1 / partitions) for rate in rates.values())
    assert {plan.client for plan in plans} == set(range(clients))


def test_the_first_requests_are_spread_over_the_interval() -> None:
    phases = [plan.phase for plan in plan_streams(scenario(4, clients=8), routes((0,), (0,), (0,), (0,)))]
    assert sorted(phases) == [number / 8 for number in range(8)]


# -- schedule ----------------------------------------------------------------------------------------------------------


def test_due_times_do_not_depend_on_when_requests_are_sent() -> None:
    schedule = Schedule()
    assert schedule.next_due_s == NEVER
    schedule.start(100.0, 0.5, 0.5)
    assert [schedule.take() for _ in range(3)] == [100.25, 100.75, 101.25]
    assert schedule.next_due_s == 101.75


def test_due_requests_are_counted_whether_sent_or_not() -> None:
    schedule = Schedule()
    schedule.start(100.0, 0.5, 0.0)
    assert [schedule.count_due(at_s) for at_s in (99.0, 100.0, 101.2, 101.2, 110.0)] == [0, 1, 2, 0, 18]


def test_a_new_rate_drops_what_is_overdue() -> None:
    schedule = Schedule()
    schedule.start(100.0, 0.1, 0.0)
    schedule.start(200.0, 1.0, 0.0)
    assert schedule.take() == 200.0
    schedule.stop()
    assert schedule.next_due_s == NEVER


def test_a_stream_sends_its_share_of_the_rate() -> None:
    assert request_interval_s(8.0, 0.25, 1_000_000) == pytest.approx(0.5)
    assert request_interval_s(0.0, 0.25, 1_000) == NEVER


def test_a_due_time_belongs_to_the_phase_that_has_begun_then() -> None:
    phases = PhaseClock()
    phases.enter("measured", 10.0)
    phases.enter("after", 20.0)
    assert [phases.phase_of(at_s) for at_s in (5.0, 10.0, 19.9, 20.0)] == ["warm_up", "measured", "measured", "after"]


# -- selection ---------------------------------------------------------------------------------------------------------


def test_round_robin_takes_owners_in_turn() -> None:
    assert [choose((4, 2), turn, "round_robin", [0] * 5, ()).broker for turn in range(4)] == [4, 2, 4, 2]


def test_least_inflight_takes_the_owner_with_the_fewest_unanswered_requests() -> None:
    assert choose((0, 1, 2), 0, "least_inflight", [3, 1, 2], ()) == Choice(1, None)
    assert choose((2, 0), 7, "least_inflight", [1, 0, 1], ()) == Choice(2, None)


@pytest.mark.parametrize("select", ["round_robin", "least_inflight"])
def test_an_unavailable_broker_is_replaced_inside_its_owner_set(select: str) -> None:
    assert choose((0, 2), 0, select, [0, 0, 5], {0}) == Choice(2, 0)  # type: ignore[arg-type]


def test_without_an_available_owner_the_choice_stays() -> None:
    assert choose((0, 2), 0, "round_robin", [0] * 3, {0, 2}) == Choice(0, None)


# -- search ------------------------------------------------------------------------------------------------------------


def search_with_capacity(search: Search, capacity: float) -> list[SearchStep]:
    steps: list[SearchStep] = []
    while (rate := next_rate(search, steps)) is not None:
        steps.append(judge(search, rate, min(rate, capacity), 10.0))
    return steps


@pytest.mark.parametrize("capacity", [0.3, 1.0, 7.7, 100.0, 950.0])
def test_the_search_ends_within_its_precision_of_the_capacity(capacity: float) -> None:
    search = Search(start_mb_per_s=1.0, precision=0.05)
    steps = search_with_capacity(search, capacity)
    found = sustained_mb_per_s(steps)
    assert capacity * 0.94 <= found <= capacity / 0.98
    assert len(steps) < 20


def test_the_search_doubles_until_a_rate_is_not_sustained() -> None:
    steps = search_with_capacity(Search(start_mb_per_s=1.0), 7.0)
    assert [step.offered_mb_per_s for step in steps[:6]] == [1, 2, 4, 8, 6, 7]


def test_the_search_does_not_pass_the_highest_rate() -> None:
    steps = search_with_capacity(Search(start_mb_per_s=4, highest_mb_per_s=10), 1_000.0)
    assert [step.offered_mb_per_s for step in steps] == [4, 8, 10]


def test_a_rate_with_slow_answers_is_not_sustained() -> None:
    step = judge(Search(produce_p99_ms_max=100), 10.0, 10.0, 101.0)
    assert not step.sustained
    assert "p99 of 101 ms" in step.reason


def test_a_search_without_any_sustained_rate_ends() -> None:
    steps = search_with_capacity(Search(start_mb_per_s=1.0), 0.0)
    assert sustained_mb_per_s(steps) == 0
