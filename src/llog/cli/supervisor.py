"""Broker processes of `llog up --brokers N`: each is started, and started again when it ends by itself.

A restart waits `RESTART_DELAY_MS_MIN`, twice as long after each further end in a row, at most `RESTART_DELAY_MS_MAX`. A
broker that ran for `RESTART_FORGET_MS` has a clean record again. After `RESTARTS_MAX` restarts in a row the supervisor
gives up on that broker and the others keep serving. A broker whose first start fails because of its arguments,
settings or stores is not started again: the whole stack has the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from llog.cli.exits import REFUSED, USAGE
from llog.limits import KIB

RESTARTS_MAX: Final = 8
RESTART_DELAY_MS_MIN: Final = 250
RESTART_DELAY_MS_MAX: Final = 15_000
RESTART_FORGET_MS: Final = 60_000
MESSAGE_BYTES_MAX: Final = 16 * KIB
"""The longest line from the supervisor to its brokers."""

_log: Final = logging.getLogger("llog.supervisor")


def plan_exit_code(returncode: int) -> int:
    """As a shell reports it: 128 plus the signal, for a process that a signal ended."""
    return 128 - returncode if returncode < 0 else returncode


def describe_end(returncode: int) -> str:
    """Why a process ended, for the log."""
    if returncode >= 0:
        return f"exit code {returncode}"
    number = -returncode
    name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
    return f"{name}, which the kernel also sends when memory runs out" if number == signal.SIGKILL else name


class SupervisedBroker:
    """One broker of a stack, in its own process."""

    def __init__(self, name: str, command: Sequence[str], greeting: Callable[[], Mapping[str, object]]) -> None:
        self.name = name
        self._command, self._greeting = command, greeting
        """`greeting` is the message that every new process gets."""
        self._process: Process | None = None
        self.refused = False
        """Its first start failed in a way that no restart cures."""

    async def run(self, stop: asyncio.Event) -> int:
        """Keep a process running until `stop` is set or the supervisor gives up; the last process's return code."""
        loop, ends_in_row, starts = asyncio.get_running_loop(), 0, 0
        while True:
            started = loop.time()
            process = self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE)
            starts += 1
            self.send(self._greeting())
            if stop.is_set():
                self.terminate()
            code = await process.wait()
            if stop.is_set():
                return code
            ran_ms = round((loop.time() - started) * 1_000)
            ends_in_row = 1 if ran_ms >= RESTART_FORGET_MS else ends_in_row + 1
            fields = {"broker": self.name, "pid": process.pid, "reason": describe_end(code), "ran_ms": ran_ms}
            self.refused = starts == 1 and code in (USAGE, REFUSED)
            if self.refused or ends_in_row > RESTARTS_MAX:
                gave_up = "a broker cannot start" if self.refused else "a broker keeps ending; it is not started again"
                _log.error(gave_up, extra={"llog": {**fields, "starts": starts}})
                return code
            delay_ms = min(RESTART_DELAY_MS_MIN * 2 ** (ends_in_row - 1), RESTART_DELAY_MS_MAX)
            fields |= {"restart": ends_in_row, "restarts_max": RESTARTS_MAX, "delay_ms": delay_ms}
            _log.error("a broker ended; it is started again", extra={"llog": fields})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), delay_ms / 1_000)
                return code

    def terminate(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                process.send_signal(signal.SIGTERM)

    def send(self, message: Mapping[str, object]) -> None:
        """Write one JSON line to the broker's standard input. Messages are news that a broker can do without."""
        line = msgspec.json.encode(message) + b"\n"
        process = self._process
        if len(line) > MESSAGE_BYTES_MAX or process is None or process.returncode is not None:
            return
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(line)  # a few hundred bytes a minute at most: the pipe takes them without waiting


async def keep_running(
    brokers: Sequence[SupervisedBroker], stop: asyncio.Event, until: Iterable[asyncio.Future[Any]]
) -> int:
    """Run the brokers until `stop` is set, one of `until` is done, a broker cannot start, or none is left to restart.

    Sets `stop`, ends every process, and returns the exit code of the stack: 0 after an orderly stop, otherwise that of
    a broker that the supervisor gave up.
    """
    running = [asyncio.ensure_future(broker.run(stop)) for broker in brokers]
    stopping = asyncio.ensure_future(stop.wait())
    try:
        left: set[asyncio.Future[Any]] = set(running)
        ends: set[asyncio.Future[Any]] = {stopping, *until}
        while left and not stop.is_set():
            ended, _ = await asyncio.wait(left | ends, return_when=asyncio.FIRST_COMPLETED)
            left -= ended
            if ended & ends or any(broker.refused for broker in brokers):
                break
        given_up = [task.result() for task in running if task.done() and not stop.is_set()]
    finally:
        stop.set()
        for broker in brokers:
            broker.terminate()
        await asyncio.gather(*running, stopping, return_exceptions=True)
    # SIGTERM ends a process that has not installed its handler yet: this counts as an orderly stop.
    stopped = [0 if task.result() == -signal.SIGTERM else task.result() for task in running]
    return max((plan_exit_code(code) for code in given_up or stopped), default=0)
