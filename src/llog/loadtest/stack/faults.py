"""The faults of a scenario, at their times; what happened is in `fault-events.jsonl`.

A fault that cannot be done is recorded as failed, with its error, and the others go on: a run without its fault is no
run of its scenario, so the summary names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Literal

import psutil

from llog.errors import LlogError, StackFailed
from llog.loadtest.artifacts import FaultEvent
from llog.loadtest.progress import Progress
from llog.loadtest.scenario.model import Fault, Scenario
from llog.loadtest.stack.object_proxy import NAME as PROXY
from llog.loadtest.stack.object_proxy import order_proxy
from llog.loadtest.stack.processes import KILL_WAIT_S_MAX, end_processes, recorded_process, wait_gone
from llog.loadtest.stack.record import StackFile
from llog.loadtest.stack.start import start_broker, until_ready

FAULTS: Final = "fault-events.jsonl"
RESTART_GRACE_S: Final = 60.0


class FaultInjector:
    """Does the faults of one run, and restarts brokers for cold reads."""

    def __init__(self, stack: StackFile, scenario: Scenario, progress: Progress) -> None:
        self._stack, self._scenario, self._progress = stack, scenario, progress
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, faults: Sequence[Fault]) -> None:
        """The measured phase begins now."""
        self._tasks = [asyncio.create_task(self._run(fault)) for fault in faults]

    async def end(self) -> None:
        """The load has ended: what is paused or stalled goes on, and a broker that is killed stays so."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, fault: Fault) -> None:
        target, began = target_of(fault), False
        try:
            await asyncio.sleep(fault.at_s)
            self._note(fault, target, "begin")
            began = True
            await self._do(fault)
            self._note(fault, target, "end")
        except asyncio.CancelledError:
            self._note(fault, target, "end" if began else "failed", "the load ended first")
            raise
        except (LlogError, OSError, psutil.Error) as error:
            self._note(fault, target, "failed", f"{type(error).__name__}: {error}")

    async def _do(self, fault: Fault) -> None:
        if fault.kind == "kill_broker":
            self._broker(fault.broker).kill()
            await asyncio.sleep(fault.duration_s)
            await self.start_again(fault.broker)
        elif fault.kind == "pause_broker":
            broker = self._broker(fault.broker)
            broker.suspend()
            try:
                await asyncio.sleep(fault.duration_s)
            finally:
                broker.resume()
        else:
            port = self._stack.record.ports[f"{PROXY}-control"]
            await order_proxy(port, "stall" if fault.kind == "stall_objects" else "refuse")
            try:
                await asyncio.sleep(fault.duration_s)
            finally:
                await order_proxy(port, "pass")

    async def start_again(self, number: int) -> None:
        """The killed broker, at its ports and with its node id."""
        place = self._stack.record.brokers[number]
        old = self._stack.place(place.broker_id)
        process = recorded_process(old.pid, old.started_s)
        remaining = [] if process is None else await asyncio.to_thread(wait_gone, [process], KILL_WAIT_S_MAX)
        if remaining:
            raise StackFailed(place.broker_id, f"process {old.pid} still runs")
        start_broker(self._stack, self._scenario, place)
        await until_ready(self._stack, self._progress, {place.broker_id: place.http_url})

    async def restart_brokers(self) -> None:
        """All of them in order, so that every cache is empty."""
        brokers = self._stack.record.brokers
        running = [
            process
            for place in map(self._stack.place, (broker.broker_id for broker in brokers))
            if (process := recorded_process(place.pid, place.started_s)) is not None
        ]
        remaining = await asyncio.to_thread(end_processes, running, RESTART_GRACE_S)
        if remaining:
            raise StackFailed("brokers", "they cannot be ended")
        for broker in brokers:
            start_broker(self._stack, self._scenario, broker)
        await until_ready(self._stack, self._progress, {broker.broker_id: broker.http_url for broker in brokers})

    def _broker(self, number: int) -> psutil.Process:
        place = self._stack.place(self._stack.record.brokers[number].broker_id)
        process = recorded_process(place.pid, place.started_s)
        if process is None:
            raise StackFailed(place.name, f"process {place.pid} does not run")
        return process

    def _note(self, fault: Fault, target: str, phase: Literal["begin", "end", "failed"], detail: str = "") -> None:
        self._stack.run.append(FAULTS, FaultEvent(time.time(), fault.kind, target, phase, detail))
        self._progress.line(f"fault {fault.kind} of {target}: {phase}{f' ({detail})' if detail else ''}")


def target_of(fault: Fault) -> str:
    return f"broker-{fault.broker}" if fault.kind.endswith("_broker") else "objects"
