"""The log under simulation: real append, settle, read and compaction code, everything else goes wrong.

    python -m llog.testing.sim --load llog.testing.log_scenarios --schedules 1000

The checker sees the client history and the final store, nothing else: every acknowledged record is at its offset, once
(I1, I2, I3), an append that was refused is nowhere, valid entries tile the log (I4, I5), and a lone compactor reaches
the counter (I13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from llog.errors import AppendUncertain, LogError, MetadataStoreError, ObjectStoreError, UncertainOutcome
from llog.formats.bytes_batch import encode_bytes_batch
from llog.log.append import Appended, Appender, EncodedGroup
from llog.log.compact import compact_once
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read import iter_runs, view
from llog.stores.objects.port import ObjectStore
from llog.testing.sim import MANY, ONE_CRASH_OR_STALL, ActorContext, World, scenario

ORDERS = Log("orders", 0)
CLICKS = Log("clicks", 0)


class Told(NamedTuple):
    """What a writer was told of one record."""

    log: Log
    token: bytes
    outcome: str
    """`started`, then `landed`, `uncertain` or `refused`"""
    offset: int = -1


def context_of(ctx: ActorContext) -> LogContext:
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
        sleep=asyncio.sleep,
    )


def group(log: Log, token: bytes) -> EncodedGroup:
    # The bare encoding: no kernel to compile, and the protocol does not care.
    return EncodedGroup(log, 1, "bytes-batch-v1", encode_bytes_batch([token]))


def writer(logs: list[Log], appends: int) -> Callable[[ActorContext], Awaitable[None]]:
    async def write(ctx: ActorContext) -> None:
        appender = Appender(context_of(ctx))
        for i in range(appends):
            tokens = {log: f"{ctx.name}/{i}/{log}".encode() for log in logs}
            for log, token in tokens.items():
                ctx.record(Told(log, token, "started"))
            try:
                outcomes = await appender.append([group(log, token) for log, token in tokens.items()])
            except (MetadataStoreError, ObjectStoreError) as error:
                # Raised before anything could be committed, or by an upload that nothing names.
                for log, token in tokens.items():
                    ctx.record(Told(log, token, "uncertain" if isinstance(error, UncertainOutcome) else "refused"))
                continue
            for (log, token), outcome in zip(tokens.items(), outcomes, strict=True):
                if isinstance(outcome, Appended):
                    ctx.record(Told(log, token, "landed", outcome.start_offset))
                else:
                    ctx.record(Told(log, token, "uncertain" if isinstance(outcome, AppendUncertain) else "refused"))
        await appender.close()

    return write


def compactor(log: Log, runs: int) -> Callable[[ActorContext], Awaitable[None]]:
    async def compact(ctx: ActorContext) -> None:
        context = context_of(ctx)
        for _ in range(runs):
            try:
                await compact_once(context, log, max_offsets=3)
            except (LogError, MetadataStoreError, ObjectStoreError):
                pass  # the next run resumes what this one left
            await ctx.sleep_ms(5)

    return compact


async def contents(ctx: ActorContext, log: Log) -> list[tuple[int, bytes | None]]:
    context = context_of(ctx)
    start = (await view(context, log, strict=True)).control.log_start_offset
    return [(r.offset, r.payload) async for run in iter_runs(context, log, start) for r in run.records()]


def check(world: World, logs: list[Log]) -> None:
    """From here on nothing goes wrong: what does the log hold, and is it what the writers were told?"""
    world.calm()
    told = [event.event for event in world.history]
    for number, log in enumerate(logs):
        mine = [event for event in told if event.log == log]
        landed = {event.token: event.offset for event in mine if event.outcome == "landed"}
        if not landed:
            continue
        found = world.alone(f"reader-{number}", partial(contents, log=log))
        _check_log(log, found, mine, landed)
        world.alone(f"repair-{number}", partial(_compact_all, log=log))
        again = world.alone(f"reader-{number}-again", partial(contents, log=log))
        assert again == found, f"{log}: compaction changed what is read"


def _check_log(log: Log, found: list[tuple[int, bytes | None]], told: list[Told], landed: dict[bytes, int]) -> None:
    offsets, tokens = [offset for offset, _ in found], [token for _, token in found]
    assert offsets == list(range(1, len(found) + 1)), f"{log}: an offset was given twice or skipped: {offsets}"
    assert len(set(tokens)) == len(tokens), f"{log}: a record is stored twice: {tokens}"
    there = {token: offset for offset, token in found}
    for token, offset in landed.items():
        assert there.get(token) == offset, f"{log}: {token!r} was acknowledged at {offset}, found {there.get(token)}"
    refused = {event.token for event in told if event.outcome == "refused"}
    assert not refused & there.keys(), f"{log}: refused, and yet there: {refused & there.keys()}"
    assert there.keys() <= {event.token for event in told}, f"{log}: nobody appended that"


async def _compact_all(ctx: ActorContext, log: Log) -> None:
    context = context_of(ctx)
    while await compact_once(context, log) is not None:
        pass
    seen = await view(context, log, strict=True)
    assert seen.cursor == seen.next_offset, f"{log}: a lone compactor stops at {seen.cursor} of {seen.next_offset}"


def _writers(world: World) -> None:
    for name in ("w1", "w2", "w3"):
        world.actor(name, writer([ORDERS, CLICKS], 3), may_fail=True)
    world.run()
    check(world, [ORDERS, CLICKS])


def _writers_and_compactors(world: World) -> None:
    for name in ("w1", "w2"):
        world.actor(name, writer([ORDERS], 4), may_fail=True)
    for name in ("c1", "c2"):
        world.actor(name, compactor(ORDERS, 4), may_fail=True)
    world.run()
    check(world, [ORDERS])


@scenario("log-writers-cas", faults=MANY, search_faults=ONE_CRASH_OR_STALL, atomic_groups=False, shards=2)
def writers_on_a_compare_and_set_store(world: World) -> None:
    _writers(world)


@scenario("log-writers-atomic", faults=MANY, search_faults=ONE_CRASH_OR_STALL, atomic_groups=True)
def writers_on_an_atomic_store(world: World) -> None:
    _writers(world)


@scenario("log-compaction-cas", faults=MANY, search_faults=ONE_CRASH_OR_STALL, atomic_groups=False, shards=2)
def writers_and_compactors_on_a_compare_and_set_store(world: World) -> None:
    _writers_and_compactors(world)


@scenario("log-compaction-atomic", faults=MANY, search_faults=ONE_CRASH_OR_STALL, atomic_groups=True)
def writers_and_compactors_on_an_atomic_store(world: World) -> None:
    _writers_and_compactors(world)
