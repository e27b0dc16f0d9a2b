"""The members of a classic group: who they are, what they offer, who leads, and which protocol they choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llog.groups.outbox import Ticket
from llog.groups.records import ClassicMember, MemberProtocol


class Parked(NamedTuple):
    """A request that waits for other members."""

    ticket: Ticket


class Member:
    """One member, with its requests that wait. `is_new` until its first join is answered: only then does a client know
    that it is a member, so the record leaves new members out."""

    def __init__(self, record: ClassicMember, *, is_new: bool) -> None:
        self.record = record
        self.is_new = is_new
        self.join: Parked | None = None
        self.sync: Parked | None = None

    @property
    def id(self) -> str:
        return self.record.member_id

    def metadata(self, protocol: str) -> bytes:
        return next((offered.metadata for offered in self.record.protocols if offered.name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str | None:
        """The candidate that the member lists first."""
        return next((offered.name for offered in self.record.protocols if offered.name in candidates), None)


class Members:
    """Members in the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._offers: Counter[str] = Counter()
        self.leader = ""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def static_id(self, instance_id: str) -> str | None:
        return self._static.get(instance_id)

    def add(self, member: Member) -> None:
        self._members[member.id] = member
        self._offers.update(names(member.record.protocols))
        if member.record.instance_id is not None:
            self._static[member.record.instance_id] = member.id
        self.leader = self.leader or member.id

    def remove(self, member_id: str) -> Member:
        member = self._members.pop(member_id)
        self._offers.subtract(names(member.record.protocols))
        if member.record.instance_id is not None:
            self._static.pop(member.record.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self._members), "")
        return member

    def update(self, member: Member, record: ClassicMember) -> None:
        """Replace what a member says about itself, but for its id."""
        self._offers.subtract(names(member.record.protocols))
        self._offers.update(names(record.protocols))
        member.record = record

    def rename(self, old_id: str, record: ClassicMember) -> Member:
        """Give a static member its new id; it keeps its place and the lead."""
        old = self._members[old_id]
        self.update(old, record)
        renamed = Member(record, is_new=old.is_new)
        self._members = {renamed.id if m is old else m.id: renamed if m is old else m for m in self}
        if record.instance_id is not None:
            self._static[record.instance_id] = renamed.id
        if self.leader == old_id:
            self.leader = renamed.id
        return renamed

    def elect_joined_leader(self) -> bool:
        """Keep a leader that joins again, else take the first member that does; False if there is none."""
        if self.leader and self._members[self.leader].join is not None:
            return True
        self.leader = next((member.id for member in self if member.join is not None), self.leader)
        return bool(self.leader) and self._members[self.leader].join is not None

    @property
    def all_joined(self) -> bool:
        return all(member.join is not None for member in self)

    @property
    def joined_count(self) -> int:
        return sum(member.join is not None for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.record.rebalance_timeout_ms for member in self), default=0)

    def agree_on(self, protocols: Iterable[MemberProtocol]) -> bool:
        """Whether every member offers at least one of these protocols."""
        return any(self._offers[name] == len(self) for name in names(protocols))

    def choose_protocol(self) -> str:
        """Each member votes for the common protocol that it lists first; most votes win, then the earlier vote."""
        candidates = frozenset(name for name, count in self._offers.items() if count == len(self))
        votes: dict[str, int] = {}
        for member in self:
            choice = member.vote(candidates)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__, default="")


def names(protocols: Iterable[MemberProtocol]) -> frozenset[str]:
    return frozenset(protocol.name for protocol in protocols)
