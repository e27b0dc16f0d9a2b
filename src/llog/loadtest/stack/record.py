"""`stack.json` while a run changes it: one writer at a time, and each change is on disk before the next step."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import psutil
from msgspec.structs import replace

from llog.errors import StackFailed
from llog.loadtest.artifacts import ProcessPlace, StackRecord, StackState
from llog.loadtest.run_directory import RUN_DIR_VARIABLE, RunDirectory
from llog.loadtest.stack.processes import mark_of

Kind = Literal["broker", "compactor", "server", "producer", "consumer", "collector", "other"]
LOG_TAIL_CHARACTERS_MAX: Final = 2_000


class StackFile:
    """The record of one run; faults and the driver change it from several tasks."""

    def __init__(self, run: RunDirectory, record: StackRecord) -> None:
        self.run, self._record, self._lock = run, record, threading.Lock()

    @classmethod
    def create(cls, run: RunDirectory, scenario: str) -> StackFile:
        record = StackRecord(run.run_id, "starting", scenario, 0)
        file = cls(run, record)
        file.adopt()
        return file

    @property
    def record(self) -> StackRecord:
        return self._record

    def adopt(self) -> None:
        """This process is the orchestrator from now on."""
        own = psutil.Process()
        self.change(orchestrator_pid=own.pid, orchestrator_started_s=own.create_time())

    def change(self, **fields: Any) -> None:
        with self._lock:
            self._record = replace(self._record, **fields)
            self.run.write_stack(self._record)

    def set_state(self, state: StackState, reason: str | None = None) -> None:
        self.change(state=state, **({} if reason is None else {"reason": reason}))

    def add(self, name: str, kind: Kind, pid: int, command: Sequence[str] = ()) -> ProcessPlace:
        """Record a process that was just started; it replaces an earlier one of the name."""
        try:
            started_s = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            raise StackFailed(name, f"it ended at once; {self.log_tail(name)}") from None
        place = ProcessPlace(name, kind, pid, started_s, f"logs/{name}.log", tuple(command))
        with self._lock:
            others = tuple(other for other in self._record.processes if other.name != name)
            self._record = replace(self._record, processes=(*others, place))
            self.run.write_stack(self._record)
        return place

    def place(self, name: str) -> ProcessPlace:
        for place in self._record.processes:
            if place.name == name:
                return place
        raise StackFailed(name, "stack.json has no such process")

    def launch(
        self,
        name: str,
        kind: Kind,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a process with the mark of the run, in a session of its own: Ctrl-C reaches only the orchestrator."""
        with open(self.run.logs / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env={**environment, RUN_DIR_VARIABLE: mark_of(self.run.path)},
                start_new_session=True,
            )
        self.add(name, kind, child.pid, command)
        return child

    def log_tail(self, name: str) -> str:
        return log_tail(self.run.logs / f"{name}.log")


def log_tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_CHARACTERS_MAX))
            text = file.read().decode(errors="replace").strip()
    except OSError as error:
        return f"its log cannot be read: {error}"
    return f"its log ends with:\n{text}" if text else "its log is empty"
