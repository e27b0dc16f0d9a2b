"""The memory pool: counts the bytes between socket and commit, and bounds them.

A broker that accepts faster than its stores write would grow until the system kills it. So bytes are taken from the
pool before they are accepted and given back once their outcome is known. Taking never waits: without room, nothing is
accepted. Bytes that can stay in the socket of their sender may wait for room instead (`room`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from llog.broker.produce.room import RoomQueue
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
        self.incomplete = IncompleteBodies(self)
        self.room = RoomQueue(self)

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
            self.notify()
            return False
        relaxed = not self.under_pressure
        self.used += byte_length
        if relaxed and self.under_pressure:
            self.notify()
        return True

    def give(self, byte_length: int) -> None:
        if not 0 <= byte_length <= self.used:
            raise InvalidArgument("byte_length", f"cannot give back {byte_length} bytes, {self.used} are taken")
        self.used -= byte_length
        self.room.wake()

    def take(self, byte_length: int) -> None:
        """Take bytes that exist already, beyond the limit if it must be."""
        self.used += byte_length

    def notify(self) -> None:
        for listener in self._listeners:
            listener()


class IncompleteBodies:
    """Bounds what bodies hold of the pool before they have arrived, so that clients that stall cannot hold all of it.

    All of them together hold INCOMPLETE_FRACTION, the bodies of one client INCOMPLETE_CLIENT_FRACTION. It must be
    possible to send a body as large as the pool, so one body at a time may exceed both. It does not count for the
    others: while it stalls, they share what it leaves of the pool.
    """

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.shared_bytes = 0
        """Held by all bodies but `large`."""
        self.client_bytes: Counter[Hashable] = Counter()
        self.client_bodies: Counter[Hashable] = Counter()
        self.large: IncompleteBody | None = None
        """The body that exceeds the bounds."""

    @property
    def used(self) -> int:
        return self.shared_bytes + (0 if self.large is None else self.large.held_bytes)

    def begin(self, client: Hashable) -> IncompleteBody:
        self.client_bodies[client] += 1
        return IncompleteBody(self, client)

    def fits(self, client: Hashable, byte_length: int) -> bool:
        limit_bytes = self.pool.limit_bytes
        if self.shared_bytes + byte_length > limit_bytes * INCOMPLETE_FRACTION:
            return False
        is_only = self.client_bodies[client] == 1
        return is_only or self.client_bytes[client] + byte_length <= limit_bytes * INCOMPLETE_CLIENT_FRACTION


class IncompleteBody:
    """What one body holds; ends with `end`."""

    __slots__ = ("_bodies", "client", "held_bytes")

    def __init__(self, bodies: IncompleteBodies, client: Hashable) -> None:
        self._bodies, self.client = bodies, client
        self.held_bytes = 0

    def try_take(self, byte_length: int) -> bool:
        """False: there is no room, and nothing was taken."""
        bodies = self._bodies
        grows_large = bodies.large is not self and not bodies.fits(self.client, byte_length)
        if grows_large and bodies.large is not None:
            return False
        if not bodies.pool.try_take(byte_length):
            return False
        if grows_large:
            self._share(-self.held_bytes)
            bodies.large = self
        self.held_bytes += byte_length
        if bodies.large is not self:
            self._share(byte_length)
        return True

    def end(self) -> None:
        """The body has arrived, or was given up; its bytes stay taken from the pool."""
        bodies, client = self._bodies, self.client
        if bodies.large is self:
            bodies.large = None
        else:
            self._share(-self.held_bytes)
        bodies.client_bodies[client] -= 1
        if not bodies.client_bodies[client]:
            del bodies.client_bodies[client], bodies.client_bytes[client]
        bodies.pool.room.wake()

    def _share(self, byte_length: int) -> None:
        self._bodies.shared_bytes += byte_length
        self._bodies.client_bytes[self.client] += byte_length
