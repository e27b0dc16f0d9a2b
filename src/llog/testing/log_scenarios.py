"""The log under simulation: production code of every part, faults everywhere, and an independent checker.

    python -m llog.testing.sim --load llog.testing.log_scenarios --scenario 'log-*' --schedules 1000 --jobs 2
    python -m llog.testing.sim --load llog.testing.log_scenarios --scenario 'scope-*' --exhaustive

`log-…` are long random runs with all kinds of clients. `scope-…` are small enough for an exhaustive search, with one
crash or stall anywhere. The checker sees the answers of clients, every change of the metadata, and the final store: as
it was left, after one recovery per log, after a lone compactor, and after retention and vacuum a grace later.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from llog.limits import LOG_BACKOFF_MS_MAX
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys, Log
from llog.log.topics.create import FirstWrite, initialize
from llog.stores.metadata.port import Change as Notice
from llog.stores.metadata.port import ChangeKind
from llog.testing.history import Broken, Checker, Client, Dump, DumpedObject, Noted, Phase, operations_of
from llog.testing.history.judge_changes import ChangeJudge, JournalChange
from llog.testing.history.operations import Operations
from llog.testing.history.operators import (
    compact_chore,
    delete_now_and_then,
    fence_now_and_then,
    job_chore,
    merge_chore,
    retain_now_and_then,
    vacuum_chore,
)
from llog.testing.history.recovery import clean, compact_all, probe, resume
from llog.testing.history.workload import follow, tend, write, write_idempotently
from llog.testing.sim import HOUR_MS, MANY, ONE_CRASH_OR_STALL, ActorContext, World, on_both_stores
from llog.testing.sim.actor import log_context
from llog.testing.sim.metadata_server import MetadataServer, SimWatcher, Versions

ORDERS, CLICKS, VISITS = Log("orders", 0), Log("orders", 1), Log("visits", 0)
LOGS: Final = (ORDERS, CLICKS, VISITS)
KEYS: Final = Keys()
GRACE_MS: Final = 1_000
"""Short, so that vacuum has work while the others run; every longer stall outlasts it."""
FAULTS: Final = replace(MANY, stall_ms=(50, 1_500, 15_000, 2 * HOUR_MS), skew_ms_max=40)

T = TypeVar("T")
Play = Callable[[Client], Awaitable[None]]


class Journal(SimWatcher):
    """Judges every change of the metadata as it happens (`judge_changes`)."""

    of_client = False

    def __init__(self, server: MetadataServer) -> None:
        super().__init__("", None, lambda: None)
        self._server, self._judge = server, ChangeJudge(KEYS)
        self.changes = deque()  # stays empty: no client waits for it

    def offer(self, shard: int, change: Notice) -> None:
        cells = self._server.shards[shard].cells
        value = cells[change.path].value if change.kind is ChangeKind.PUT else None
        found = self._judge.feed([JournalChange(change.path, value)])
        if found:
            raise Broken(Phase.LEFT, found)


def context_of(ctx: ActorContext, *, backs_off: bool = True) -> LogContext:
    """With `backs_off` False no client waits between two attempts; see `Scope.search`."""
    options = LogOptions(writer_id=ctx.name, vacuum_grace_ms=GRACE_MS)
    return log_context(ctx, options=options, sleep=asyncio.sleep if backs_off else _no_backing_off)


async def _no_backing_off(seconds: float) -> None:
    """Waits by the clock for what comes by the clock (an idle log is cleared), and not between two attempts."""
    if seconds > LOG_BACKOFF_MS_MAX / 1_000:
        await asyncio.sleep(seconds)


def client(
    play: Play, *, encoding: str = "bytes-batch-v1", pause_ms: int = 20, backs_off: bool = True
) -> Callable[[ActorContext], Awaitable[None]]:
    """A client of the workload as a simulated process."""

    async def run(ctx: ActorContext) -> None:
        context = context_of(ctx, backs_off=backs_off)
        await play(Client(ctx.name, context, ctx.record, encoding=encoding, pause_ms=pause_ms))

    return run


def producer_id_of(name: str) -> int:
    """Every process is its own producer, also the one that replaces a crashed one."""
    return zlib.crc32(name.encode())


# -- judging ---------------------------------------------------------------------------------------------------------


def watch_changes(world: World) -> None:
    world.metadata.watchers.append(Journal(world.metadata))


def dump_of(world: World) -> Dump:
    store = world.bucket("objects").inner
    objects = {store.uri(name): DumpedObject(content) for name, content in world.objects().items()}
    return Dump({path: record.value for path, record in world.records().items()}, objects, world.now_ms())


def operations_in(world: World) -> Operations:
    return operations_of(Noted(at, event.actor, event.event) for at, event in enumerate(world.history))


def judge(
    world: World,
    logs: Sequence[Log] = LOGS,
    operations_in: Callable[[World], Operations] = operations_in,
    *,
    on_recovered: Callable[[World], None] = lambda _: None,
    probing: bool = False,
    cleaning: bool = False,
) -> None:
    """No faults from here on: does the log keep its promises, now and after recovery, compaction and clean-up?

    `probing`: can it still be appended to? `cleaning`: do retention and vacuum leave nothing behind?
    """
    world.calm()
    operations = operations_in(world)
    checker = Checker(KEYS, grace_ms=GRACE_MS)
    checker.check(operations, dump_of(world), Phase.LEFT)
    for log in logs:
        alone(world, f"resume-{log}", partial(resume, log=log))
    checker.check(operations, dump_of(world), Phase.RECOVERED)
    on_recovered(world)
    if probing:
        world.alone("probe", client(partial(probe, logs=logs)), skew_ms=0)
        operations = operations_in(world)
    for log in logs:
        alone(world, f"compact-{log}", partial(compact_all, log=log))
    checker.check(operations, dump_of(world), Phase.COMPACTED)
    if cleaning:
        alone(world, "clean", partial(clean, logs=logs))
        checker.check(operations, dump_of(world), Phase.CLEANED)


def alone(world: World, name: str, step: Callable[[LogContext], Awaitable[T]], skew_ms: int | None = 0) -> T:
    """Run a step to its end while all others are held; what it returns."""

    async def run(ctx: ActorContext) -> T:
        return await step(context_of(ctx))

    result: T = world.alone(name, run, skew_ms=skew_ms)
    return result


# -- long random runs ------------------------------------------------------------------------------------------------

Role = Callable[[Client, int, Sequence[Log]], Awaitable[None]]
"""A client, how much of its work it does (1 is little), and where."""

ROLES: Final[dict[str, Role]] = {
    "writer-1": lambda c, n, logs: write(c, logs, 3 * n),
    "writer-2": lambda c, n, logs: write(c, logs, 3 * n),
    "producer": lambda c, n, logs: write_idempotently(c, (ORDERS, VISITS), 4 * n, producer_id_of(c.name)),
    "reader": lambda c, n, logs: follow(c, logs, 8 * n),
    "compactor": lambda c, n, logs: tend(c, logs, 3 * n, [compact_chore]),
    "merger": lambda c, n, logs: tend(c, logs, 3 * n, [compact_chore, merge_chore, job_chore]),
    "retention": lambda c, n, logs: retain_now_and_then(c, logs, n),
    "fencer": lambda c, n, logs: fence_now_and_then(c, (ORDERS,), n),
    "vacuum": lambda c, n, logs: tend(c, logs, n, [vacuum_chore]),
    "deleter": lambda c, n, logs: delete_now_and_then(c, (VISITS.topic,), n),
}
WRITERS: Final = ("writer-1", "writer-2", "producer")
PAUSES_MS: Final = {"vacuum": 900, "fencer": 40, "retention": 60, "deleter": 60}


def play_roles(world: World, roles: Mapping[str, int], logs: Sequence[Log] = LOGS) -> None:
    """Roles by name, and how much each of them does."""
    watch_changes(world)
    if world.seed % 4:
        # Elsewhere the first writers race to initialize the logs.
        alone(world, "first", partial(_initialize_all, logs=logs), skew_ms=None)
    # Compaction rewrites the two encodings on different paths.
    encoding = "kafka-v2" if world.seed % 2 else "bytes-batch-v1"
    for name, amount in roles.items():
        acting = partial(_play, ROLES[name], amount, logs)
        play = client(acting, encoding=encoding, pause_ms=PAUSES_MS.get(name, 120))
        world.actor(name, play, restarts=1, restart_after_ms=200)
    world.run()
    # Both cost as much as a quarter of the run: each is done in every third.
    judge(world, probing=world.seed % 3 == 1, cleaning=world.seed % 3 == 0)


async def _play(role: Role, amount: int, logs: Sequence[Log], client: Client) -> None:
    await role(client, amount, logs)


async def _initialize_all(context: LogContext, logs: Sequence[Log]) -> None:
    """As a broker does at a first produce, so that later produces may add partitions."""
    for log in logs:
        await initialize(context, log, write=FirstWrite(log.partition + 1, grows=True))


@on_both_stores("log-everything", faults=FAULTS)
def all_clients(world: World) -> None:
    play_roles(world, dict.fromkeys(ROLES, 1))


@on_both_stores("log-some", faults=FAULTS)
def some_clients(world: World) -> None:
    """A few roles, and more work of each: no others drown what two or three do to each other."""
    draw = random.Random(f"{world.seed}/roles")
    writers = draw.sample(WRITERS, draw.randint(1, 2))
    others = draw.sample([name for name in ROLES if name not in WRITERS], 3)
    play_roles(world, {name: 4 - len(writers) for name in writers} | dict.fromkeys(others, 3))


@on_both_stores("log-few", faults=FAULTS)
def a_few_clients(world: World) -> None:
    """Short: for very many runs."""
    draw = random.Random(f"{world.seed}/roles")
    others = draw.sample([name for name in ROLES if name not in WRITERS], 3)
    play_roles(world, dict.fromkeys((*draw.sample(WRITERS, 2), *others), 1), (ORDERS, VISITS))


# -- small scopes, searched to the end -------------------------------------------------------------------------------

TICK_MS: Final = 60_000
"""Coarse clocks: a nap leaves no trace in what is written, so more runs come to the same state."""


class Scope(NamedTuple):
    roles: Mapping[str, Play]
    appends_before: int = 0
    """Appends that the log holds when the roles begin."""
    spared: str = ""
    """A role without faults, because they would show nothing new: the twin of another role, or a role that writes
    nothing: its crash leaves nothing behind, and its delays are orders that are searched anyway."""

    def search(self, world: World) -> None:
        """One log that exists already, and one crash or stall anywhere.

        No client waits between two attempts: it retries at once, and the search holds that call for as long as it
        likes. That covers every order that waiting could lead to, without the states of merely waiting. Other timers
        go off when no client can do anything else.
        """
        watch_changes(world)
        world.alone("first", client(partial(_write_first, appends=self.appends_before), backs_off=False))
        for name, play in self.roles.items():
            world.actor(name, client(play, backs_off=False), faultless=name == self.spared)
        world.run()
        judge(world, (ORDERS,))


async def _write_first(client: Client, appends: int) -> None:
    await initialize(client.context, ORDERS)
    await _write_some(client, appends)


async def _write_some(client: Client, appends: int) -> None:
    await write(client, (ORDERS,), appends, records_max=1)


async def _compact_some(client: Client, runs: int) -> None:
    await tend(client, (ORDERS,), runs, [compact_chore])


async def _read_some(client: Client, rounds: int) -> None:
    await follow(client, (ORDERS,), rounds)


SCOPES: Final[dict[str, Scope]] = {
    "scope-2-writers": Scope({"w1": lambda c: _write_some(c, 2), "w2": lambda c: _write_some(c, 2)}, spared="w2"),
    "scope-writer-compactor": Scope({"w": lambda c: _write_some(c, 1), "c": lambda c: _compact_some(c, 1)}, 2),
    "scope-writer-reader-compactor": Scope(
        {"w": lambda c: _write_some(c, 1), "r": lambda c: _read_some(c, 1), "c": lambda c: _compact_some(c, 1)},
        spared="r",
    ),
    "scope-2-compactors": Scope({"c1": lambda c: _compact_some(c, 1), "c2": lambda c: _compact_some(c, 1)}, 1, "c2"),
}


for _name, _small in SCOPES.items():
    on_both_stores(
        _name,
        shards=1,
        faults=ONE_CRASH_OR_STALL,
        search_faults=ONE_CRASH_OR_STALL,
        ordered=False,
        tick_ms=TICK_MS,
        patience_ms=0,
        versions=Versions.OF_KEY,
        objects_at_once=True,
    )(_small.search)
