"""What a simulated loop runs: callbacks, timers, tasks and futures, and the process of each.

Nothing may depend on an address. Tasks and futures are numbered, and the number is their hash, so a set of them
iterates in the same order in every run. A process holds its tasks until the run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

# A coroutine that is thrown away may refuse to end (an await in a `finally`); it is closed again, at most this often.
SIM_COROUTINE_CLOSES_MAX: Final = 10

PROCESS: Final[ContextVar[SimProcess | None]] = ContextVar("llog_sim_process", default=None)


class SimProcess:
    """What callbacks and tasks belong to: it runs, sleeps, or is dead."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.still = False
        """Asleep or dead: its callbacks do not run."""
        self.dead = False
        self.observed = 0
        """A digest of all answers that this process got, in order: its state is a function of them."""
        self.timers_set = 0
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._backlog: list[SimHandle] = []
        self._tasks: list[SimTask] = []
        self._tasks_swept = 16

    def keep(self, handle: SimHandle) -> None:
        if not self.dead:
            self._backlog.append(handle)

    def take_backlog(self) -> list[SimHandle]:
        backlog, self._backlog = self._backlog, []
        return backlog

    def adopt(self, task: SimTask) -> None:
        """Held here, so that no task of a process vanishes before the run is over."""
        if len(self._tasks) >= self._tasks_swept:
            self._tasks = self.unfinished_tasks()
            self._tasks_swept = 2 * len(self._tasks) + 16
        self._tasks.append(task)

    def unfinished_tasks(self) -> list[SimTask]:
        return [task for task in self._tasks if not task.done()]

    def discard(self) -> None:
        """Throw away what is left of its coroutines. Whatever they still do in a `finally` reaches no store."""
        self.still = self.dead = True
        for task in self.unfinished_tasks():
            task._log_destroy_pending = False
            close_coroutine(task.get_coro())
        self._tasks = []
        self._backlog = []


def close_coroutine(coroutine: Generator[Any, None, Any] | Coroutine[Any, Any, Any] | None) -> None:
    for _ in range(SIM_COROUTINE_CLOSES_MAX):
        try:
            if coroutine is not None:
                coroutine.close()
            return
        except Exception:
            continue  # it awaited or raised while it was discarded: no task waits for it


class SimHandle(asyncio.Handle):
    """A callback that waits for its turn."""

    __slots__ = ("arguments", "callback", "context", "process", "stopped")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context) -> None:
        self.callback, self.arguments, self.context = callback, arguments, context
        self.process = context.get(PROCESS)
        self.stopped = False

    def cancel(self) -> None:
        self.stopped = True

    def cancelled(self) -> bool:
        return self.stopped

    def __repr__(self) -> str:
        return f"<SimHandle {self.callback!r}>"


class SimTimer(asyncio.TimerHandle):
    """A callback that waits for its time."""

    __slots__ = ("due_s", "handle", "number", "owner")

    def __init__(self, due_s: float, handle: SimHandle, owner: str) -> None:
        """`owner` is whom it concerns, for timers that belong to no process; else its process is."""
        self.due_s, self.handle, self.owner, self.number = due_s, handle, owner, 0
        if handle.process is not None:
            handle.process.timers_set += 1
            self.owner, self.number = handle.process.name, handle.process.timers_set

    @property
    def idle(self) -> bool:
        """Nothing will come of it."""
        process = self.handle.process
        return self.handle.stopped or (process is not None and process.dead)

    def when(self) -> float:
        return self.due_s

    def cancel(self) -> None:
        self.handle.stopped = True

    def cancelled(self) -> bool:
        return self.handle.stopped

    def __repr__(self) -> str:
        return f"<SimTimer at {self.due_s} s: {self.handle.callback!r}>"

    def __hash__(self) -> int:
        return hash(self.due_s)

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTask(asyncio.Task[Any]):
    _log_destroy_pending: bool
    """asyncio's own switch for tasks that are dropped on purpose."""

    def __init__(
        self, coroutine: Any, number: int, loop: asyncio.AbstractEventLoop, name: str, context: Context | None
    ) -> None:
        self.number = number
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number
