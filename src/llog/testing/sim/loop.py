"""The event loop of a simulated run: virtual time, no thread, no I/O, one order for one seed.

Production code runs on asyncio, so this loop decides every order. Ready callbacks run first come, first served. When
none is left, the loop asks its `step` what happens next (a store call is performed, time passes): the only place where
a run can branch.

- Callbacks belong to a process, found through their context. A sleeping process keeps its callbacks for later; nothing
  of a dead process ever runs again, not even a `finally`, until the run is discarded.
- Work for a thread (`asyncio.to_thread`) is computed at once, on the loop.
- The cyclic garbage collector is off during a run: what it finds, and when, does not depend on the seed.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import sys
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from llog.errors import SimulationForbidden, SimulationTooLong
from llog.limits import SIM_STEPS_MAX
from llog.testing.sim.process import PROCESS, SimFuture, SimHandle, SimProcess, SimTask, SimTimer, close_coroutine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, *, steps_max: int = SIM_STEPS_MAX, tick_ms: int = 1) -> None:
        self.now_s = 0.0
        self._tick_ms = tick_ms
        self.steps, self.steps_max = 0, steps_max
        self.complaints: list[str] = []
        """Complaints of asyncio: errors of tasks that were never awaited, callbacks that raised."""
        self._ready: deque[SimHandle] = deque()
        self.timers: list[tuple[float, int, SimTimer]] = []
        self._numbers = itertools.count(1)
        self._engine_context = Context()
        self._generators: dict[int, SimProcess | None] = {}
        self._thread = threading.get_ident()
        self._running = self._closed = False

    # -- running ----------------------------------------------------------------------------------------------------
    def run(self, step: Callable[[], bool]) -> None:
        """Everything that is ready, then one `step`, and again; until `step` finds nothing more to do."""
        if asyncio._get_running_loop() is not None:
            raise SimulationForbidden("running inside another event loop", "call it from plain, synchronous code")
        collecting, hooks = gc.isenabled(), sys.get_asyncgen_hooks()
        gc.disable()
        sys.set_asyncgen_hooks(firstiter=self._generator_begins, finalizer=self._generator_dropped)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            self._run_ready()
            while step():
                self._run_ready()
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle.stopped:
                continue
            process = handle.process
            if process is not None and process.still:
                process.keep(handle)
                continue
            self.steps += 1
            if self.steps > self.steps_max:
                raise SimulationTooLong(f"more than {self.steps_max} steps", ())
            try:
                handle.context.run(handle.callback, *handle.arguments)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self.complaints.append(f"{handle!r} raised {error!r}")

    def put_back(self, handles: list[SimHandle]) -> None:
        """The callbacks a process kept while it slept."""
        self._ready.extend(handles)

    # -- time -------------------------------------------------------------------------------------------------------
    def time(self) -> float:
        return self.now_s

    def clock_ms(self) -> int:
        """What a clock shows that advances in ticks."""
        now_ms = round(self.now_s * 1_000)
        return now_ms - now_ms % self._tick_ms

    def fire_due(self) -> bool:
        """Make ready what is due by now; whether there was anything."""
        fired = False
        while self.timers and self.timers[0][0] <= self.now_s:
            _, _, timer = heapq.heappop(self.timers)
            if timer.idle:
                continue
            process = timer.handle.process
            if process is not None:
                process.observed = hash((process.observed, timer.number, self.clock_ms()))
            self._ready.append(timer.handle)
            fired = True
        return fired

    def next_due_s(self) -> float | None:
        while self.timers:
            due_s, _, timer = self.timers[0]
            if not timer.idle:
                return due_s
            heapq.heappop(self.timers)
        return None

    def pending(self) -> tuple[tuple[str, int, float], ...]:
        """Every timer: whom it concerns, which of theirs it is, and in how many seconds it is due."""
        timers = [timer for _, _, timer in self.timers if not timer.idle]
        return tuple(sorted((timer.owner, timer.number, round(timer.due_s - self.now_s, 6)) for timer in timers))

    def engine_call_later(self, owner: str, delay_ms: float, callback: Callable[..., object], *arguments: Any) -> None:
        """A timer of the simulation itself, about `owner`: it belongs to no process and nothing stops it."""
        handle = SimHandle(callback, arguments, self._engine_context)
        self._push(SimTimer(self.now_s + delay_ms / 1_000, handle, owner))

    def _push(self, timer: SimTimer) -> None:
        heapq.heappush(self.timers, (timer.due_s, next(self._numbers), timer))

    # -- what asyncio asks of a loop -----------------------------------------------------------------------------
    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> SimHandle:
        handle = SimHandle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> SimHandle:
        if threading.get_ident() != self._thread:
            raise SimulationForbidden("a call from another thread", "a simulated run has one thread")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> SimTimer:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> SimTimer:
        timer = SimTimer(when, SimHandle(callback, args, copy_context() if context is None else context), "")
        self._push(timer)
        return timer

    def create_future(self) -> SimFuture:
        return SimFuture(next(self._numbers), self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> SimTask:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if self._closed or (process is not None and process.dead):
            # Only a coroutine that is being thrown away gets here: it goes on being thrown away.
            close_coroutine(coro)
            raise GeneratorExit
        number = next(self._numbers)
        task = SimTask(coro, number, self, f"task-{number}" if name is None else str(name), context)
        if process is not None:
            process.adopt(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            error = context.get("exception")
            self.complaints.append(f"{context.get('message')}" + (f": {error!r}" if error is not None else ""))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self.timers.clear()

    def discard(self, processes: Iterable[SimProcess]) -> None:
        """Close, and throw away what is left of the processes."""
        self.close()
        left = [process for process in processes if process.unfinished_tasks()]
        if not left:
            return
        running = asyncio._get_running_loop()
        # What they begin in a `finally` must find this loop, which refuses it, and no other.
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # what they begin is never awaited, on purpose
                for process in left:
                    process.discard()
        finally:
            asyncio._set_running_loop(running)

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: a generator that is dropped ends in a task of its process, or with it."""

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> SimFuture:
        """`asyncio.to_thread` computes at once, on the loop: production code that moves computing to a thread runs
        unchanged, and no thread makes an order that the seed does not decide."""
        if executor is not None:
            raise SimulationForbidden("loop.run_in_executor", "only the default executor is simulated")
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def shutdown_default_executor(self) -> None:
        """Nothing to do: there are no threads."""

    # -- asynchronous generators --------------------------------------------------------------------------------------
    def _generator_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = PROCESS.get()

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._generators.pop(id(generator), None)
        if not self._closed and process is not None and not process.dead:
            self.create_task(generator.aclose(), context=process.context)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: SimLoop, *args: object, **kwargs: object) -> NoReturn:
        raise SimulationForbidden(f"loop.{name}", "simulated code has stores, timers and tasks, and nothing else")

    return refuse


_FORBIDDEN: Final = [
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "remove_reader",
    "remove_signal_handler",
    "remove_writer",
    "run_forever",
    "run_until_complete",
    "sendfile",
    "set_default_executor",
    "set_debug",
    "set_exception_handler",
    "get_exception_handler",
    "set_task_factory",
    "get_task_factory",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "stop",
    "subprocess_exec",
    "subprocess_shell",
]
for _name in _FORBIDDEN:
    setattr(SimLoop, _name, _refusing(_name))
