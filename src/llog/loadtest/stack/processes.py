"""Processes of a run: found by `stack.json` and by the mark in their environment, and ended.

A process id alone proves nothing: the system gives it to another process later. A recorded process counts only while
the process with its id has the recorded start time; a marked one is marked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from llog.loadtest.artifacts import ProcessPlace
from llog.loadtest.run_directory import RUN_DIR_VARIABLE, RunDirectory

START_TIME_TOLERANCE_S: Final = 2.0
"""The kernel counts from its boot, and the time of the boot as it is computed moves when the clock is corrected."""
KILL_WAIT_S_MAX: Final = 30.0
POLL_S: Final = 0.01
_GONE: Final = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def mark_of(path: Path) -> str:
    """The value of LLOG_LOADTEST_RUN_DIR: the same for every spelling of the path."""
    return os.path.realpath(path)


def is_alive(process: psutil.Process) -> bool:
    """A zombie counts as gone: it runs nothing, and where no parent waits for it, it stays."""
    try:
        return process.is_running() and process.status() not in _GONE
    except psutil.NoSuchProcess:
        return False


def recorded_process(pid: int, started_s: float) -> psutil.Process | None:
    """The process that was recorded, if it still runs."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started_s) <= START_TIME_TOLERANCE_S
    except psutil.NoSuchProcess:
        return None
    return process if same and is_alive(process) else None


def find_recorded(places: Iterable[ProcessPlace]) -> dict[str, psutil.Process]:
    """Those that still run, by name."""
    return {
        place.name: process for place in places if (process := recorded_process(place.pid, place.started_s)) is not None
    }


def find_marked(run: RunDirectory) -> Iterator[psutil.Process]:
    """Every running process with the mark of this run that we may see."""
    mark = mark_of(run.path)
    for process in psutil.process_iter():
        try:
            value = process.environ().get(RUN_DIR_VARIABLE)
            if value and mark_of(Path(value)) == mark and is_alive(process):
                yield process
        except (psutil.Error, OSError):  # it ended, or belongs to another user
            continue


def protected_pids() -> set[int]:
    """This process and its ancestors are never ended."""
    try:
        return {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    except psutil.NoSuchProcess:  # an ancestor ended meanwhile
        return {os.getpid(), os.getppid()}


def find_all(run: RunDirectory, places: Iterable[ProcessPlace], spare: Collection[int] = ()) -> list[psutil.Process]:
    """Recorded processes, marked ones, and the descendants of both: a server may overwrite the environment of its
    children."""
    found = {process.pid: process for process in (*find_recorded(places).values(), *find_marked(run))}
    for process in list(found.values()):
        try:
            found |= {child.pid: child for child in process.children(recursive=True)}
        except psutil.NoSuchProcess:
            continue
    kept = protected_pids() | set(spare)
    return [process for pid, process in found.items() if pid not in kept]


def end_processes(processes: Sequence[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """SIGTERM, and SIGKILL to those that still run after `grace_s`; the ones that even then run."""
    for process in processes:
        _signal(process, "terminate")
        _signal(process, "resume")  # a stopped process does not see SIGTERM
    remaining = wait_gone(processes, grace_s)
    for process in remaining:
        _signal(process, "kill")
    return wait_gone(remaining, KILL_WAIT_S_MAX)


def wait_gone(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run at the end of the time."""
    deadline = time.monotonic() + seconds
    remaining = [process for process in processes if is_alive(process)]
    while remaining and time.monotonic() < deadline:
        time.sleep(POLL_S)
        remaining = [process for process in remaining if is_alive(process)]
    return remaining


def _signal(process: psutil.Process, how: str) -> None:
    try:
        getattr(process, how)()
    except psutil.NoSuchProcess:
        pass
