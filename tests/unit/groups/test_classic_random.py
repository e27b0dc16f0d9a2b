"""Classic groups under random requests, slow writes, time and coordinators that fail."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from llog.groups import ClassicGroup, GroupCode, GroupHead, Reply, Step
from llog.groups.classic.messages import (
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from llog.groups.classic.settings import ClassicSettings
from llog.groups.records import MemberProtocol, decode_head, encode_record, to_records

PARTITIONS: Final = 7
SETTINGS: Final = ClassicSettings(initial_rebalance_delay_ms=50, members_max=5)
EXAMPLES: Final = 2_000 if os.environ.get("LLOG_SOAK") else 60


@dataclass
class Client:
    """A correct member: it joins, syncs and sends heartbeats, and believes what it is answered."""

    name: str
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owns: tuple[int, ...] | None = None
    waits: int | None = None
    """The ticket of its one request."""
    joins: bool = True
    alive: bool = True
    round: int = 0
    leads: tuple[str, ...] = ()
    beat_at_ms: int = 0


@dataclass
class World:
    random: random.Random
    now_ms: int = 1_000
    stored: GroupHead | None = None
    under_way: GroupHead | None = None
    machines: int = 0
    tickets: int = 0
    asked: dict[int, tuple[Client, str]] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    generation_seen: int = 0

    def __post_init__(self) -> None:
        self.new_machine()

    # -- the coordinator ----------------------------------------------------------------------------------------------
    def new_machine(self) -> None:
        """The old coordinator is gone with all that it did not store; its requests are never answered."""
        self.machines += 1
        self.under_way = None
        self.machine = ClassicGroup("g", f"w{self.machines}", self.now_ms, head=self.stored, settings=SETTINGS)
        self.lose_requests()

    def lose_requests(self) -> None:
        self.asked.clear()
        for client in self.clients:
            client.waits = None

    def conflict(self) -> None:
        """The machine is thrown away in an orderly way: everyone who waits is refused."""
        waiting = set(self.asked)
        refused = self.machine.abandon()
        assert {reply.ticket for reply in refused} == waiting
        for reply in refused:
            self.answer(reply)
        self.new_machine()

    def take(self, step: Step) -> None:
        for reply in step.replies:
            self.answer(reply)
        if step.write is not None:
            assert self.under_way is None
            self.under_way = step.write

    def write(self) -> None:
        if self.under_way is None:
            return
        before, head = self.stored, decode_head(encode_record(to_records(self.under_way).head, "g"), "g")
        assert head.generation >= (before.generation if before else 0)
        assert head.edition == (before.edition if before else 0) + 1
        assert not head.leader or head.leader in {member.member_id for member in head.classic}
        self.stored, self.under_way = head, None
        self.take(self.machine.written(self.now_ms))

    def tick(self) -> None:
        self.take(self.machine.tick(self.now_ms))

    # -- answers ------------------------------------------------------------------------------------------------------
    def answer(self, reply: Reply) -> None:
        assert isinstance(reply.ticket, int)
        client, _ = self.asked.pop(reply.ticket)  # a second answer finds nothing and fails
        client.waits = None
        answer = reply.answer
        if isinstance(answer, JoinAnswer):
            self.joined(client, answer)
        elif isinstance(answer, SyncAnswer):
            self.synced(client, answer)
        elif isinstance(answer, HeartbeatAnswer):
            self.beaten(client, answer)

    def joined(self, client: Client, answer: JoinAnswer) -> None:
        if answer.code == GroupCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.code == GroupCode.NONE:
            assert self.stored is not None
            assert self.stored.generation >= answer.generation, "revealed before it was stored"
            assert answer.generation >= self.generation_seen or answer.generation >= client.generation
            self.generation_seen = max(self.generation_seen, answer.generation)
            client.member_id, client.generation, client.joins = answer.member_id, answer.generation, False
            client.owns = None
            client.leads = tuple(member.member_id for member in answer.members)
            if answer.leader == answer.member_id:
                assert answer.member_id in client.leads
            if answer.skip_assignment:
                client.leads = ()
        else:
            self.start_again(client, answer.code)

    def synced(self, client: Client, answer: SyncAnswer) -> None:
        if answer.code != GroupCode.NONE:
            self.start_again(client, answer.code)
            return
        client.owns = tuple(answer.assignment)
        for partition in client.owns:
            owner = self.owners.setdefault((client.generation, partition), client.instance_id or client.member_id)
            assert owner == (client.instance_id or client.member_id), "two owners in one generation"

    def beaten(self, client: Client, answer: HeartbeatAnswer) -> None:
        if answer.code == GroupCode.NONE:
            client.beat_at_ms = self.now_ms
        else:
            self.start_again(client, answer.code)

    def start_again(self, client: Client, code: GroupCode) -> None:
        client.joins = True
        if code in (GroupCode.UNKNOWN_MEMBER_ID, GroupCode.ILLEGAL_GENERATION):
            client.member_id = "" if code == GroupCode.UNKNOWN_MEMBER_ID else client.member_id
        if code == GroupCode.FENCED_INSTANCE_ID:
            client.alive = False

    # -- clients ------------------------------------------------------------------------------------------------------
    def ask(self, client: Client, kind: str) -> int:
        self.tickets += 1
        self.asked[self.tickets] = (client, kind)
        client.waits = self.tickets
        return self.tickets

    def act(self, client: Client) -> None:
        """The next request of a client that does not wait for an answer."""
        if not client.alive or client.waits is not None:
            return
        if client.joins:
            ticket = self.ask(client, "join")
            request = JoinRequest(
                "consumer",
                (MemberProtocol(name="range", metadata=b"%d" % client.round),),
                6_000,
                4_000,
                client.member_id,
                client.instance_id,
                client.name,
            )
            self.take(self.machine.join(ticket, request, f"{client.instance_id or client.name}-{ticket}", self.now_ms))
        elif client.owns is None:
            ticket = self.ask(client, "sync")
            shares = {m: bytes(range(i, PARTITIONS, len(client.leads))) for i, m in enumerate(client.leads)}
            request_ = SyncRequest(
                client.member_id, client.generation, client.instance_id, assignments=tuple(shares.items())
            )
            self.take(self.machine.sync(ticket, request_, self.now_ms))
        else:
            ticket = self.ask(client, "beat")
            beat = HeartbeatRequest(client.member_id, client.generation, client.instance_id)
            self.take(self.machine.heartbeat(ticket, beat, self.now_ms))

    def step(self) -> None:
        roll = self.random.random()
        client = self.random.choice(self.clients)
        if roll < 0.55:
            self.act(client)
        elif roll < 0.72:
            self.write()
        elif roll < 0.84:
            self.now_ms += self.random.choice([10, 100, 1_000, 3_000])
            self.tick()
        elif roll < 0.87:
            client.alive = False
            if client.waits is not None:  # it hangs up: whatever it asked is answered to nobody
                ticket, client.waits = client.waits, None
                self.asked[ticket] = (Client("gone", alive=False), "gone")
            fresh = Client(f"c{self.tickets}", client.instance_id)
            self.clients = [fresh if c is client else c for c in self.clients]
        elif roll < 0.90 and client.member_id and client.waits is None:
            ticket = self.ask(client, "leave")
            leaving = [LeavingMember(client.member_id, client.instance_id)]
            self.take(self.machine.leave(ticket, leaving, self.now_ms))
            client.member_id, client.generation, client.owns, client.joins = "", -1, None, True
        elif roll < 0.93:
            client.round += 1
            client.joins = True
        elif roll < 0.96:
            self.new_machine()
        elif roll < 0.98:
            self.conflict()

    def settle(self) -> None:
        """No failures any more: the group becomes stable, and its members have every partition once."""
        for _ in range(400):
            for client in self.clients:
                self.act(client)
            self.write()
            self.now_ms += 200
            self.tick()
            self.write()
            members = {client.member_id for client in self.clients}
            described = self.machine.describe()
            if (
                described.state == "Stable"
                and {member.member_id for member in described.members} == members
                and all(client.owns is not None and not client.joins for client in self.clients)
            ):
                break
        else:
            raise AssertionError(f"not stable: {self.machine.describe()}, {self.clients}")
        assert sorted(p for client in self.clients for p in client.owns or ()) == list(range(PARTITIONS))
        assert {client.generation for client in self.clients} == {self.machine.generation}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**63))
def test_random_lives_of_a_group_keep_the_rules(seed: int) -> None:
    world = World(random.Random(seed))
    world.clients = [Client("a"), Client("b"), Client("s", instance_id="s"), Client("d")]
    for _ in range(120):
        world.step()
    world.settle()


@settings(max_examples=max(EXAMPLES // 6, 1), deadline=None)
@given(st.integers(0, 2**63))
def test_members_that_answer_and_send_heartbeats_are_never_fenced(seed: int) -> None:  # G4, G7
    """Coordinators fail and writes are slow; nobody else joins or leaves, so one generation lasts."""
    world = World(random.Random(seed))
    world.clients = [Client("a"), Client("b"), Client("s", instance_id="s")]
    world.settle()
    generation, ids = world.machine.generation, [client.member_id for client in world.clients]
    for _ in range(60):
        for client in world.clients:
            world.act(client)
        if world.random.random() < 0.3:
            world.new_machine()
        world.now_ms += world.random.choice([100, 1_000, 5_999])
        world.tick()
    assert [client.member_id for client in world.clients] == ids
    assert world.machine.generation == generation
    assert world.machine.state == "Stable"
