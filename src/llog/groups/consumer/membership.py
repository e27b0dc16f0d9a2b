"""The members of a consumer group, who has which partition, and the target that they move to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from llog.groups.consumer.assign import ASSIGNORS, UNIFORM, Subscriber
from llog.groups.consumer.reconcile import STATIC_LEFT_EPOCH, Goal, is_reconciled
from llog.groups.consumer.subscribe import Catalogue, Describes, Patterns, topics_hash
from llog.groups.outbox import Outbox
from llog.groups.records import CONSUMER, ConsumerMember, GroupHead

EMPTY = "Empty"
RECONCILING = "Reconciling"
STABLE = "Stable"
DEAD = "Dead"


class Membership:
    """`epoch` is the group epoch and the epoch of the target: whatever raises it computes the target at once."""

    def __init__(self, writer: str, catalogue: Catalogue, now_ms: int, describes: Describes | None = None) -> None:
        """Without `describes`, members may describe every topic."""
        self._writer, self._describes = writer, describes
        self._shown: dict[tuple[str, str, str], frozenset[str]] = {}
        """By pattern, principal and host: the topics that the pattern stands for. Resolved again in the next epoch, and
        when topics or rights change."""
        self.catalogue = catalogue
        self.patterns = Patterns(catalogue)
        self.outbox = Outbox()
        self.epoch = 0
        self.edition = 0
        self.dead = False
        self.empty_since_ms = now_ms
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._topics_hash = ""

    # -- records ------------------------------------------------------------------------------------------------------
    def head(self, now_ms: int) -> GroupHead:
        self.edition += 1
        return GroupHead(
            type=CONSUMER,
            state=DEAD if self.dead else STABLE if self._members else EMPTY,
            generation=self.epoch,
            edition=self.edition,
            writer=self._writer,
            protocol_type="consumer",
            protocol=self.assignor,
            consumer=tuple(self._members.values()),
            members=len(self._members),
            topics_hash=self._topics_hash,
            empty_since_ms=0 if self._members else self.empty_since_ms,
            written_at_ms=now_ms,
        )

    def resume(self, head: GroupHead) -> None:
        """Continue with the stored members, epochs and partitions (rule G4). Topics may have changed meanwhile."""
        self.epoch, self.edition = head.generation, head.edition
        self.empty_since_ms = head.empty_since_ms or head.written_at_ms
        self._topics_hash = head.topics_hash
        for member in head.consumer:
            self.patterns.add(member.regex, of_any_catalogue=True)
            self.put(member, stored=True)

    # -- members ------------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._members.get(member_id)

    def static(self, instance_id: str) -> ConsumerMember | None:
        return self._members.get(self._static.get(instance_id, ""))

    def put(self, member: ConsumerMember, *, stored: bool = False) -> None:
        """Add or replace a member. A partition that another member has is never taken over: that would be a fault of
        this package, and ends in an error before anything is written."""
        self._disown(member.member_id)
        for epochs in (member.assigned, member.revoking):
            for topic, partitions in epochs.items():
                for partition in partitions:
                    owner = self._owners.setdefault((topic, partition), member.member_id)
                    if owner != member.member_id:
                        raise AssertionError(f"{topic}:{partition} of {owner} was given to {member.member_id}")
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if not stored:
            self.outbox.change()

    def remove(self, member_id: str, now_ms: int) -> None:
        self._disown(member_id)
        member = self._members.pop(member_id)
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        if not self._members:
            self.empty_since_ms = now_ms
        self.outbox.change()

    def _disown(self, member_id: str) -> None:
        before = self._members.get(member_id)
        if before is not None:
            for epochs in (before.assigned, before.revoking):
                for topic, partitions in epochs.items():
                    for partition in partitions:
                        del self._owners[topic, partition]

    # -- subscriptions and target -------------------------------------------------------------------------------------
    def matched(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member's pattern stands for: those that its client may describe."""
        names, describes = self.patterns.topics_of(member.regex), self._describes
        if describes is None or not names:
            return names
        client = (member.principal, member.client_host)
        key = (member.regex, *client)
        if key not in self._shown:
            self._shown[key] = frozenset(name for name in names if describes(*client, name))
        return self._shown[key]

    def matches_differ(self, before: ConsumerMember, member: ConsumerMember) -> bool:
        """Whether another client of the same member may describe other topics."""
        clients = {(one.principal, one.client_host) for one in (before, member)}
        return self._describes is not None and len(clients) == 2 and self.matched(before) != self.matched(member)

    def forget_matches(self) -> None:
        self._shown.clear()

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Ids of the topics that a member subscribes to and that exist."""
        names = self.matched(member).union(member.topics)
        return frozenset(self.catalogue[name].topic_id for name in names if name in self.catalogue)

    def subscribed_names(self) -> frozenset[str]:
        names: set[str] = set()
        for member in self:
            names.update(member.topics, self.matched(member))
        return frozenset(names)

    def _hash(self) -> str:
        """Names what the target is computed from."""
        subscribed = topics_hash(self.subscribed_names(), self.catalogue)
        if self._describes is None:
            return subscribed
        matched = {(one.regex, one.principal, one.client_host): self.matched(one) for one in self if one.regex}
        return "".join([subscribed, *sorted({topics_hash(names, self.catalogue) for names in matched.values()})])

    def goal(self, member: ConsumerMember) -> Goal:
        def taken(topic: str, partition: int) -> bool:
            return self._owners.get((topic, partition), member.member_id) != member.member_id

        return Goal(self.epoch, self.topics_of(member), taken)

    @property
    def assignor(self) -> str:
        """The one that most members ask for; `uniform` where none does."""
        votes = Counter(member.assignor for member in self if member.assignor)
        return max(sorted(votes), key=votes.__getitem__, default=UNIFORM)

    def begin_epoch(self) -> None:
        """Raise the epoch and compute the target of every member. Stored before anyone sees either (rule G1)."""
        self.epoch += 1
        self.forget_matches()
        self._topics_hash = self._hash()
        self.patterns.keep(member.regex for member in self)
        subscribers = {
            member.member_id: Subscriber(self.topics_of(member), member.instance_id or member.member_id, member.target)
            for member in self
        }
        wanted = frozenset().union(*(subscriber.topics for subscriber in subscribers.values()))
        topics = {topic.topic_id: topic.partitions for topic in self.catalogue.values() if topic.topic_id in wanted}
        for member_id, target in ASSIGNORS[self.assignor](subscribers, topics).items():
            member = self._members[member_id]
            if member.target != target:
                self._members[member_id] = replace(member, target=target)
        self.outbox.change()

    def begin_epoch_if_topics_changed(self) -> None:
        if self._members and self._hash() != self._topics_hash:
            self.begin_epoch()

    @property
    def state(self) -> str:
        if self.dead:
            return DEAD
        if not self._members:
            return EMPTY
        settled = all(m.epoch == STATIC_LEFT_EPOCH or is_reconciled(m, self.epoch) for m in self)
        return STABLE if settled else RECONCILING
