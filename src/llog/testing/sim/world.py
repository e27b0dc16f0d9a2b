"""One simulated run: stores, actors, time and results.

    world = World(SeededChooser(7), faults=MANY, seed=7)
    world.actor("writer-1", write_a_lot)
    world.actor("writer-2", write_a_lot)
    world.run()                      # until both have ended or crashed
    world.calm()                     # no faults from here on
    world.alone("repair", settle_everything)
    check(world.history, world.records(), world.objects())

A run is a function of the scenario's code, the world's arguments and the chooser's choices.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from llog.errors import InvalidArgument
from llog.limits import SIM_STEPS_MAX
from llog.stores.metadata.port import Record
from llog.stores.objects.port import ObjectStore
from llog.testing.sim.actor import Actor, ActorContext, ActorFunction, ActorOptions, Event
from llog.testing.sim.calls import digest
from llog.testing.sim.chooser import Chooser, ScriptChooser
from llog.testing.sim.faults import NO_FAULTS, SimFault, SimFaults
from llog.testing.sim.loop import SimLoop
from llog.testing.sim.metadata_server import MetadataServer, Versions
from llog.testing.sim.metadata_store import SimMetadataStore
from llog.testing.sim.object_store import ObjectServer, SimObjectStore
from llog.testing.sim.scheduler import Scheduler, SimPace
from llog.testing.sim.trace import Trace

START_MS = 1_700_000_000_000


class World:
    def __init__(
        self,
        chooser: Chooser | None = None,
        *,
        faults: SimFaults = NO_FAULTS,
        seed: int = 0,
        shards: int = 1,
        atomic_groups: bool = True,
        versions: Versions = Versions.OF_SHARD,
        objects_at_once: bool = False,
        call_cost_ms: float = 0,
        tick_ms: int = 1,
        patience_ms: float = 1_000,
        steps_max: int = SIM_STEPS_MAX,
    ) -> None:
        """`call_cost_ms`, `tick_ms`, `patience_ms`: see `SimPace`. `objects_at_once`: see `Scheduler`."""
        self.seed = seed
        # Its refusals are added by name, which a type checker does not see.
        self.loop = SimLoop(steps_max=steps_max, tick_ms=tick_ms)  # type: ignore[abstract]
        self.trace = Trace(self.loop)
        self.chooser = ScriptChooser() if chooser is None else chooser
        self.chooser.fault_rate = faults.rate
        self.scheduler = Scheduler(
            self.loop, self.chooser, faults, self.trace, SimPace(call_cost_ms, tick_ms, patience_ms)
        )
        self.scheduler.objects_at_once = objects_at_once
        self.metadata = MetadataServer(
            shards=shards, atomic_groups=atomic_groups, clock_ms=self.now_ms, versions=versions
        )
        self.history: list[Event] = []
        self.phase = 0
        self._history_digest = 0
        self._objects: dict[str, ObjectServer] = {}
        self._clients: dict[tuple[int, str], SimObjectStore] = {}
        self._names: set[str] = set()
        self._random = random.Random(seed) if faults.skew_ms_max else None
        self.scheduler.on_still.append(self._stop_heartbeats)
        self.scheduler.on_wake.append(self._resume_heartbeats)
        self.scheduler.on_crash.append(self._plan_restart)
        self.scheduler.expire_sessions = self._expire_sessions

    # -- actors -------------------------------------------------------------------------------------------------------
    def actor(self, name: str, run: ActorFunction, options: ActorOptions | None = None, **changes: Any) -> Actor:
        """Start a process. Options by name: skew_ms, daemon, faultless, may_fail, restarts, restart_after_ms."""
        options = (options or ActorOptions())._replace(**changes)
        if name in self._names:
            raise InvalidArgument("name", f"there is an actor {name!r} already")
        self._names.add(name)
        skew_ms, skew_ms_max = options.skew_ms, self.scheduler.faults.skew_ms_max
        if skew_ms is None:
            skew_ms = 0 if self._random is None else self._random.randint(-skew_ms_max, skew_ms_max)
        actor = Actor(name, len(self.scheduler.actors), options, skew_ms)
        self.scheduler.actors.append(actor)
        self.scheduler.unfinished += not options.daemon
        actor.function = run
        context = ActorContext(self, actor, SimMetadataStore(actor, self.metadata, self.scheduler.submit))
        self.loop.create_task(self._live(actor, run, context), name=name, context=actor.context)
        return actor

    async def _live(self, actor: Actor, run: ActorFunction, context: ActorContext) -> None:
        try:
            actor.result = await run(context)
        except (Exception, asyncio.CancelledError) as error:
            actor.error = error
        self.scheduler.end(actor)

    def _plan_restart(self, crashed: Actor) -> None:
        if crashed.options.restarts > 0:
            # The run waits for the one to come as it would have for the one that is gone.
            self.scheduler.unfinished += not crashed.options.daemon
            self.loop.engine_call_later(crashed.name, crashed.options.restart_after_ms, self._restart, crashed)

    def _restart(self, crashed: Actor) -> None:
        self.scheduler.unfinished -= not crashed.options.daemon
        base, _, count = crashed.name.partition(".")
        name = f"{base}.{int(count or 1) + 1}"
        self.trace.note(f"{name} takes the place of {crashed.name}")
        self.actor(name, crashed.function, crashed.options._replace(restarts=crashed.options.restarts - 1))

    def object_store_for(self, actor: Actor, name: str) -> ObjectStore:
        client = self._clients.get((actor.number, name))
        if client is None:
            client = SimObjectStore(actor, self.bucket(name), self.scheduler.submit)
            self._clients[actor.number, name] = client
        return client

    # -- running ------------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Until every actor that is no daemon has ended or crashed."""
        self.phase += 1
        self.scheduler.run(lambda: self.scheduler.unfinished == 0)

    def calm(self, *, orderly: bool = True) -> None:
        """From here on nothing goes wrong. Late writes land now or never; with `orderly`, calls are performed first
        come, first served, so that recovery adds no choices to those that led to it."""
        self.trace.note("calm: from here on nothing goes wrong")
        self.scheduler.faults_left = 0
        self.scheduler.settle_late(lambda call: self.chooser.whether())
        self.scheduler.orderly = orderly

    def alone(self, name: str, run: ActorFunction, **options: Any) -> Any:
        """Run an actor to its end while all others are held and nothing goes wrong; what it returned."""
        actor = self.actor(name, run, faultless=True, **options)
        self.run_alone(actor)
        return actor.result

    def run_alone(self, actor: Actor) -> None:
        self.phase += 1
        scheduler, before = self.scheduler, self.scheduler.focus
        scheduler.focus = actor
        try:
            scheduler.run(lambda: actor.ended)
        finally:
            scheduler.focus = before

    def now_ms(self) -> int:
        """True time, which is also the clock of the stores."""
        return START_MS + self.loop.clock_ms()

    # -- what came of it ----------------------------------------------------------------------------------------------
    def record(self, actor: Actor, event: Any) -> None:
        if actor.dead:
            return
        self.history.append(Event(self.now_ms(), actor.name, event))
        if self.scheduler.tracking:
            self._history_digest = hash((self._history_digest, actor.number, digest(event)))
            actor.recorded = hash((actor.recorded, digest(event)))

    def records(self, prefix: str = "") -> dict[str, Record]:
        """The metadata as it is, by path."""
        return {record.key.path: record for record in self.metadata.tree(prefix)}

    def bucket(self, name: str = "objects") -> ObjectServer:
        server = self._objects.get(name)
        if server is None:
            server = self._objects[name] = ObjectServer(name, self.now_ms)
        return server

    def objects(self, name: str = "objects") -> Mapping[str, bytes]:
        """The objects as they are, by name."""
        return self.bucket(name).contents()

    def state(self, *, history: bool = True) -> int:
        """A hash of all that the rest of the run depends on, apart from the choices still to come."""
        scheduler = self.scheduler
        faults_left = scheduler.faults_left
        stale = faults_left > 0 and SimFault.STALE_READ in scheduler.faults.kinds
        return hash(
            (
                self.phase,
                self.loop.clock_ms(),
                self.loop.pending(),
                faults_left,
                self.metadata.state(),
                self.metadata.past() if stale else 0,
                tuple([(name, bucket.digest) for name, bucket in self._objects.items()]),
                tuple([actor.mark() for actor in scheduler.actors]),
                # Its sender may be dead and its observations forgotten: the write itself is the state.
                tuple(sorted([(call.actor.number, call.number, call.content()) for call in scheduler.late])),
                self._history_digest if history else 0,
            )
        )

    # -- sessions -----------------------------------------------------------------------------------------------------
    def _stop_heartbeats(self, actor: Actor) -> None:
        backing = self.metadata.backing
        for session in actor.sessions:
            if session.id in backing.sessions:
                session.expires_at_ms = self.now_ms() + session.timeout_ms
                self.loop.engine_call_later(actor.name, session.timeout_ms, backing.sweep)

    def _resume_heartbeats(self, actor: Actor) -> None:
        self.metadata.backing.sweep()
        for session in actor.sessions:
            session.expires_at_ms = None

    def _expire_sessions(self, actor: Actor) -> None:
        for session in actor.sessions:
            self.metadata.backing.expire(session)

    # -- the end ------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Throw away what is left of the actors."""
        self.loop.discard(self.scheduler.actors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
