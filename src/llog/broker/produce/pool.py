"""The memory pool: counts the bytes between socket and commit, and bounds them.

A broker that accepts faster than its stores write would grow until the system kills it. So bytes are taken from the
pool before they are accepted and given back once their outcome is known. Taking never waits: without room, nothing is
accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from llog.errors import InvalidArgument

# From this fraction of LLOG_BATCH_MAX_BUFFER_BYTES on, the buffer is flushed without waiting.
BATCH_PRESSURE_FRACTION: Final = 0.75
# What bodies that have not arrived completely may hold of the pool: all of them, and those of one client.
INCOMPLETE_FRACTION: Final = 0.5
INCOMPLETE_CLIENT_FRACTION: Final = 0.25


class MemoryPool:
    """Used on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise InvalidArgument("limit_bytes", f"must be at least 1, got {limit_bytes}")
        self.limit_bytes, self.used = limit_bytes, 0
        self._pressure_bytes = limit_bytes * BATCH_PRESSURE_FRACTION
        self._listeners: list[Callable[[], None]] = []

    @property
    def fraction(self) -> float:
        return self.used / self.limit_bytes

    @property
    def under_pressure(self) -> bool:
        return self.used >= self._pressure_bytes

    def on_pressure(self, listener: Callable[[], None]) -> None:
        """Call `listener` when use rises to BATCH_PRESSURE_FRACTION, and when a request does not fit."""
        self._listeners.append(listener)

    def try_take(self, byte_length: int) -> bool:
        """False: there is no room, and nothing was taken."""
        if byte_length < 0:
            raise InvalidArgument("byte_length", f"must not be negative, got {byte_length}")
        if self.used + byte_length > self.limit_bytes:
            self._notify()
            return False
        relaxed = not self.under_pressure
        self.used += byte_length
        if relaxed and self.under_pressure:
            self._notify()
        return True

    def give(self, byte_length: int) -> None:
        if not 0 <= byte_length <= self.used:
            raise InvalidArgument("byte_length", f"cannot give back {byte_length} bytes, {self.used} are taken")
        self.used -= byte_length

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


class IncompleteBodies:
    """Bounds what bodies hold of the pool before they have arrived, so that clients that stall cannot hold all of it.

    A body that is the only incomplete one, or the only one of its client, may exceed the bound: it must be possible to
    send a body as large as the pool.
    """

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self._bytes, self._bodies = 0, 0
        self._client_bytes: Counter[Hashable] = Counter()
        self._client_bodies: Counter[Hashable] = Counter()

    @property
    def used(self) -> int:
        return self._bytes

    def begin(self, client: Hashable) -> None:
        self._bodies += 1
        self._client_bodies[client] += 1

    def try_take(self, client: Hashable, byte_length: int) -> bool:
        """False: there is no room, and nothing was taken."""
        limit_bytes = self.pool.limit_bytes
        if self._bodies > 1 and self._bytes + byte_length > limit_bytes * INCOMPLETE_FRACTION:
            return False
        held = self._client_bytes[client]
        if self._client_bodies[client] > 1 and held + byte_length > limit_bytes * INCOMPLETE_CLIENT_FRACTION:
            return False
        if not self.pool.try_take(byte_length):
            return False
        self._bytes += byte_length
        self._client_bytes[client] += byte_length
        return True

    def end(self, client: Hashable, byte_length: int) -> None:
        """The body has arrived, or was given up; its `byte_length` bytes stay taken from the pool."""
        self._bytes -= byte_length
        self._bodies -= 1
        self._client_bytes[client] -= byte_length
        self._client_bodies[client] -= 1
        if not self._client_bodies[client]:
            del self._client_bodies[client], self._client_bytes[client]
