"""Bringing one member from what it has to its target, without two owners of a partition at any time (rule G6).

A member first gives up what it must: the partitions stay its own, in `revoking`, until a heartbeat of the member no
longer names them (or until it is fenced). Only then it moves to the target's epoch and gets the partitions that nobody
else has; the others follow when their owners let go. Both steps are pure functions of the member, its target and the
partitions of others; the caller stores the result before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from llog.groups.records import ConsumerMember, Partitions

STATIC_LEFT_EPOCH = -2

Epochs = dict[str, dict[int, int]]
"""Topic id → partition → the epoch in which the member got it."""
Owned = Mapping[str, Collection[int]]
"""Partitions that a client says it has, by topic id."""


class Goal(NamedTuple):
    """Where a member shall go."""

    epoch: int
    """Of the target assignment."""
    topics: frozenset[str]
    """Ids of the topics that the member subscribes to. Others are taken away even before a target says so."""
    taken: Callable[[str, int], bool]
    """Whether another member has this partition, or still gives it up."""


def partitions_of(epochs: Epochs) -> Partitions:
    return {topic: tuple(sorted(partitions)) for topic, partitions in epochs.items() if partitions}


def is_reconciled(member: ConsumerMember, epoch: int) -> bool:
    """Whether the member has exactly its target, in the target's epoch."""
    return member.epoch == epoch and not member.revoking and partitions_of(member.assigned) == member.target


def within(owned: Owned | None, epochs: Epochs) -> bool:
    """Whether a client names only partitions that it was given; False if it names none at all."""
    return owned is not None and all(
        partition in epochs.get(topic, ()) for topic, partitions in owned.items() for partition in partitions
    )


def reconcile(member: ConsumerMember, goal: Goal, owned: Owned | None) -> ConsumerMember:
    """The member after a heartbeat in which it says that it has `owned` (None: nothing said)."""
    if member.revoking and _still_has(member.revoking, owned):
        return _take_unsubscribed(member, goal.topics)
    if is_reconciled(member, goal.epoch):
        return member
    return _advance(member, goal, owned)


def _still_has(epochs: Epochs, owned: Owned | None) -> bool:
    """A member that says nothing has not given anything up."""
    if owned is None:
        return True
    return any(partition in epochs.get(topic, ()) for topic, partitions in owned.items() for partition in partitions)


def _take_unsubscribed(member: ConsumerMember, topics: frozenset[str]) -> ConsumerMember:
    """While a member still gives partitions up, take only what it does not subscribe to any more."""
    gone = [topic for topic in member.assigned if topic not in topics]
    if not gone:
        return member
    revoking = dict(member.revoking)
    for topic in gone:
        revoking[topic] = {**revoking.get(topic, {}), **member.assigned[topic]}
    kept = {topic: partitions for topic, partitions in member.assigned.items() if topic in topics}
    return replace(member, assigned=kept, revoking=revoking)


def _advance(member: ConsumerMember, goal: Goal, owned: Owned | None) -> ConsumerMember:
    target = {topic: frozenset(ids) for topic, ids in member.target.items() if topic in goal.topics}
    kept: Epochs = {}
    lost: Epochs = {}
    for topic, partitions in member.assigned.items():
        for partition, epoch in partitions.items():
            side = kept if partition in target.get(topic, ()) else lost
            side.setdefault(topic, {})[partition] = epoch
    if lost and _still_has(lost, owned):
        return _changed(member, member.epoch, kept, lost)
    for topic, ids in target.items():
        for partition in sorted(ids):
            if partition not in kept.get(topic, ()) and not goal.taken(topic, partition):
                kept.setdefault(topic, {})[partition] = goal.epoch
    return _changed(member, goal.epoch, kept, {})


def _changed(member: ConsumerMember, epoch: int, assigned: Epochs, revoking: Epochs) -> ConsumerMember:
    previous = member.epoch if epoch != member.epoch else member.previous_epoch
    changed = replace(member, epoch=epoch, previous_epoch=previous, assigned=assigned, revoking=revoking)
    return member if changed == member else changed
