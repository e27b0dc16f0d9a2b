"""One seed, one run: again in this process, from its recorded choices, and in another process."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llog.errors import ReplayDiverged, SimulationNotRepeatable
from llog.stores.metadata.port import Key
from llog.testing.sim import (
    MANY,
    ActorContext,
    ReplayChooser,
    SimFaults,
    SimScenario,
    World,
    check_repeatable,
    find,
    replay,
    run_seed,
)
from tests.simulation import toys

COUNTER = find("toy-counter")
ROOT = Path(toys.__file__).parents[2]


@pytest.mark.parametrize("seed", range(30))
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first, second = run_seed(COUNTER, seed), run_seed(COUNTER, seed)
    assert first.trace == second.trace
    assert first.choices == second.choices


@pytest.mark.parametrize("seed", range(30))
def test_recorded_choices_give_the_same_trace(seed: int) -> None:
    recorded = run_seed(COUNTER, seed)
    played = replay(COUNTER, recorded.choices, seed=seed, search=False)
    assert played.trace == recorded.trace
    assert played.choices == recorded.choices


def test_different_seeds_give_different_traces() -> None:
    assert len({"\n".join(run_seed(COUNTER, seed).trace) for seed in range(30)}) > 20


def test_a_recording_that_does_not_fit_is_refused() -> None:
    with World(ReplayChooser([7])) as world:
        world.actor("a", toys.increment_carefully)
        world.actor("b", toys.increment_carefully)
        with pytest.raises(ReplayDiverged, match="choice 0 of the recording is 7, but this run offers 2"):
            world.run()


def test_sets_of_tasks_and_futures_keep_one_order() -> None:
    """They are hashed by number, not by address."""

    async def actor(ctx: ActorContext) -> None:
        async def put(number: int) -> None:
            await ctx.metadata.put(Key(f"k/{number}"), b"1")

        garbage = [bytearray(ctx.random.randrange(1_000)) for _ in range(20)]
        tasks = {asyncio.create_task(put(number)) for number in range(20)}
        futures = {asyncio.get_running_loop().create_future() for _ in range(20)}
        for number, future in enumerate(futures):
            future.set_result(number)
        ctx.record([await future for future in futures])
        done, _ = await asyncio.wait(tasks)
        ctx.record([task.get_name() for task in done])
        del garbage

    def play(world: World) -> None:
        world.actor("a", actor)
        world.actor("b", actor)
        world.run()
        world.trace.note(str(world.history))

    check_repeatable(SimScenario("sets", play, faults=MANY), seed=5)


def test_code_that_the_seed_does_not_decide_is_found() -> None:
    changing = itertools.count()

    async def actor(ctx: ActorContext) -> None:
        await ctx.metadata.put(Key("k"), str(next(changing)).encode())

    def play(world: World) -> None:
        world.alone("it", actor)

    with pytest.raises(SimulationNotRepeatable, match="puts k: 0"):
        check_repeatable(SimScenario("changing", play, faults=SimFaults()), seed=1)


def test_another_process_gives_the_same_trace() -> None:
    command = [sys.executable, "-m", "llog.testing.sim", "--load", toys.__name__, "--scenario", "toy-counter"]
    outputs = [
        subprocess.run(
            [*command, "--seed", "11", "--schedules", "3", "--trace"],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout.splitlines()[:-2]  # the last lines tell how long it took
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert any("puts toy/counter" in line for line in outputs[0])
