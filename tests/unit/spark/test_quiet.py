"""A worker whose JVM is gone ends quietly; one that has a task does it."""

from __future__ import annotations

import socket
import sys
from types import ModuleType, SimpleNamespace

import pytest

from llog.spark.sessions.quiet import CONNECTION_CLOSED, quiet_worker, quieten_this_process


def test_the_end_between_two_tasks_is_no_task_that_failed() -> None:
    ours, jvm = socket.socketpair()
    tasks: list[bytes] = []

    def worker(connection: socket.socket, authenticated: bool) -> int:
        tasks.append(connection.recv(100))
        return 0

    work = quiet_worker(worker)
    with ours:
        jvm.sendall(b"a task")
        assert work(ours, True) == 0
        jvm.close()
        assert work(ours, True) == CONNECTION_CLOSED
    assert tasks == [b"a task"]


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_jvm_that_goes_away_during_a_task_is_nobody_to_tell(error: type[OSError]) -> None:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        raise error

    ours, jvm = socket.socketpair()
    with ours, jvm:
        jvm.sendall(b"a task")
        assert quiet_worker(worker)(ours, True) == CONNECTION_CLOSED


def test_only_processes_of_sparks_own_daemon_are_quietened(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        return 0

    main = ModuleType("__main__")
    main.worker = worker  # type: ignore[attr-defined]
    main.__spec__ = SimpleNamespace(name="somewhere.else")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    quieten_this_process()
    assert main.worker is worker
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    quieten_this_process()
    quietened = main.worker
    assert quietened is not worker
    quieten_this_process()
    assert main.worker is quietened
