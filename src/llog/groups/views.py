"""What administrators see of a group. Views show the machine's memory, which may be ahead of the record: they name
nothing that a member may act on."""

from __future__ import annotations

from typing import NamedTuple

from llog.groups.records import GroupHead, Partitions


class ListedGroup(NamedTuple):
    """One row of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    """`classic` or `consumer`; a group without members that only stores positions is a classic one, as in Kafka."""


class DescribedClassicMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedClassicGroup(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    members: tuple[DescribedClassicMember, ...]


class DescribedConsumerMember(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    assignment: Partitions
    target: Partitions


class DescribedConsumerGroup(NamedTuple):
    group_id: str
    state: str
    """Empty, Assigning, Reconciling or Stable. Targets are computed at once, so Assigning never shows."""
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumerMember, ...]


def listed(group_id: str, head: GroupHead) -> ListedGroup:
    """The row of a group that is known by its record only."""
    return ListedGroup(group_id, head.protocol_type, head.state, "consumer" if head.type == "consumer" else "classic")
