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
NOBODY_THERE: Final = 1
"""Not 0: the process shall end."""


def quiet_worker(worker: Worker) -> Worker:
    """From Spark's own function of a forked worker, which does one task, to one that first looks who is there."""

    def work(connection: socket.socket, authenticated: bool) -> int:
        try:
            if not connection.recv(1, socket.MSG_PEEK):  # waits for the next task
                return NOBODY_THERE
            return worker(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return NOBODY_THERE  # of this connection: what a task raises does not come here

    return work


def quieten_this_process() -> None:
    """In a worker that Spark's own daemon forked (those that plan are): from its next task on. Elsewhere nothing."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) != "pyspark.daemon":
        return
    worker = getattr(main, "worker", None)
    if worker is not None and worker.__module__ != __name__:
        main.worker = quiet_worker(worker)  # type: ignore[union-attr]
