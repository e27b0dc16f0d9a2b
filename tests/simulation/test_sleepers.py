"""Zombies, and sessions that end under their owner."""

from __future__ import annotations

import asyncio

from llog.errors import (
    SessionLost,
)
from llog.stores.metadata.port import ChangeKind, Key
from llog.testing.sim import HOUR_MS, ActorContext, Fate, Script, SimFault, World
from tests.simulation.actors import K, get_once, put_once


def test_a_zombie_wakes_hours_later_and_finds_its_session_gone() -> None:
    lost: list[int] = []

    async def holder(ctx: ActorContext) -> str:
        session = await ctx.metadata.open_session(timeout_ms=10_000, on_lost=lambda: lost.append(ctx.now_ms()))
        await ctx.metadata.put(K, b"mine", session=session)
        await ctx.metadata.get(Key("work"))
        try:
            await ctx.metadata.put(K, b"still mine", session=session)
        except SessionLost:
            return "lost"
        return "kept"

    with World() as world:
        script = Script(world)
        zombie = script.actor("zombie", holder).run_until("get")
        fell_asleep_ms = world.now_ms()
        zombie.perform(SimFault.STALL_AFTER)
        assert script.actor("other", get_once).finish() == b"mine"
        script.pass_time(10_000)
        assert script.actor("another", put_once).finish() == "done"
        assert lost == [], "a sleeping process hears nothing"
        assert zombie.finish() == "lost"
        assert lost == [fell_asleep_ms + 2 * HOUR_MS]
        assert world.records()["k"].value == b"another"


def test_a_short_nap_costs_no_session() -> None:
    async def holder(ctx: ActorContext) -> bool:
        session = await ctx.metadata.open_session(timeout_ms=10_000)
        await ctx.metadata.get(K)
        await ctx.sleep_ms(HOUR_MS)
        return session.lost

    with World() as world:
        it = Script(world).actor("it", holder).run_until("get")
        it.perform(Fate(SimFault.STALL_BEFORE, ms=5_000))
        assert it.finish() is False


def test_all_of_a_sleeping_process_sleeps() -> None:
    async def two_tasks(ctx: ActorContext) -> list[int]:
        times: list[int] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                times.append(ctx.now_ms())

        ticking = asyncio.create_task(tick())
        await ctx.metadata.get(K)
        await ctx.sleep_ms(1_500)
        ticking.cancel()
        return times

    with World() as world:
        start_ms = world.now_ms()
        it = Script(world).actor("it", two_tasks)
        it.run_until("get").perform(SimFault.STALL_AFTER)
        woke_ms = start_ms + 2 * HOUR_MS
        # The tick that was due in its sleep comes when it wakes.
        assert it.finish() == [woke_ms, woke_ms + 1_000]


def test_a_script_wakes_a_sleeper_early() -> None:
    with World() as world:
        script = Script(world)
        it = script.actor("it", put_once).run_until("put")
        it.perform(SimFault.STALL_BEFORE)
        it.wake()
        assert it.finish() == "done"
        assert world.trace.lines()[-1].endswith("it puts k expecting nothing there: it → version 1")


def test_the_store_may_forget_the_session_of_a_living_process() -> None:
    async def holder(ctx: ActorContext) -> list[str]:
        told: list[str] = []
        session = await ctx.metadata.open_session(timeout_ms=10_000, on_lost=lambda: told.append("told"))
        await ctx.metadata.put(K, b"1", session=session)
        await ctx.metadata.get(K)
        return [*told, "lost" if session.lost else "kept"]

    with World() as world:
        script = Script(world)
        it = script.actor("it", holder).run_until("get")
        it.expire_sessions()
        assert "k" not in world.records()
        assert it.finish() == ["told", "lost"]


def test_a_watcher_that_missed_something_is_told_to_read_again() -> None:
    async def watcher(ctx: ActorContext) -> list[ChangeKind]:
        async with ctx.metadata.watch("k") as changes:
            return [(await anext(changes)).kind]

    with World() as world:
        script = Script(world)
        it = script.actor("watcher", watcher)
        script.settle()
        script.actor("writer", put_once).finish()
        it.run_until("notice").perform(SimFault.LOST_NOTICE)
        assert it.finish() == [ChangeKind.RESYNC]
