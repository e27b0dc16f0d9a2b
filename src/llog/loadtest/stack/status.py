"""What a run's directory and its processes show now: `llog loadtest status` and `list`, for runs in any state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from llog.errors import RunNotFound
from llog.loadtest.artifacts import ClientSample, StackRecord, StepEvent
from llog.loadtest.progress import STEPS
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.stack.processes import find_marked, find_recorded, recorded_process
from llog.loadtest.stack.teardown import readable_stack

MB: Final = 1e6
_BUSY: Final = ("starting", "loading", "stopping")


class ProcessState(msgspec.Struct, frozen=True):
    name: str
    kind: str
    pid: int
    alive: bool


class RateState(msgspec.Struct, frozen=True):
    """The last line of a generator process in `client-30s.jsonl`."""

    process: str
    phase: str
    end_s: float
    records_per_s: float
    mb_per_s: float
    failed: int


class RunStatus(msgspec.Struct, frozen=True):
    run_id: str
    path: str
    scenario: str
    state: str
    reason: str
    step: str
    """What the orchestrator began last."""
    orchestrator_alive: bool
    processes: tuple[ProcessState, ...]
    rates: tuple[RateState, ...]
    advice: str = ""


class RunRow(msgspec.Struct, frozen=True):
    """A line of `llog loadtest list`; None where the run has no such figure."""

    run_id: str
    scenario: str
    state: str
    produced_mb_per_s: float | None = None
    produce_p99_ms: float | None = None
    end_to_end_p99_ms: float | None = None
    missing: int | None = None
    warnings: int | None = None
    exit_code: int | None = None


def run_status(run: RunDirectory) -> RunStatus:
    stack = readable_stack(run)
    orchestrator = _orchestrator_alive(stack)
    processes = tuple(_processes(run, stack))
    state = "unknown" if stack is None else stack.state
    return RunStatus(
        run_id=run.run_id,
        path=str(run.path),
        scenario=run.config().scenario.name,
        state=state,
        reason="stack.json is missing or damaged" if stack is None else stack.reason,
        step=_last_step(run),
        orchestrator_alive=orchestrator,
        processes=processes,
        rates=tuple(last_rates(run.client_samples())),
        advice=_advice(run, state, orchestrator, any(process.alive for process in processes)),
    )


def last_rates(samples: Iterable[ClientSample]) -> list[RateState]:
    last = {sample.process: sample for sample in samples}
    return [
        RateState(
            process=sample.process,
            phase=sample.phase,
            end_s=sample.end_s,
            records_per_s=sample.records / _seconds(sample),
            mb_per_s=sample.payload_bytes / MB / _seconds(sample),
            failed=sum(sample.failed.values()),
        )
        for _, sample in sorted(last.items())
    ]


def run_row(run: RunDirectory) -> RunRow:
    """Never raises for a damaged run: the list shows the others."""
    stack = readable_stack(run)
    try:
        name, summary = run.config().scenario.name, run.summary()
    except RunNotFound:
        return RunRow(run.run_id, "damaged", "unknown" if stack is None else stack.state)
    state = "unknown" if stack is None else stack.state
    if summary is None:
        return RunRow(run.run_id, name, state)
    client = summary.client
    return RunRow(
        run.run_id,
        name,
        state,
        produced_mb_per_s=None if client is None else client.produced_mb_per_s,
        produce_p99_ms=None if client is None else client.latency.p99,
        end_to_end_p99_ms=None if client is None else client.end_to_end.p99,
        missing=None if client is None else client.loss.missing,
        warnings=len(summary.warnings),
        exit_code=summary.exit_code,
    )


def list_runs(results: Path) -> list[RunRow]:
    return [run_row(run) for run in RunDirectory.all(results)]


def _processes(run: RunDirectory, stack: StackRecord | None) -> Iterable[ProcessState]:
    places = () if stack is None else stack.processes
    alive = find_recorded(places)
    for place in places:
        yield ProcessState(place.name, place.kind, place.pid, place.name in alive)
    known = {process.pid for process in alive.values()}
    for process in find_marked(run):
        if process.pid not in known:
            yield ProcessState(_unrecorded_name(process), "other", process.pid, True)


def _unrecorded_name(process: psutil.Process) -> str:
    """A child of a recorded process, or one that the run started just before it was killed."""
    try:
        return f"{process.name()} (not in stack.json)"
    except psutil.Error:
        return "(ended)"


def _orchestrator_alive(stack: StackRecord | None) -> bool:
    return stack is not None and recorded_process(stack.orchestrator_pid, stack.orchestrator_started_s) is not None


def _last_step(run: RunDirectory) -> str:
    last = ""
    for event in run.lines(STEPS, StepEvent):
        last = event.step
    return last


def _advice(run: RunDirectory, state: str, orchestrator: bool, alive: bool) -> str:
    if orchestrator or (state == "down" and not alive):
        return ""
    if state in _BUSY or state == "unknown" or (state == "down" and alive):
        return f"its orchestrator has ended: `llog loadtest down {run.run_id}` ends what is left of it"
    return f"`llog loadtest down {run.run_id}` ends it" if alive else ""


def _seconds(sample: ClientSample) -> float:
    return max(sample.end_s - sample.begin_s, 1e-3)
