"""The server-side assignors of consumer groups: `uniform` and `range`.

An assignor is a pure function from subscriptions and former targets to new targets. Both give every partition of every
subscribed topic to exactly one member that subscribes to the topic. Rack ids are not considered: every partition is
equally far from every reader, because its bytes are in object storage.

`uniform` is balanced: no partition can be moved, alone or in a chain over several members, so that the loads of two
members differ less. Members with the same subscription differ by one partition at most. It is sticky: a partition
leaves its member only if the member must not read it any more, or in order to balance, and as few as possible do.

`range` gives each member neighbouring partitions of every topic, the same ones of topics with as many partitions
and the same subscribers; it is what joins over topics need. Members are ordered by instance id or member id.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from llog.groups.records import Partitions

UNIFORM: Final = "uniform"
RANGE: Final = "range"


class Subscriber(NamedTuple):
    topics: frozenset[str]
    """Ids of the topics that the member may read."""
    order: str
    """Sorts members: the instance id of a static member, else the member id."""
    target: Partitions
    """What the member was to read before."""


Subscribers = Mapping[str, Subscriber]
"""Member id → subscription."""
Assignor = Callable[[Subscribers, Mapping[str, int]], dict[str, Partitions]]
"""Subscriptions, and topic id → number of partitions. Returns a target for every member."""


def range_assignor(members: Subscribers, topics: Mapping[str, int]) -> dict[str, Partitions]:
    targets: dict[str, Partitions] = {member_id: {} for member_id in members}
    for topic, readers in _readers(members, topics).items():
        each, extra = divmod(topics[topic], len(readers))
        first = 0
        for position, member_id in enumerate(readers):
            end = first + each + (position < extra)
            if end > first:
                targets[member_id][topic] = tuple(range(first, end))
            first = end
    return targets


def uniform_assignor(members: Subscribers, topics: Mapping[str, int]) -> dict[str, Partitions]:
    readers = _readers(members, topics)
    owned, free = _kept(members, topics, readers)
    _hand_out(owned, free, readers)
    _balance(owned, readers)
    targets: dict[str, Partitions] = {}
    for member_id, of_topics in owned.items():
        targets[member_id] = {topic: tuple(sorted(of_topics[topic])) for topic in sorted(of_topics) if of_topics[topic]}
    return targets


ASSIGNORS: Final[dict[str, Assignor]] = {UNIFORM: uniform_assignor, RANGE: range_assignor}
"""By name, the default first."""

_Owned = dict[str, dict[str, set[int]]]
_Readers = dict[str, tuple[str, ...]]


def _readers(members: Subscribers, topics: Mapping[str, int]) -> _Readers:
    """Subscribers of each topic, in order; topics without any are left out. Equal sets are the same object."""
    ordered = sorted(members, key=lambda member_id: (members[member_id].order, member_id))
    by_topic: dict[str, list[str]] = {topic: [] for topic in sorted(topics) if topics[topic] > 0}
    for member_id in ordered:
        for topic in members[member_id].topics:
            if topic in by_topic:
                by_topic[topic].append(member_id)
    same: dict[tuple[str, ...], tuple[str, ...]] = {}
    return {topic: same.setdefault(tuple(ids), tuple(ids)) for topic, ids in by_topic.items() if ids}


def _kept(members: Subscribers, topics: Mapping[str, int], readers: _Readers) -> tuple[_Owned, dict[str, list[int]]]:
    """What every member may keep, and the partitions that nobody has."""
    free = {topic: set(range(topics[topic])) for topic in readers}
    owned: _Owned = {}
    for member_id in sorted(members):
        owned[member_id] = {}
        for topic, partitions in members[member_id].target.items():
            if topic in free and topic in members[member_id].topics:
                kept = free[topic].intersection(partitions)
                free[topic] -= kept
                owned[member_id][topic] = kept
    return owned, {topic: sorted(partitions) for topic, partitions in free.items() if partitions}


def _hand_out(owned: _Owned, free: Mapping[str, list[int]], readers: _Readers) -> None:
    """Give each free partition to the subscriber with the fewest partitions. Topics with few subscribers come first:
    they have the least choice."""
    loads = {member_id: sum(map(len, of_topics.values())) for member_id, of_topics in owned.items()}
    heaps: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for topic in sorted(free, key=lambda topic: (len(readers[topic]), topic)):
        ids = readers[topic]
        heap = heaps.get(ids)
        if heap is None:
            heap = heaps[ids] = [(loads[member_id], position) for position, member_id in enumerate(ids)]
            heapq.heapify(heap)
        for partition in free[topic]:
            load, position = heap[0]
            while load != loads[ids[position]]:  # it got partitions of other topics since
                heapq.heapreplace(heap, (loads[ids[position]], position))
                load, position = heap[0]
            member_id = ids[position]
            owned[member_id].setdefault(topic, set()).add(partition)
            loads[member_id] = load + 1
            heapq.heapreplace(heap, (load + 1, position))


def _balance(owned: _Owned, readers: _Readers) -> None:
    """Move partitions along the shortest chains from the most loaded members to members with at least two fewer.

    Each chain lowers the sum of squared loads, so this ends; without a chain the loads cannot be closer (it is an
    optimal semi-matching). Between equal subscriptions every chain is one move, from the heaviest member to the
    lightest, which moves as few partitions as possible.
    """
    loads = {member_id: sum(map(len, of_topics.values())) for member_id, of_topics in owned.items()}
    moved = True
    while moved:
        moved = False
        settled: set[str] = set()
        lightest = min(loads.values(), default=0)
        heaviest = [(-load, member_id) for member_id, load in loads.items()]
        heapq.heapify(heaviest)
        while heaviest:
            load, giver = heapq.heappop(heaviest)
            if -load < lightest + 2:
                break
            if -load != loads[giver] or giver in settled:
                continue
            chain, reached = _chain(giver, owned, readers, loads)
            if not chain:  # nor is there one from the others that it reaches, because they have no more than it
                settled |= reached
                continue
            for member_id, topic, taker in chain:
                partition = max(owned[member_id][topic])
                owned[member_id][topic].remove(partition)
                owned[taker].setdefault(topic, set()).add(partition)
            moved = True
            for member_id, change in ((giver, -1), (chain[-1][2], 1)):
                loads[member_id] += change
                heapq.heappush(heaviest, (-loads[member_id], member_id))


def _chain(
    first: str, owned: _Owned, readers: _Readers, loads: Mapping[str, int]
) -> tuple[list[tuple[str, str, str]], set[str]]:
    """The shortest chain of moves (giver, topic, taker) from a member to one with at least two partitions fewer, and
    the members that chains reach."""
    came_by: dict[str, tuple[str, str]] = {first: ("", "")}
    seen: set[int] = set()
    level = [first]
    while level:
        below: list[str] = []
        for giver in level:
            for topic, partitions in owned[giver].items():
                if not partitions or id(readers[topic]) in seen:
                    continue
                seen.add(id(readers[topic]))
                for taker in readers[topic]:
                    if taker not in came_by:
                        came_by[taker] = (giver, topic)
                        below.append(taker)
        lightest = min(below, key=loads.__getitem__, default=first)
        if loads[lightest] <= loads[first] - 2:
            chain = []
            taker = lightest
            while taker != first:
                giver, topic = came_by[taker]
                chain.append((giver, topic, taker))
                taker = giver
            return chain[::-1], set(came_by)
        level = below
    return [], set(came_by)
