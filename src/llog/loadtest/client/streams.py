"""What each client sends where: partitions in groups of one request each, and streams of such requests.

Every partition belongs to one group, whose partitions have the same topic and the same owner set, so a request can go
to any broker of the set. A stream is one client's requests for one group; it has the same number of records for every
partition of the group, so one sequence number serves them all. With more clients than groups several clients share a
group, else each has several streams. Every partition gets the same rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llog.loadtest.routing import Route
from llog.loadtest.scenario.model import Scenario


class Group(NamedTuple):
    """Partitions that share a request."""

    topic: int
    """Position in the scenario's topics."""
    topic_name: str
    partitions: tuple[int, ...]
    owners: tuple[int, ...]
    """Numbers of brokers, the preferred one first."""


class StreamPlan(NamedTuple):
    client: int
    group: Group
    batch_records: int
    """Of each partition, in one request."""
    byte_share: float
    """Of the whole load."""
    phase: float
    """When its first request is due, as a share of the time between two."""

    @property
    def request_records(self) -> int:
        return self.batch_records * len(self.group.partitions)


def plan_groups(topics: Sequence[str], routes: Sequence[Route], partitions_per_request: int) -> list[Group]:
    """Groups of about the same size; those of different brokers alternate, so that requests reach brokers in turn."""
    numbers = {name: number for number, name in enumerate(topics)}
    sets: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for route in routes:
        sets.setdefault((route.topic, route.writers), []).append(route.partition)
    numbered: list[tuple[int, Group]] = []
    for (topic, owners), partitions in sets.items():
        count = -(-len(partitions) // partitions_per_request)
        numbered += [
            (number, Group(numbers[topic], topic, tuple(partitions[number::count]), owners)) for number in range(count)
        ]
    return [group for _, group in sorted(numbered, key=lambda item: item[0])]


def plan_streams(scenario: Scenario, routes: Sequence[Route]) -> list[StreamPlan]:
    """Of all clients."""
    producers = scenario.producers
    groups = plan_groups([topic.name for topic in scenario.topics], routes, producers.partitions_per_request)
    count = max(producers.clients, len(groups))
    sharers = [len(range(number, count, len(groups))) for number in range(len(groups))]
    plans: list[StreamPlan] = []
    for number in range(count):
        group = groups[number % len(groups)]
        share = len(group.partitions) / len(routes) / sharers[number % len(groups)]
        batch_records = producers.records_per_request // len(group.partitions)
        plans.append(StreamPlan(number % producers.clients, group, batch_records, share, number / count))
    return plans
