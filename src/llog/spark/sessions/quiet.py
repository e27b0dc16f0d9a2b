"""Ends a Python worker of Spark silently when its JVM is gone.

Between two tasks a worker waits for its JVM. Spark's own worker treats the end of that connection as a failed task,
tries to report it to the JVM, and prints a traceback whenever a session stops. Errors of tasks are still reported, and
nothing changes while a task runs.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Final

Worker = Callable[[socket.socket, bool], int]
CONNECTION_CLOSED: Final = 1
"""Exit code; not 0, so that the process ends."""


def quiet_worker(worker: Worker) -> Worker:
    """Wrap Spark's function of a forked worker, which does one task: first check that the JVM is still connected."""

    def work(connection: socket.socket, authenticated: bool) -> int:
        try:
            if not connection.recv(1, socket.MSG_PEEK):  # waits for the next task
                return CONNECTION_CLOSED
            return worker(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return CONNECTION_CLOSED  # an error of the connection; errors of tasks are handled inside `worker`

    return work


def quieten_this_process() -> None:
    """In a worker forked by Spark's own daemon, such as one that plans: takes effect with its next task. Elsewhere no
    effect."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) != "pyspark.daemon":
        return
    worker = getattr(main, "worker", None)
    if worker is not None and worker.__module__ != __name__:
        main.worker = quiet_worker(worker)  # type: ignore[union-attr]
