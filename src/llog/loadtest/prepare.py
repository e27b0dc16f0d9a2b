"""What `llog loadtest up` and `run` share: a run's directory, its stack, its topics, and the end of its processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from llog.errors import LlogError, RunStateWrong
from llog.loadtest.artifacts import ResolvedConfig
from llog.loadtest.progress import Progress
from llog.loadtest.run_directory import RUN_DIR_VARIABLE, RunDirectory
from llog.loadtest.scenario import Scenario, read_scenario
from llog.loadtest.stack.interrupts import Interrupts
from llog.loadtest.stack.precreate import precreate
from llog.loadtest.stack.processes import mark_of
from llog.loadtest.stack.record import StackFile
from llog.loadtest.stack.start import environment_of, start_stack
from llog.loadtest.stack.teardown import take_down


def create_run(source: str, changes: Sequence[str], results: Path, progress: Progress) -> StackFile:
    """A new run directory with the resolved scenario. Raises `ScenarioInvalid`."""
    scenario = read_scenario(source, changes)
    run = RunDirectory.create(results, scenario.name)
    run.write("resolved-config.json", ResolvedConfig(run.run_id, source, tuple(changes), scenario))
    (run.path / "remap-events.jsonl").touch()  # also where no client has to go elsewhere
    stack = StackFile.create(run, scenario.name)
    progress.run = run
    progress.step("mkdir", f"run {run.run_id}: {scenario.description or scenario.name}")
    return stack


def adopt_run(run: RunDirectory, progress: Progress) -> StackFile:
    """A run whose stack `up` has started, and which had no load yet. Raises `RunStateWrong`."""
    record = run.stack()
    if record is None or record.state != "up":
        state = "no stack" if record is None else f"state {record.state}"
        raise RunStateWrong(run.run_id, f"it has {state}; only a stack that `llog loadtest up` started can be loaded")
    if any(run.client_samples()):
        raise RunStateWrong(run.run_id, "it had a load already; start another run")
    stack = StackFile(run, record)
    stack.adopt()
    progress.run = run
    return stack


async def bring_up(stack: StackFile, progress: Progress) -> None:
    """Start the stack and leave it running; after an error or a signal nothing of it is left."""
    scenario = prepare(stack)
    with Interrupts() as interrupts:
        try:
            await interrupts.run(start_stack(stack, scenario, progress))
        except LlogError as error:
            stack.set_state("failed", str(error))
            await end_run(stack, progress)
            raise
        if interrupts.seen:
            stack.set_state("failed", "interrupted while it started")
            await end_run(stack, progress)
            raise KeyboardInterrupt
    stack.set_state("up")


async def create_topics(stack: StackFile, progress: Progress) -> int:
    """Returns the number of logs that are ready."""
    scenario = stack.run.config().scenario
    progress.step("precreate", f"creating {scenario.partitions} partitions")
    began_s = time.monotonic()

    def on_logs(done: int, count: int) -> None:
        progress.detail(f"{done} of {count}, {done / max(time.monotonic() - began_s, 1e-3):,.0f} a second")

    return await precreate(scenario, environment_of(stack, scenario), on_logs)


async def end_run(stack: StackFile, progress: Progress, spare: int | None = None) -> None:
    progress.step("teardown", "ending the processes of the run")
    await asyncio.to_thread(take_down, stack.run, spare=() if spare is None else (spare,))


def prepare(stack: StackFile) -> Scenario:
    """Every process that this one starts, in whatever way, inherits the run's mark."""
    os.environ[RUN_DIR_VARIABLE] = mark_of(stack.run.path)
    return stack.run.config().scenario
