"""What scripts refuse, and what random runs meet."""

from __future__ import annotations

import pytest

from llog.errors import (
    InvalidArgument,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
    SimulationStuck,
)
from llog.testing.sim import MANY, ActorContext, Script, SeededChooser, SimFault, SimFaults, World
from tests.simulation.actors import K, get_once, put_once


def test_a_fault_that_cannot_befall_a_call_is_refused() -> None:
    with World() as world:
        script = Script(world)
        reader = script.actor("r", get_once).run_until("get")
        with pytest.raises(InvalidArgument, match="late write cannot befall a call that gets k"):
            reader.perform(SimFault.LATE_WRITE)
        with pytest.raises(InvalidArgument, match="no older answer"):
            reader.perform(SimFault.STALE_READ)


def test_a_script_that_waits_for_what_never_comes_says_so() -> None:
    with World() as world:
        script = Script(world)
        held = script.actor("held", get_once).run_until("get")
        with pytest.raises(SimulationStuck, match=r"w ended before it came to delete \*[\s\S]*held.*gets k"):
            script.actor("w", put_once).run_until("delete")
        with pytest.raises(SimulationStuck, match="held is not about to put"):
            held.perform(operation="put")


def test_random_runs_meet_every_fault_within_their_budget() -> None:
    async def busy(ctx: ActorContext) -> None:
        session = None
        while session is None or session.lost:
            try:
                session = await ctx.metadata.open_session(timeout_ms=10_000)
            except (MetadataTimeout, MetadataUnavailable):
                continue
        for _ in range(20):
            await get_once(ctx)
            try:
                await ctx.metadata.put(K, b"1")
            except (MetadataUncertain, MetadataUnavailable):
                continue

    async def watcher(ctx: ActorContext) -> None:
        async with ctx.metadata.watch("") as changes:
            async for _ in changes:
                pass

    met: set[str] = set()
    for seed in range(150):
        with World(SeededChooser(seed), faults=MANY) as world:
            world.actor("a", busy)
            world.actor("b", busy)
            world.actor("watcher", watcher, daemon=True)
            world.run()
            assert 0 <= world.scheduler.faults_left <= MANY.budget
            met.update(world.scheduler.faults_met)
    assert met == {fault.name for fault in SimFault}


def test_a_faultless_actor_meets_no_fault() -> None:
    faults = SimFaults(frozenset(SimFault), budget=100, rate=1.0)
    with World(SeededChooser(3), faults=faults) as world:
        it = world.actor("it", put_once, faultless=True)
        world.run()
        assert (it.result, world.scheduler.faults_left) == ("done", 100)
