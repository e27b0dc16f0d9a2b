"""Consumer groups under random heartbeats, slow writes, changing topics, time, and coordinators that fail."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from llog.groups import ConsumerGroup, ConsumerSettings, GroupCode, GroupHead, Reply, Step
from llog.groups.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from llog.groups.consumer.subscribe import CatalogueTopic
from llog.groups.records import Partitions, decode_head, encode_record, to_records

EXAMPLES: Final = 2_000 if os.environ.get("LLOG_SOAK") else 60
SETTINGS: Final = ConsumerSettings(session_timeout_ms=6_000)
REBALANCE_MS: Final = 4_000
NAMES: Final = ("t1", "t2", "x1")


@dataclass
class Client:
    """A correct member: it reads what it was given, and says what it gave up."""

    member_id: str
    instance_id: str | None = None
    topics: tuple[str, ...] | None = ("t1", "t2")
    regex: str | None = None
    epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set)
    assigned: set[tuple[str, int]] = field(default_factory=set)
    waits: bool = False
    says_all: bool = False
    """After a request without a good answer, the next one repeats everything, as Kafka's clients do."""
    alive: bool = True
    heard_ms: int = 0
    """When it last was answered. It stops reading when it may have been fenced: after its session, or after the shorter
    time that it has to give partitions up."""

    def partitions(self) -> Partitions:
        by_topic: dict[str, tuple[int, ...]] = {}
        for topic, partition in sorted(self.owned):
            by_topic[topic] = (*by_topic.get(topic, ()), partition)
        return by_topic


@dataclass
class World:
    random: random.Random
    now_ms: int = 1_000
    stored: GroupHead | None = None
    under_way: GroupHead | None = None
    machines: int = 0
    tickets: int = 0
    ids: int = 1
    asked: dict[int, Client] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    catalogue: dict[str, CatalogueTopic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.catalogue = {name: CatalogueTopic(f"{number:02x}", 3) for number, name in enumerate(NAMES)}
        self.clients = [
            Client("a"),
            Client("b", topics=("t1",)),
            Client("c", topics=None, regex="t.*"),
            Client("s", instance_id="s"),
        ]
        self.new_machine()

    def new_machine(self) -> None:
        self.machines += 1
        self.under_way = None
        self.machine = ConsumerGroup(
            "g", f"w{self.machines}", self.catalogue, self.now_ms, head=self.stored, settings=SETTINGS
        )
        self.asked.clear()
        for client in self.clients:
            client.says_all = client.says_all or client.waits
            client.waits = False

    def take(self, step: Step) -> None:
        for reply in step.replies:
            self.answer(reply)
        if step.write is not None:
            assert self.under_way is None
            self.under_way = step.write

    def write(self) -> None:
        if self.under_way is None:
            return
        head = decode_head(encode_record(to_records(self.under_way).head, "g"), "g")
        assert head.generation >= (self.stored.generation if self.stored else 0)
        given = [
            (t, p)
            for member in head.consumer
            for epochs in (member.assigned, member.revoking)
            for t, partitions in epochs.items()
            for p in partitions
        ]
        assert len(given) == len(set(given)), "two owners in one record"
        self.stored, self.under_way = head, None
        self.take(self.machine.written(self.now_ms))

    def conflict(self) -> None:
        waiting = set(self.asked)
        refused = self.machine.abandon()
        assert {reply.ticket for reply in refused} == waiting
        for reply in refused:
            self.answer(reply)
        self.new_machine()

    def answer(self, reply: Reply) -> None:
        assert isinstance(reply.ticket, int)
        client = self.asked.pop(reply.ticket)
        client.waits = False
        answer = reply.answer
        assert isinstance(answer, ConsumerHeartbeatAnswer)
        if answer.code == GroupCode.NONE and answer.member_epoch >= 0:
            if not client.alive:
                return
            client.says_all = False
            client.epoch, client.heard_ms = answer.member_epoch, self.now_ms
            if answer.assignment is not None:
                client.assigned = {(t, p) for t, ids in answer.assignment.items() for p in ids}
                self.own(client, client.assigned - client.owned)
        elif answer.code in (GroupCode.FENCED_MEMBER_EPOCH, GroupCode.UNKNOWN_MEMBER_ID, GroupCode.GROUP_ID_NOT_FOUND):
            client.epoch, client.owned, client.assigned = 0, set(), set()
        else:
            client.says_all = True

    def own(self, client: Client, gained: set[tuple[str, int]]) -> None:
        for other in self.clients:
            reads = other.alive and self.now_ms - other.heard_ms < REBALANCE_MS
            assert other is client or not reads or not other.owned & gained, "two members read one partition"
        client.owned |= gained

    def act(self, client: Client) -> None:
        if client.waits or not client.alive:
            return
        if self.now_ms - client.heard_ms >= REBALANCE_MS:
            client.epoch, client.owned, client.assigned = 0, set(), set()
        client.owned &= client.assigned
        joins = client.epoch == 0
        says_all = joins or client.says_all
        request = ConsumerHeartbeat(
            client.member_id,
            client.epoch,
            client.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
            topics=client.topics if says_all else None,
            regex=client.regex if says_all else None,
            owned={} if joins else client.partitions(),
        )
        self.send(client, request)

    def send(self, client: Client, request: ConsumerHeartbeat) -> None:
        self.tickets += 1
        self.asked[self.tickets] = client
        client.waits = True
        self.take(self.machine.heartbeat(self.tickets, request, "", self.now_ms))

    def replace(self, client: Client) -> None:
        """A process dies, and another one starts in its place."""
        self.ids += 1
        fresh = Client(f"{client.member_id[0]}{self.ids}", client.instance_id, client.topics, client.regex)
        client.alive, client.owned = False, set()
        self.clients[self.clients.index(client)] = fresh

    def change_topics(self) -> None:
        name = self.random.choice(NAMES)
        topic = self.catalogue.get(name)
        self.ids += 1
        if topic is None:
            changed = {**self.catalogue, name: CatalogueTopic(f"{self.ids:04x}", 2)}
        elif self.random.random() < 0.3:
            changed = {other: kept for other, kept in self.catalogue.items() if other != name}
        else:
            changed = {**self.catalogue, name: topic._replace(partitions=topic.partitions + 1)}
        self.catalogue = changed
        self.take(self.machine.topics_changed(changed, self.now_ms))

    def step(self) -> None:
        roll = self.random.random()
        client = self.random.choice(self.clients)
        if roll < 0.60:
            self.act(client)
        elif roll < 0.76:
            self.write()
        elif roll < 0.86:
            self.now_ms += self.random.choice([10, 500, 2_000])
            self.take(self.machine.tick(self.now_ms))
        elif roll < 0.89:
            self.replace(client)
        elif roll < 0.92 and client.epoch > 0 and not client.waits:
            leave = -2 if client.instance_id and self.random.random() < 0.7 else -1
            client.owned = set()
            self.send(client, ConsumerHeartbeat(client.member_id, leave, client.instance_id))
            self.replace(client)
        elif roll < 0.95:
            self.change_topics()
        elif roll < 0.98:
            self.new_machine()
        else:
            self.conflict()

    def settle(self) -> None:
        for _ in range(200):
            for client in self.clients:
                self.act(client)
                self.write()
            self.now_ms += 300
            self.take(self.machine.tick(self.now_ms))
            self.write()
            members = {member.member_id for member in self.machine.describe().members}
            if self.machine.state == "Stable" and members == {client.member_id for client in self.clients}:
                break
        else:
            raise AssertionError(f"not stable: {self.machine.describe()}")
        for client in self.clients:
            self.act(client)
        owned = sorted(one for client in self.clients for one in client.owned)
        expected = sorted(
            (topic.topic_id, partition)
            for name, topic in self.catalogue.items()
            if name in ("t1", "t2")
            for partition in range(topic.partitions)
        )
        assert owned == expected
        assert {client.epoch for client in self.clients} == {self.machine.generation}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
def test_random_lives_of_a_group_keep_the_rules(seed: int) -> None:  # G1, G4, G6, G8
    world = World(random.Random(seed))
    for _ in range(150):
        world.step()
    world.settle()


@settings(max_examples=max(EXAMPLES // 6, 1), deadline=None)
@given(st.integers(0, 2**63))
def test_members_that_send_heartbeats_are_never_fenced(seed: int) -> None:  # G4, G7
    world = World(random.Random(seed))
    world.settle()
    epoch = world.machine.generation
    for _ in range(50):
        for client in world.clients:
            world.act(client)
        if world.random.random() < 0.3:
            world.new_machine()
        world.now_ms += world.random.choice([100, 5_999])
        world.take(world.machine.tick(world.now_ms))
    assert world.machine.generation == epoch
    assert world.machine.state == "Stable"
