"""The end of a run's processes, from any state: `llog loadtest down`, the end of `run`, and the guardian.

It relies on nothing that a killed run may have left undone: `stack.json` may be missing, half, or older than the last
process. Generators end first, then brokers and compactors while their stores still answer, then everything else. The
search is repeated until it finds nothing several times: the kernel shows the environment of a new process, and so its
mark, only a moment after the process has begun.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from llog.errors import RunNotFound, StackFailed
from llog.loadtest.artifacts import StackRecord
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.stack.processes import end_processes, find_all, protected_pids, recorded_process

ORCHESTRATOR_GRACE_S: Final = 60.0
"""It ends the load, writes the summary and ends its processes."""
GRACE_S: Final = (
    (frozenset({"producer", "consumer", "collector"}), 3.0),
    (frozenset({"broker", "compactor"}), 15.0),
    (frozenset({"server", "other"}), 2.0),
)
"""Seconds between SIGTERM and SIGKILL, by kind, in the order of the end."""
ROUNDS_MAX: Final = 20
QUIET_ROUNDS: Final = 3
QUIET_S: Final = 0.1
DATA_ATTEMPTS_MAX: Final = 50


class TakenDown(msgspec.Struct, frozen=True):
    run_id: str
    ended: tuple[str, ...]
    """Names of the processes that ran, `pid 123` for those that stack.json did not have."""
    data_removed: bool


def readable_stack(run: RunDirectory) -> StackRecord | None:
    """None if it is missing or damaged: then the marks of the processes have to do."""
    try:
        return run.stack()
    except RunNotFound:
        return None


def take_down(run: RunDirectory, *, spare: Collection[int] = (), reason: str = "") -> TakenDown:
    """End all processes of the run but this one, its ancestors and `spare`; remove its data; note it in stack.json."""
    _end_orchestrator(run)
    ended = _end_all(run, spare)
    removed = _remove_data(run)
    _note(run, reason)
    return TakenDown(run.run_id, tuple(ended), removed)


def _end_orchestrator(run: RunDirectory) -> None:
    """It must go first, or it would start what we end. It takes the run down itself, if it can."""
    stack = readable_stack(run)
    if stack is None or stack.orchestrator_pid in protected_pids():
        return
    orchestrator = recorded_process(stack.orchestrator_pid, stack.orchestrator_started_s)
    if orchestrator is not None and end_processes([orchestrator], ORCHESTRATOR_GRACE_S):
        raise StackFailed("orchestrator", f"process {orchestrator.pid} cannot be ended")


def _end_all(run: RunDirectory, spare: Collection[int]) -> dict[str, None]:
    ended: dict[str, None] = {}
    quiet = 0
    for _ in range(ROUNDS_MAX):
        stack = readable_stack(run)
        places = () if stack is None else stack.processes
        names = {place.pid: place.name for place in places}
        kinds = {place.pid: place.kind for place in places}
        found = find_all(run, places, spare)
        quiet = 0 if found else quiet + 1
        if quiet == QUIET_ROUNDS:
            return ended
        for group, grace_s in GRACE_S:
            chosen = [process for process in found if kinds.get(process.pid, "other") in group]
            ended |= dict.fromkeys(names.get(process.pid, f"pid {process.pid}") for process in chosen)
            end_processes(chosen, grace_s)
        time.sleep(QUIET_S)
    raise StackFailed(run.run_id, f"processes are left: {', '.join(str(process.pid) for process in found)}")


def _remove_data(run: RunDirectory) -> bool:
    """Several attempts: the guardian may remove the same files at the same time."""
    for _ in range(DATA_ATTEMPTS_MAX):
        shutil.rmtree(run.data, ignore_errors=True)
        if not run.data.exists():
            return True
        time.sleep(QUIET_S)
    return False


def _note(run: RunDirectory, reason: str) -> None:
    stack = readable_stack(run)
    if stack is None:
        stack = StackRecord(run.run_id, "down", "", 0, reason="stack.json was missing or damaged")
    run.write_stack(replace(stack, state="down", reason=stack.reason or reason))
