"""Consumer groups under simulation: coordinators that crash, sleep and lose their claims, and members that go on.

    python -m llog.testing.sim --scenario 'group-*' --schedules 1000

Two nodes run the coordinator service on one store, with one slot. Members are processes that talk to the nodes over a
network that loses and delays messages. They follow Kafka's rules for clients: a member reads its partitions from the
answer that gave them to it until it is asked to give them up, leaves, is refused, or has had no answered heartbeat for
its session timeout.

What must hold: no partition has two readers at once; a position that was acknowledged is never lost and never moves
back; no request is answered twice; and when members do nothing but read, coordinators come and go without a new
generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, Final, NamedTuple

from llog.broker.cluster import ClusterView, Node
from llog.broker.groups.coordinator import CoordinatorSettings, GroupCoordinator
from llog.broker.groups.positions import CommittedPosition, GroupPositions, Position
from llog.errors import LlogError, StoreError
from llog.groups.classic.messages import (
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncRequest,
)
from llog.groups.classic.settings import ClassicSettings
from llog.groups.codes import GroupCode
from llog.groups.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer, ConsumerSettings
from llog.groups.records import MemberProtocol, Partitions, decode_head
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.known_topics import KnownTopics
from llog.testing.sim import ActorContext, SimFault, SimFaults, World, on_both_stores
from llog.testing.sim.actor import log_context

GROUP: Final = "g"
TOPIC: Final = "t"
PARTITIONS: Final = 2
MEMBERS: Final = 3
SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 10_000
STEADY_SESSION_MS: Final = 30_000
"""Of members that must outlive their coordinators: longer than two take-overs."""
BEAT_MS: Final = 1_500
SETTLED_MS: Final = 12_000
"""By then all members of a quiet group read."""
MESSAGE_LOSS: Final = 12
"""One message in so many is lost between members that are not steady and their coordinators."""
PATIENCE_MS: Final = 3_000
"""How long a member waits for an answer that does not depend on other members."""
RUN_MS: Final = 30_000
SETTINGS: Final = CoordinatorSettings(
    ClassicSettings(initial_rebalance_delay_ms=100),
    ConsumerSettings(heartbeat_interval_ms=BEAT_MS, session_timeout_ms=SESSION_MS),
    slots=1,
)
FEW_FAULTS: Final = SimFaults(
    frozenset(SimFault) - {SimFault.SESSION_EXPIRY},
    budget=2,
    rate=0.03,
    stall_ms=(50, 4_000, 9_000),
    delay_ms=(200, 3_000),
)
FAULTS: Final = SimFaults(
    frozenset(SimFault) - {SimFault.SESSION_EXPIRY},
    budget=6,
    rate=0.03,
    stall_ms=(50, 4_000, 9_000, 20_000),
    delay_ms=(200, 3_000, 12_000),
)
"""A session ends by a stall or a crash; a store that forgets the sessions of running processes has a scenario of its
own."""
FORGETFUL: Final = SimFaults(frozenset({SimFault.SESSION_EXPIRY, SimFault.LATE_WRITE}), budget=4, rate=0.01)

Function = Callable[[GroupCoordinator], Awaitable[Any]]


# -- what members record -----------------------------------------------------------------------------------------------


class Reads(NamedTuple):
    """A member reads these partitions from now on, in this generation or epoch."""

    generation: int
    partitions: tuple[int, ...]
    until_ms: int
    """And no longer than this, if it hears nothing more."""


class Stays(NamedTuple):
    """An answered heartbeat: it may go on reading until then."""

    until_ms: int


class Acknowledged(NamedTuple):
    partition: int
    offset: int


class Fetched(NamedTuple):
    partition: int
    offset: int
    asked_ms: int


class AnsweredTwice(NamedTuple):
    what: str


# -- the network -------------------------------------------------------------------------------------------------------


class Network:
    """From a member to a node and back. Both run in their own processes: a message reaches one that sleeps when it
    wakes, and one that is gone never."""

    def __init__(self, loss: int) -> None:
        self.loss = loss
        """One message in so many is lost; 0: none."""
        self.nodes: dict[int, tuple[Context, GroupCoordinator]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        """Requests that arrived, held here so that none vanishes before it is answered."""

    async def ask(self, ctx: ActorContext, node_id: int, what: str, do: Function, patience_ms: int) -> Any:
        """The answer; None if none came in time."""
        loop = asyncio.get_running_loop()
        known = self.nodes.get(node_id)
        answer: asyncio.Future[Any] = loop.create_future()
        own = copy_context()
        lost_there, lost_back = self._lost(ctx), self._lost(ctx)
        answers = 0

        def came(result: Any) -> None:
            nonlocal answers
            answers += 1
            if answers > 1:
                ctx.record(AnsweredTwice(what))
            if not answer.done() and not lost_back:
                answer.set_result(result)

        def arrive() -> None:
            assert known is not None
            task = loop.create_task(self._serve(known[1], do, lambda result: loop.call_soon(came, result, context=own)))
            self._serving[id(task)] = task

        if known is not None and not lost_there:
            loop.call_soon(arrive, context=known[0])
        try:
            return await asyncio.wait_for(answer, patience_ms / 1_000)
        except TimeoutError:
            return None

    async def _serve(self, coordinator: GroupCoordinator, do: Function, reply: Callable[[Any], object]) -> None:
        try:
            result = await do(coordinator)
        except LlogError as error:
            result = error
        reply(result)

    def _lost(self, ctx: ActorContext) -> bool:
        return bool(self.loss) and ctx.random.randrange(self.loss) == 0


# -- nodes -------------------------------------------------------------------------------------------------------------


def node(
    network: Network, node_id: int, node_ids: Iterable[int], settings: CoordinatorSettings
) -> Callable[[ActorContext], Awaitable[None]]:
    async def run(ctx: ActorContext) -> None:
        context = log_context(ctx)
        view = ClusterView("c", Node(node_id, "h", node_id))
        view.set_others(Node(other, "h", other) for other in node_ids if other != node_id)
        coordinator = GroupCoordinator(
            context,
            view,
            KnownTopics(context, ctx.now_ms),
            broker_id=ctx.name,
            now_ms=ctx.now_ms,
            settings=settings,
        )
        network.nodes[node_id] = (copy_context(), coordinator)
        coordinator.start()
        await asyncio.Event().wait()

    return run


# -- members -----------------------------------------------------------------------------------------------------------


class Member:
    """One client: finds its coordinator, and knows what it reads."""

    def __init__(self, ctx: ActorContext, network: Network, now_ms: Callable[[], int], *, steady: bool) -> None:
        self.ctx, self._network, self._now_ms, self._steady = ctx, network, now_ms, steady
        self._node = 1 + ctx.random.randrange(2)
        self.member_id, self.generation = "", -1
        self.positions: dict[int, int] = {}
        self.heard_ms = 0
        self.session_ms = STEADY_SESSION_MS if steady else SESSION_MS

    async def ask(self, what: str, do: Function, patience_ms: int = PATIENCE_MS) -> Any:
        """The answer of the coordinator, wherever it is; None: none came, and it may have happened."""
        answer = await self._network.ask(self.ctx, self._node, what, do, patience_ms)
        code = getattr(answer, "code", answer)
        if answer is None or code in (GroupCode.NOT_COORDINATOR, GroupCode.COORDINATOR_NOT_AVAILABLE):
            self._node = 3 - self._node
            return None
        return None if isinstance(answer, StoreError) else answer

    def now_ms(self) -> int:
        return self._now_ms()

    def may_read(self) -> bool:
        return self.now_ms() < self.heard_ms + self.session_ms

    def gives_up(self) -> None:
        """It reads nothing any more."""
        if self.positions:
            self.ctx.record(Reads(self.generation, (), 0))
        self.positions = {}

    def reads(self, partitions: Iterable[int]) -> None:
        """From now on exactly these; what is new has no position yet."""
        partitions = tuple(sorted(partitions))
        if partitions != tuple(sorted(self.positions)):
            self.ctx.record(Reads(self.generation, partitions, self.heard_ms + self.session_ms))
        self.positions = {partition: self.positions.get(partition, -1) for partition in partitions}

    def stays(self, asked_ms: int) -> None:
        self.heard_ms = asked_ms
        if self.positions:
            self.ctx.record(Stays(asked_ms + self.session_ms))

    async def work(self) -> None:
        """Fetch the positions of new partitions, read one record of each, and commit."""
        new = [partition for partition, offset in self.positions.items() if offset < 0]
        if new:
            asked_ms = self.now_ms()
            found: Mapping[Log, CommittedPosition | None] | None = await self.ask(
                "fetch", lambda c: c.fetch(GROUP, [Log(TOPIC, partition) for partition in new])
            )
            if not isinstance(found, dict) or not self.may_read():
                return
            for partition in new:
                if partition in self.positions:
                    committed = found[Log(TOPIC, partition)]
                    offset = 0 if committed is None else committed.position.offset
                    self.ctx.record(Fetched(partition, offset, asked_ms))
                    self.positions[partition] = offset
        places = {partition: offset + 1 for partition, offset in self.positions.items() if offset >= 0}
        if not places or not self.may_read():
            return
        self.positions |= places
        member_id, generation = self.member_id, self.generation
        answer = await self.ask(
            "commit",
            lambda c: c.commit(
                GROUP,
                {(TOPIC, partition): Position(offset) for partition, offset in places.items()},
                member_id=member_id,
                instance_id=None,
                generation=generation,
                version=9,
            ),
        )
        if isinstance(answer, dict):
            for (_, partition), outcome in answer.items():
                if outcome == GroupCode.NONE:
                    self.ctx.record(Acknowledged(partition, places[partition]))

    def idles(self) -> int:
        """Milliseconds until the next heartbeat; now and then an unsteady member is away for longer."""
        if not self._steady and self.ctx.random.randrange(12) == 0:
            return self.ctx.random.choice((4_000, 9_000))
        return BEAT_MS


def classic_member(network: Network, world: World, *, steady: bool) -> Callable[[ActorContext], Awaitable[None]]:
    async def run(ctx: ActorContext) -> None:
        member = Member(ctx, network, world.now_ms, steady=steady)
        end_ms = member.now_ms() + RUN_MS
        while member.now_ms() < end_ms:
            if await _join(member):
                await _stay(member, end_ms)
            member.gives_up()
            await ctx.sleep_ms(100 + ctx.random.randrange(300))
        if not steady and ctx.random.randrange(2):
            gone = [LeavingMember(member.member_id, None)]
            await member.ask("leave", lambda c: c.leave(GROUP, gone))

    return run


async def _join(member: Member) -> bool:
    """Join and sync; whether it has a generation."""
    request = JoinRequest(
        "consumer",
        (MemberProtocol(name="range", metadata=b""),),
        member.session_ms,
        REBALANCE_MS,
        member.member_id,
        client_id=member.ctx.name,
    )
    asked_ms = member.now_ms()
    new_id = f"{member.ctx.name}-{member.ctx.random.getrandbits(32):08x}"
    joined: JoinAnswer | None = await member.ask(
        "join", lambda c: c.join(GROUP, request, new_id), REBALANCE_MS + SESSION_MS
    )
    if joined is None:
        return False
    if joined.code == GroupCode.MEMBER_ID_REQUIRED:
        member.member_id = joined.member_id
        return await _join(member)
    if joined.code != GroupCode.NONE:
        member.member_id = ""
        return False
    member.member_id, member.generation = joined.member_id, joined.generation
    ids = [one.member_id for one in joined.members]
    shares = [(one, bytes(p for p in range(PARTITIONS) if p % len(ids) == i)) for i, one in enumerate(ids)]
    asked_ms = member.now_ms()
    sync = SyncRequest(member.member_id, member.generation, assignments=tuple(shares))
    synced = await member.ask("sync", lambda c: c.sync(GROUP, sync), REBALANCE_MS)
    if synced is None or synced.code != GroupCode.NONE:
        return False
    member.heard_ms = asked_ms
    if member.may_read():
        member.reads(synced.assignment)
    return True


async def _stay(member: Member, end_ms: int) -> None:
    """Read until something says otherwise."""
    while member.now_ms() < end_ms and member.may_read():
        await member.work()
        await member.ctx.sleep_ms(member.idles())
        if not member.may_read():
            return
        asked_ms = member.now_ms()
        beat = HeartbeatRequest(member.member_id, member.generation)
        answer = await member.ask("heartbeat", lambda c, beat=beat: c.heartbeat(GROUP, beat))  # type: ignore[misc]
        if answer is None:
            continue
        if answer.code != GroupCode.NONE:
            if answer.code == GroupCode.UNKNOWN_MEMBER_ID:
                member.member_id = ""
            return
        if member.may_read():
            member.stays(asked_ms)


def consumer_member(network: Network, world: World, *, steady: bool) -> Callable[[ActorContext], Awaitable[None]]:
    async def run(ctx: ActorContext) -> None:
        member = Member(ctx, network, world.now_ms, steady=steady)
        member.member_id = f"{ctx.name}-{ctx.random.getrandbits(32):08x}"
        member.generation = 0
        end_ms = member.now_ms() + RUN_MS
        topic_id = ""
        while member.now_ms() < end_ms:
            topic_id = await _beat(member, topic_id)
            await member.work()
            await ctx.sleep_ms(member.idles())
            if not member.may_read():
                member.gives_up()

    return run


async def _beat(member: Member, topic_id: str) -> str:
    joins = member.generation == 0
    owned: Partitions = {topic_id: tuple(sorted(member.positions))} if topic_id and member.positions else {}
    request = ConsumerHeartbeat(
        member.member_id,
        member.generation,
        rebalance_timeout_ms=REBALANCE_MS if joins else -1,
        topics=(TOPIC,) if joins else None,
        owned={} if joins else owned,
        client_id=member.ctx.name,
    )
    asked_ms = member.now_ms()
    answer: ConsumerHeartbeatAnswer | None = await member.ask(
        "heartbeat", lambda c: c.consumer_heartbeat(GROUP, request, "")
    )
    if answer is None:
        return topic_id
    if answer.code != GroupCode.NONE:
        member.gives_up()
        member.generation = 0
        return topic_id
    if not joins and member.positions and not member.may_read():
        member.gives_up()
    member.generation = answer.member_epoch
    member.heard_ms = asked_ms
    if answer.assignment is not None:
        partitions = [p for numbers in answer.assignment.values() for p in numbers]
        topic_id = next(iter(answer.assignment), topic_id)
        member.reads(partitions)
    member.stays(asked_ms)
    return topic_id


# -- judging -----------------------------------------------------------------------------------------------------------


def check_readers(world: World) -> None:
    """No partition has two readers at once."""
    reading: dict[str, tuple[tuple[int, ...], int]] = {}
    for event in world.history:
        if isinstance(event.event, Stays) and event.actor in reading:
            reading[event.actor] = (reading[event.actor][0], event.event.until_ms)
        elif isinstance(event.event, Reads):
            reading[event.actor] = (event.event.partitions, event.event.until_ms)
            for other, (partitions, until_ms) in reading.items():
                both = set(partitions) & set(event.event.partitions)
                assert other == event.actor or not both or until_ms <= event.time_ms, (
                    f"{event.actor} and {other} both read partitions {sorted(both)} in generation "
                    f"{event.event.generation}"
                )


def check_positions(world: World, last: Mapping[int, int]) -> None:
    """A position that was acknowledged is seen by every later fetch, and at the end."""
    acknowledged: list[tuple[int, Acknowledged]] = []
    for event in world.history:
        if isinstance(event.event, Acknowledged):
            acknowledged.append((event.time_ms, event.event))
        elif isinstance(event.event, Fetched):
            fetched = event.event
            floor = max(
                (a.offset for at, a in acknowledged if a.partition == fetched.partition and at <= fetched.asked_ms),
                default=0,
            )
            assert fetched.offset >= floor, (
                f"{event.actor} was given {fetched.offset} of partition {fetched.partition}; "
                f"{floor} was acknowledged before"
            )
    for partition, offset in last.items():
        floor = max((a.offset for _, a in acknowledged if a.partition == partition), default=0)
        assert offset >= floor, f"partition {partition} ends at {offset}; {floor} was acknowledged"


def check_answers(world: World) -> None:
    twice = [event.event for event in world.history if isinstance(event.event, AnsweredTwice)]
    assert not twice, f"answered twice: {twice}"


# -- scenarios ---------------------------------------------------------------------------------------------------------

MemberOf = Callable[..., Callable[[ActorContext], Awaitable[None]]]


@contextmanager
def failures() -> Iterator[list[str]]:
    """What coordinators log as errors meanwhile: faults of ours that they survive."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    logger, collector = logging.getLogger("llog.broker.groups"), Collector(logging.ERROR)
    before = logger.propagate
    logger.propagate = False
    logger.addHandler(collector)
    try:
        yield found
    finally:
        logger.removeHandler(collector)
        logger.propagate = before


def play(world: World, member: MemberOf, *, settings: CoordinatorSettings = SETTINGS, steady: bool = False) -> None:
    network = Network(0 if steady else MESSAGE_LOSS)
    faults = world.scheduler.faults_left
    world.scheduler.faults_left = 0
    generations: list[int] = []

    async def fate(ctx: ActorContext) -> None:
        """Faults begin when all members read."""
        if steady:
            await ctx.sleep_ms(SETTLED_MS)
            generations.append(generation_of(world))
        world.scheduler.faults_left = faults

    world.actor("fate", fate, faultless=True)
    world.alone("operator", _make_topic)
    with failures() as failed:
        for number in (1, 2):
            runs = node(network, number, (1, 2), settings)
            world.actor(f"node-{number}", runs, daemon=True, restarts=3, restart_after_ms=2_000)
        for number in range(MEMBERS):
            world.actor(f"member-{number}", member(network, world, steady=steady), faultless=True)
        world.run()
    assert not failed, failed[0]
    check_answers(world)
    check_readers(world)
    world.calm()
    check_positions(world, world.alone("reader", _positions))
    if steady:
        [settled] = generations
        assert generation_of(world) == settled, (
            f"generation {settled} became {generation_of(world)}, although only coordinators failed"
        )


async def _make_topic(ctx: ActorContext) -> None:
    await create_topic(log_context(ctx), TOPIC, partitions=PARTITIONS)


async def _positions(ctx: ActorContext) -> dict[int, int]:
    logs = [Log(TOPIC, partition) for partition in range(PARTITIONS)]
    found = await GroupPositions(log_context(ctx)).fetch(GROUP, logs)
    return {log.partition: committed.position.offset for log, committed in found.items() if committed is not None}


def generation_of(world: World) -> int:
    [head] = [record for path, record in world.records().items() if path.endswith(f"/groups/{GROUP}")]
    return decode_head(head.value, "g").generation


@on_both_stores("group-classic", faults=FAULTS)
def classic(world: World) -> None:
    play(world, classic_member)


@on_both_stores("group-consumer", faults=FAULTS)
def consumer(world: World) -> None:
    play(world, consumer_member)


@on_both_stores("group-classic-steady", faults=FEW_FAULTS)
def classic_steady(world: World) -> None:
    play(world, classic_member, steady=True)


@on_both_stores("group-consumer-steady", faults=FEW_FAULTS)
def consumer_steady(world: World) -> None:
    long = SETTINGS.consumer._replace(session_timeout_ms=STEADY_SESSION_MS)
    play(world, consumer_member, settings=SETTINGS._replace(consumer=long), steady=True)


@on_both_stores("group-forgetful", faults=FORGETFUL)
def forgetful(world: World) -> None:
    """The store forgets the sessions of running coordinators again and again."""
    play(world, classic_member)
