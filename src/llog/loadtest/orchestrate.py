"""One run of a load test from its scenario to its report: `llog loadtest run`.

    directory → guardian → stores → brokers → topics → collector → load, with faults → last sample → summary → report
    → end of all processes

The order keeps a promise: whenever this process dies, no process of the run stays. The guardian is the first process,
and every later one carries the run's mark. `steps.jsonl` has the time of each step.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from pathlib import Path
from typing import Final

import msgspec

from llog.errors import LlogError
from llog.loadtest.artifacts import Phase, Summary
from llog.loadtest.client.drive import run_load
from llog.loadtest.collect.summarise import summarise
from llog.loadtest.prepare import create_topics, end_run, prepare
from llog.loadtest.progress import Progress
from llog.loadtest.report import write_report
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.scenario import Scenario
from llog.loadtest.stack.collector import Collector
from llog.loadtest.stack.faults import FaultInjector
from llog.loadtest.stack.guardian import Guardian
from llog.loadtest.stack.interrupts import Interrupts
from llog.loadtest.stack.plan import inherited
from llog.loadtest.stack.record import StackFile
from llog.loadtest.stack.start import start_stack

_STEP_OF: Final[dict[Phase, str]] = {"warm_up": "warm_up", "measured": "measured", "after": "drain"}


class Outcome(msgspec.Struct, frozen=True):
    run: RunDirectory
    summary: Summary | None
    report: Path | None
    interrupted: bool
    errors: tuple[str, ...]


async def measure(stack: StackFile, progress: Progress, *, keep: bool = False) -> Outcome:
    """Run the load of the scenario, start to end. The stack is started unless it is up; `keep` leaves it running."""
    scenario = prepare(stack)
    guardian = Guardian(stack, inherited(os.environ, scenario))
    parts = _Parts(stack, scenario, progress)
    with Interrupts() as interrupts:
        try:
            await interrupts.run(parts.load())
        except Exception as error:
            parts.note(error)
        if interrupts.seen:
            parts.note(None)
        try:
            await interrupts.run(parts.conclude())
        finally:
            if keep and not parts.errors:
                stack.set_state("up")
            else:
                await end_run(stack, progress, spare=guardian.pid)
            guardian.dismiss()
    return Outcome(stack.run, parts.summary, parts.report, interrupts.seen, tuple(parts.errors))


class _Parts:
    """What `measure` does, in parts that a signal ends one by one."""

    def __init__(self, stack: StackFile, scenario: Scenario, progress: Progress) -> None:
        self._stack, self._scenario, self._progress = stack, scenario, progress
        self._collector: Collector | None = None
        self._faults = FaultInjector(stack, scenario, progress)
        self.summary: Summary | None = None
        self.report: Path | None = None
        self.errors: list[str] = []

    def note(self, error: Exception | None) -> None:
        """Something went wrong (None: a signal came): the run ends, with what it has."""
        text = "interrupted" if error is None else f"{type(error).__name__}: {error}"
        if error is not None and not isinstance(error, LlogError):
            with open(self._stack.run.logs / "orchestrator.log", "a") as log:
                traceback.print_exception(error, file=log)
        self.errors.append(text)
        self._progress.line(text)
        self._stack.set_state("failed", "; ".join(self.errors))

    async def load(self) -> None:
        stack, scenario, progress = self._stack, self._scenario, self._progress
        if stack.record.state != "up":
            await start_stack(stack, scenario, progress)
        await create_topics(stack, progress)
        stack.set_state("loading")
        self._collector = Collector(stack, inherited(os.environ, scenario))
        try:
            await run_load(
                stack.run,
                on_phase=self._on_phase,
                on_process=stack.add,
                on_progress=progress.detail,
                restart_brokers=self._faults.restart_brokers,
            )
        finally:
            await self._faults.end()

    def _on_phase(self, phase: Phase) -> None:
        load = self._scenario.load
        text = {
            "warm_up": f"warm-up, {load.warm_up_s:g} s{', and the search for the highest rate' if load.search else ''}",
            "measured": f"measuring, {load.duration_s:g} s",
            "after": "waiting for answers and consumers",
        }[phase]
        self._progress.step(_STEP_OF[phase], text)
        assert self._collector is not None
        self._collector.phase(phase)
        if phase == "measured":
            self._faults.begin(self._scenario.faults)

    async def conclude(self) -> None:
        """Summary and report of what the run has, each as far as it goes."""
        if self._collector is None:
            return
        stack, progress = self._stack, self._progress
        stack.set_state("stopping")
        progress.step("summary", "last sample and summary")
        try:
            await self._collector.final()
        except LlogError as error:
            self.note(error)
        try:
            self.summary = await asyncio.to_thread(summarise, stack.run)
            progress.step("report", "writing the report")
            self.report = await asyncio.to_thread(write_report, stack.run)
        except Exception as error:
            self.note(error)
