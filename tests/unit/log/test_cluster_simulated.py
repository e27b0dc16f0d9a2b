"""Several processes start at once on empty stores, crash, stall and lose answers: all of them belong to one cluster,
and none fails because its stores seem not to belong together."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from llog.errors import MetadataStoreError, ObjectStoreError
from llog.log.cluster import compare_cluster, join_cluster
from llog.testing.sim import MANY, ActorContext, SimScenario, World, run_seed
from llog.testing.sim.actor import log_context

SEEDS = 5_000 if os.environ.get("LLOG_SOAK") == "1" else 100
FAULTS = replace(MANY, rate=0.1)
TROUBLE = (MetadataStoreError, ObjectStoreError)


async def join(ctx: ActorContext) -> str:
    """As a process that is started again until it runs."""
    while True:
        try:
            return (await join_cluster(log_context(ctx))).cluster_id
        except TROUBLE:
            await ctx.sleep_ms(100)


async def compare(ctx: ActorContext) -> str | None:
    try:
        found = await compare_cluster(log_context(ctx))
    except TROUBLE:
        return None
    return None if found is None else found.cluster_id


def start_together(world: World) -> None:
    actors = [world.actor(f"joiner-{number}", join, restarts=2) for number in range(3)]
    actors.append(world.actor("doctor", compare))
    world.run()
    world.calm()
    wanted = world.alone("last", join)
    joined = {actor.result for actor in actors if actor.ended and not actor.crashed} - {None}
    assert joined <= {wanted}, joined


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "compare-and-set"])
def test_processes_that_start_together_found_one_cluster(atomic: bool) -> None:
    scenario = SimScenario("start-together", start_together, FAULTS, options={"atomic_groups": atomic})
    for seed in range(SEEDS):
        run = run_seed(scenario, seed, keep_trace=False)
        assert run.ok, f"seed {seed}: {run.error!r}\n{run.printed[-3_000:]}"
