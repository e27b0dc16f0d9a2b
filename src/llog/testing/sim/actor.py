"""An actor: one simulated process, with its own stores, clock and randomness.

Everything the protocol code takes as an argument (stores, time, random bits, sleep) comes from here, so the simulation
runs production code unchanged. Actors share nothing but the stores. When an actor's function returns, its process
exits: its tasks never run again, and requests they had sent may or may not still arrive.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llog.log.context import LogContext, LogOptions
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectStore
from llog.testing.sim.calls import digest
from llog.testing.sim.faults import Moment
from llog.testing.sim.process import SimProcess

if TYPE_CHECKING:
    from llog.stores.metadata.memory import MemorySession
    from llog.testing.sim.calls import Call
    from llog.testing.sim.world import World

ActorFunction = Callable[["ActorContext"], Awaitable[Any]]


class Event(NamedTuple):
    """Something an actor recorded for the checker of its scenario."""

    time_ms: int
    """True time, not the actor's clock."""
    actor: str
    event: Any


class ActorOptions(NamedTuple):
    """Options of an actor."""

    skew_ms: int | None = None
    """How far its clock is ahead of true time; None: drawn from the faults' `skew_ms_max`."""
    daemon: bool = False
    """A run does not wait for its end."""
    faultless: bool = False
    """Nothing ever goes wrong for it."""
    may_fail: tuple[type[BaseException], ...] = ()
    """Errors it may end with; any other makes the run red."""
    restarts: int = 0
    """So many times, when it crashes, another one takes its place (named `name.2`, …) …"""
    restart_after_ms: int = 1_000
    """… this much later."""


class Actor(SimProcess):
    """The outside of an actor, for scenarios and checkers."""

    function: ActorFunction

    def __init__(self, name: str, number: int, options: ActorOptions, skew_ms: int) -> None:
        super().__init__(name)
        self.number, self.options, self.skew_ms = number, options, skew_ms
        self.calls = self.naps = 0
        self.unsent: list[Call] = []
        """What it was about to send when it fell asleep."""
        self.ended = self.crashed = self.asleep = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.reads_as_of: Moment | None = None
        """Set by scripts: its reads that are not strict answer from this moment."""
        self.sessions: list[MemorySession] = []
        self.recorded = 0
        """A digest of what it recorded; kept for a search only."""

    def mark(self) -> int:
        """A hash of all that its future and its judgement depend on. Of one that is gone, only what is left of it
        counts: where it crashed makes no difference when it had recorded and written the same."""
        if not self.ended:
            return self.observed
        return hash(
            (self.recorded, self.crashed, digest(self.result), None if self.error is None else digest(self.error))
        )

    @property
    def state(self) -> str:
        if self.crashed:
            return "crashed"
        if self.ended:
            return "ended" if self.error is None else "failed"
        return "asleep" if self.asleep else "running"

    def has_session(self) -> bool:
        return any(not session.lost for session in self.sessions)

    def __repr__(self) -> str:
        return f"<Actor {self.name} {self.state}>"


class ActorContext:
    """The inside of an actor: what its function works with."""

    def __init__(self, world: World, actor: Actor, metadata: MetadataStore) -> None:
        self.name = actor.name
        self.metadata = metadata
        self._world, self._actor = world, actor
        self._random: random.Random | None = None

    @property
    def objects(self) -> ObjectStore:
        """The store named `objects`."""
        return self.object_store("objects")

    def object_store(self, name: str) -> ObjectStore:
        """One of several object stores, by name; every name is there, empty at first."""
        return self._world.object_store_for(self._actor, name)

    def now_ms(self) -> int:
        """The clock of this process: true time and its own error."""
        return self._world.now_ms() + self._actor.skew_ms

    @property
    def random(self) -> random.Random:
        """Drawn from the seed and the actor's name."""
        if self._random is None:
            self._random = random.Random(f"{self._world.seed}/{self.name}")
        return self._random

    def random_bits(self, bits: int) -> int:
        return self.random.getrandbits(bits)

    async def sleep_ms(self, ms: float) -> None:
        await asyncio.sleep(ms / 1_000)

    def record(self, event: Any) -> None:
        """Record an event for the checker. The event must not change afterwards."""
        self._world.record(self._actor, event)


def log_context(
    ctx: ActorContext,
    *,
    options: LogOptions | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> LogContext:
    """A process's stores, clock and randomness as the log's coroutines take them."""
    objects = ctx.objects

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    return LogContext(
        metadata=ctx.metadata,
        wal=objects,
        segments=objects,
        find_object=find,
        now_ms=ctx.now_ms,
        random_bits=ctx.random_bits,
        sleep=sleep,
        options=LogOptions() if options is None else options,
    )


def waits_of(actors: Sequence[Actor], waiting: Sequence[Call]) -> list[str]:
    """A line for each call or await that a living actor waits for: for the message of a run that cannot go on."""
    lines: list[str] = []
    for actor in actors:
        if actor.ended:
            continue
        calls = [call for call in waiting if call.actor is actor]
        lines += [f"{actor.name} ({actor.state}) is held: it {call.words()}" for call in calls]
        if not calls:
            lines += [f"{actor.name} ({actor.state}) waits in {where(t.get_coro())}" for t in actor.unfinished_tasks()]
    return lines


def where(coroutine: Any) -> str:
    """The innermost place at which a coroutine is suspended, and the last one before it outside asyncio."""
    places: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            name = getattr(coroutine, "__qualname__", type(coroutine).__name__)
            places.append(f"{name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        awaited = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if awaited is None or not (inspect.iscoroutine(awaited) or inspect.isasyncgen(awaited)):
            break
        coroutine = awaited
    return " → ".join(places[-3:]) or "an unknown place"
