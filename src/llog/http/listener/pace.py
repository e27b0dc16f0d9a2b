"""How slowly a client may take its answers.

Why it exists: an answer holds memory until its client has taken it. One that takes nothing is soon noticed; one that
takes a few bytes now and then would hold its answer for days, and a handful of those all the memory that there is for
answers. So time is counted, while bytes wait for the client: what it takes pays for some of that time, what is left is
its debt.

    debt grows by the time that bytes wait, and shrinks by the time that the bytes taken may cost, and while none wait

What must stay true: an answer is under way for the grace, plus its bytes at the slowest rate, at most; whoever keeps
above that rate is never cut off; nothing is saved up, so that a stream read quickly for days is judged as any other.
Only the client's time is counted, never ours; and taken is what reached the client's machine. (What left for our own
kernel would not do: that takes megabytes at once, and then nothing for as long as a slow client needs for a third of
them.)
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from typing import Any, ClassVar, Final

from llog.http.listener.connection import GuardedConnection

# A client that takes none of its answer for so long is cut off.
HTTP_SEND_TIMEOUT_MS: Final = 30_000
# … and so is one that takes it slower than this, beyond that time: 4 MiB have three minutes, 64 MiB have 40. Whoever is
# slower by nature asks for less at a time.
HTTP_SEND_BYTES_PER_MS_MIN: Final = 32
# How often a client that is about to be cut off is looked at.
HTTP_SEND_CHECK_MS_MIN: Final = 20


_log: Final = logging.getLogger("llog.http")


class SendPace:
    """The debt of one connection. Times are in milliseconds, from any origin."""

    def __init__(self, grace_ms: float, bytes_per_ms_min: float, now_ms: float) -> None:
        self._grace_ms, self._bytes_per_ms_min = grace_ms, bytes_per_ms_min
        self._debt_ms, self._counted_ms = 0.0, now_ms
        self._waiting_bytes: int | None = None

    def wait(self, now_ms: float, waiting_bytes: int) -> float:
        """From now on so many bytes wait. How long the client may take none of them."""
        if self._waiting_bytes is None:
            self._debt_ms = max(0.0, self._debt_ms - (now_ms - self._counted_ms))
            self._counted_ms = now_ms
        self._waiting_bytes = waiting_bytes
        return self._grace_ms - self._debt_ms

    def look(self, now_ms: float, left_bytes: int) -> float:
        """So many are left. How long the client may take none of them; nothing, or less: it was too slow."""
        if self._waiting_bytes is not None:
            paid_ms = max(0, self._waiting_bytes - left_bytes) / self._bytes_per_ms_min
            self._debt_ms = max(0.0, self._debt_ms + now_ms - self._counted_ms - paid_ms)
            self._counted_ms, self._waiting_bytes = now_ms, left_bytes
        return self._grace_ms - self._debt_ms

    def rest(self, now_ms: float, left_bytes: int) -> None:
        """None wait any more: the rest is ours to send."""
        self.look(now_ms, left_bytes)
        self._waiting_bytes = None


class PacedConnection(GuardedConnection):
    """A connection whose answers must move."""

    send_timeout_ms: ClassVar[int] = HTTP_SEND_TIMEOUT_MS
    """The grace: what a client that takes nothing gets."""
    send_bytes_per_ms_min: ClassVar[float] = HTTP_SEND_BYTES_PER_MS_MIN

    _pace: SendPace | None = None
    """Of a connection that had to wait once; most never do."""
    _stalled: asyncio.TimerHandle | None = None
    """Runs while the client owes us room for its answer."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch_sending(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._watch_sending(None)
        super().resume_writing()

    def _watch_sending(self, waiting_bytes: int | None) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        now_ms = self.loop.time() * 1_000
        if waiting_bytes is not None:
            if self._pace is None:
                self._pace = SendPace(self.send_timeout_ms, self.send_bytes_per_ms_min, now_ms)
            self._look_again(self._pace.wait(now_ms, waiting_bytes + kernel_bytes(self.transport)))
        elif self._pace is not None and not self.transport.is_closing():
            self._pace.rest(now_ms, self._left_bytes())

    def _left_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + kernel_bytes(self.transport)

    def _look_again(self, patience_ms: float) -> None:
        delay_ms = max(patience_ms, HTTP_SEND_CHECK_MS_MIN)
        self._stalled = self.loop.call_later(delay_ms / 1_000, self._check_pace)

    def _check_pace(self) -> None:
        assert self._pace is not None
        left_bytes = self._left_bytes()
        patience_ms = self._pace.look(self.loop.time() * 1_000, left_bytes)
        if patience_ms > 0:
            self._look_again(patience_ms)
            return
        client = None if self.client is None else self.client[0]
        _log.info("a client took its answer too slowly", extra={"llog": {"client": client, "left_bytes": left_bytes}})
        self.transport.abort()


def kernel_bytes(transport: asyncio.BaseTransport) -> int:
    """What our kernel holds for the client. 0 where it does not tell: then its buffer counts as the client's."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0
    try:
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    [size] = struct.unpack("i", answer)
    return int(size)


def paced(head_timeout_ms: int) -> type[Any]:
    """The connection class with this patience for a request's head."""
    return type("PacedConnection", (PacedConnection,), {"head_timeout_ms": head_timeout_ms})
