"""One client's connection, whatever protocol it speaks: back-pressure, deadlines, and a minimum pace for answers.

An answer holds memory until its client has taken it. A client that takes nothing is noticed soon; a client that takes a
few bytes now and then would hold its answer for days. So the connection counts the time during which bytes wait for
the client as a debt, and pays it back with every byte the client takes:

    debt += time that bytes waited − bytes taken / slowest rate,  never below 0

The connection closes when the debt reaches the grace. An answer of n bytes therefore takes at most grace + n / rate; a
client above the rate is never closed; fast reading earns no credit for later. Bytes count as taken when they reach the
client's machine, not when they leave for our kernel, which accepts megabytes at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, Final, cast

SEND_TIMEOUT_MS: Final = 30_000
"""The grace: how long a client may take none of its answer."""
SEND_BYTES_PER_MS_MIN: Final = 32
"""The slowest rate: 4 MiB have about three minutes, 64 MiB about 40. A slower client asks for less at a time."""
SEND_CHECK_MS_MIN: Final = 20
"""The shortest time between two checks of one client's pace."""

_log: Final = logging.getLogger("llog.listener")


class SendPace:
    """The debt of one connection. Times are in milliseconds, from any origin. The body of a request has one too: there
    the client sends, and the bytes left are those that it has not sent yet."""

    def __init__(self, grace_ms: float, bytes_per_ms_min: float, now_ms: float) -> None:
        self._grace_ms, self._bytes_per_ms_min = grace_ms, bytes_per_ms_min
        self._debt_ms, self._counted_ms = 0.0, now_ms
        self._waiting_bytes: int | None = None

    def wait(self, now_ms: float, waiting_bytes: int) -> float:
        """Start counting: `waiting_bytes` wait for the client. Milliseconds that it may take none of them."""
        if self._waiting_bytes is None:
            self._debt_ms = max(0.0, self._debt_ms - (now_ms - self._counted_ms))
            self._counted_ms = now_ms
        self._waiting_bytes = waiting_bytes
        return self._grace_ms - self._debt_ms

    def check(self, now_ms: float, left_bytes: int) -> float:
        """Milliseconds the client may still take nothing, given the bytes left to send; ≤ 0 means close now."""
        if self._waiting_bytes is not None:
            paid_ms = max(0, self._waiting_bytes - left_bytes) / self._bytes_per_ms_min
            self._debt_ms = max(0.0, self._debt_ms + now_ms - self._counted_ms - paid_ms)
            self._counted_ms, self._waiting_bytes = now_ms, left_bytes
        return self._grace_ms - self._debt_ms

    def rest(self, now_ms: float, left_bytes: int) -> None:
        """Stop counting: it is our turn to send."""
        self.check(now_ms, left_bytes)
        self._waiting_bytes = None


class ConnectionSet:
    """The open connections of one listener, and the tasks that serve them."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def begin_stop(self) -> None:
        self.stopping = True
        for connection in list(self.connections):
            connection.begin_stop()

    async def ended(self) -> None:
        """Returns when no connection is open and no task runs."""
        while self.connections or self.tasks:
            if self.tasks:
                await asyncio.wait(set(self.tasks))
            else:
                await asyncio.sleep(0.005)  # transports close within a few turns of the loop

    def abort(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        for connection in list(self.connections):
            connection.transport.abort()


class Connection(asyncio.BaseProtocol, ABC):
    """Base of a protocol's connection. Subclasses add `begin_stop`, and what either `asyncio.Protocol` or
    `asyncio.BufferedProtocol`, which they inherit too, asks for."""

    send_timeout_ms: ClassVar[int] = SEND_TIMEOUT_MS
    send_bytes_per_ms_min: ClassVar[float] = SEND_BYTES_PER_MS_MIN
    transport: asyncio.Transport

    def __init__(self, peers: ConnectionSet) -> None:
        self.loop = asyncio.get_running_loop()
        self.peers = peers
        self.client: tuple[str, int] | None = None
        self.admitted = True
        """False: the listener has as many connections as it may have, so this one is refused."""
        self._reading = True
        self.is_writable = True
        """The transport accepts more bytes, or the client is gone."""
        self._drained: asyncio.Event | None = None
        self._pace: SendPace | None = None
        self._pace_timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def begin_stop(self) -> None:
        """Close now when idle; otherwise answer the requests in flight, then close."""

    # -- the transport's calls -----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it
        self.client = address(transport.get_extra_info("peername"))
        self.admitted = len(self.peers.connections) < self.peers.connections_max
        self.peers.connections.add(self)
        if self.peers.stopping:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.peers.connections.discard(self)
        self._set_writable()
        for timer in (self._pace_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self._pace_timer = self._deadline_timer = self._deadline = None

    def pause_writing(self) -> None:
        self.is_writable = False
        now_ms = self.loop.time() * 1_000
        if self._pace is None:
            self._pace = SendPace(self.send_timeout_ms, self.send_bytes_per_ms_min, now_ms)
        self._check_pace_in(self._pace.wait(now_ms, self._left_bytes()))

    def resume_writing(self) -> None:
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._pace_timer = None
        if self._pace is not None and not self.transport.is_closing():
            self._pace.rest(self.loop.time() * 1_000, self._left_bytes())
        self._set_writable()

    def _set_writable(self) -> None:
        self.is_writable = True
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    # -- for subclasses ------------------------------------------------------------------------------------------------
    @property
    def is_reading(self) -> bool:
        return self._reading

    async def drain(self) -> None:
        """Wait until the transport accepts more bytes, or the client is gone."""
        if not self.is_writable:
            if self._drained is None:
                self._drained = asyncio.Event()
            await self._drained.wait()

    def read(self, wanted: bool) -> None:
        """Resume or pause reading from the socket."""
        if wanted is not self._reading and not self.transport.is_closing():
            self._reading = wanted
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def expect_within(self, timeout_ms: float | None) -> None:
        """Close the connection unless this is called again within `timeout_ms`; None: no deadline.

        The timer is kept and re-armed when it fires early: a request moves the deadline, it does not make a timer.
        """
        if timeout_ms is None:
            self._deadline = None
            return
        self._deadline = self.loop.time() + timeout_ms / 1_000
        if self._deadline_timer is None or self._deadline_timer.when() > self._deadline:
            self._arm_deadline()

    def deadline_passed(self) -> None:
        """What `expect_within` waited for has not come."""
        self.transport.close()

    # -- timers --------------------------------------------------------------------------------------------------------
    def _arm_deadline(self) -> None:
        assert self._deadline is not None
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._deadline_timer = None
        if self._deadline is None:
            return
        if self.loop.time() < self._deadline - 0.001:
            self._arm_deadline()
        elif self.transport.is_closing():
            self.transport.abort()  # the client does not take the rest
        else:
            self.deadline_passed()

    def _check_pace_in(self, patience_ms: float) -> None:
        delay_ms = max(patience_ms, SEND_CHECK_MS_MIN)
        self._pace_timer = self.loop.call_later(delay_ms / 1_000, self._check_pace)

    def _check_pace(self) -> None:
        assert self._pace is not None
        left_bytes = self._left_bytes()
        patience_ms = self._pace.check(self.loop.time() * 1_000, left_bytes)
        if patience_ms > 0:
            self._check_pace_in(patience_ms)
            return
        client = None if self.client is None else self.client[0]
        fields = {"client": client, "left_bytes": left_bytes}
        _log.info("closing the connection of a client that takes its answer too slowly", extra={"llog": fields})
        self.transport.abort()

    def _left_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + kernel_bytes(self.transport)


def kernel_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes that our kernel holds for the client; 0 where the kernel cannot say, so that its buffer counts as sent."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0
    try:
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    [size] = struct.unpack("i", answer)
    return int(size)


def address(name: object) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple | list) and len(name) >= 2 else None
