"""What a connection's frames and answers hold of the memory pools.

Two pools, so that neither kind of request can hold up the other. Frames of Produce come out of the broker's pool, which
counts the bytes between socket and commit: while stores are slow, producers wait. All other frames, and all answers,
come out of a pool of the front end: while clients take their answers slowly, other clients wait for theirs.

A frame that is arriving holds room for what has arrived and at most as much again; what clients announce costs nothing.
Frames that have not arrived hold at most a share of their pool (`IncompleteBodies`). No frame is larger than a quarter
of its pool, so a pool can always finish the frames that have begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llog.broker.produce.pool import IncompleteBody, MemoryPool
from llog.broker.produce.room import RoomWaiter
from llog.limits import KIB, MIB

PRODUCE_KEY: Final = 0
FRAME_BYTES_MAX: Final = 100 * MIB
"""Of Produce. Kafka's default, `socket.request.max.bytes`."""
SMALL_FRAME_BYTES_MAX: Final = 8 * MIB
"""Of all other requests, which carry no records. A request that names 100,000 partitions has about 3 MiB."""
UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 512 * KIB
"""Of a client that has not authenticated. Kafka's default, `sasl.server.max.receive.size`."""
SMALL_FRAME_FACTOR: Final = 8
"""Memory per byte of a frame without records: it is decoded into small values."""
REQUEST_BYTES: Final = 4 * KIB
"""Memory of a request beside its frame while it is in flight: slot, task, decoded values."""
FRAME_PART_BYTES: Final = 256 * KIB
"""The first part of a frame that room is reserved for; each further part doubles what has arrived."""
FRAME_POOL_FRACTION: Final = 0.25
FRONT_END_BYTES_MAX: Final = 256 * MIB
"""Of the front end's pool: frames without records, and answers."""
ANSWERS_FRACTION: Final = 0.75
"""Of the front end's pool, what handlers may hold for their answers."""


class FrameShare:
    """What one frame holds, from its admission until its request gives it back."""

    __slots__ = ("_body", "_factor", "_held_bytes", "_on_room", "_pool", "_waiter", "_wanted_bytes")

    def __init__(self, pool: MemoryPool, factor: int, on_room: Callable[[], None]) -> None:
        """`on_room` is called when room that `reserve` could not get at once was granted."""
        self._pool, self._factor, self._on_room = pool, factor, on_room
        self._held_bytes = self._wanted_bytes = 0
        self._body: IncompleteBody | None = None
        self._waiter: RoomWaiter | None = None

    @property
    def waits(self) -> bool:
        return self._waiter is not None

    def arrive_slowly(self, client: str) -> None:
        """The frame has not arrived completely: it takes its share of incomplete ones."""
        self._body = self._pool.incomplete.begin(client)

    def reserve(self, byte_length: int) -> bool:
        """Room for the first bytes of the frame. `RequestOverload` when too many others wait."""
        if self._waiter is not None:
            return False
        self._wanted_bytes = REQUEST_BYTES + byte_length * self._factor - self._held_bytes
        if self._wanted_bytes <= 0:
            return True
        self._waiter = self._pool.room.reserve(self._wanted_bytes, self._granted, self._body)
        if self._waiter is not None:
            return False
        self._held_bytes += self._wanted_bytes
        return True

    def _granted(self) -> None:
        self._waiter = None
        self._held_bytes += self._wanted_bytes
        self._on_room()

    def arrived(self) -> None:
        """The frame has arrived completely, or never will."""
        if self._body is not None:
            self._body.end()
            self._body = None

    def give(self) -> None:
        """Hold nothing any more."""
        if self._waiter is not None:
            self._pool.room.leave(self._waiter)
            self._waiter = None
        self.arrived()
        if self._held_bytes:
            self._pool.give(self._held_bytes)
            self._held_bytes = 0


class AnswerShare:
    """What one answer holds of the front end's pool until the client has taken it."""

    __slots__ = ("_pool", "held_bytes")

    def __init__(self, pool: MemoryPool) -> None:
        self._pool, self.held_bytes = pool, 0

    def hold(self, byte_length: int) -> bool:
        """Hold bytes for records that are about to be read, in addition to earlier ones. False: there is no room, so
        answer without them."""
        if self._pool.used and self._pool.used + byte_length > self._pool.limit_bytes * ANSWERS_FRACTION:
            return False
        self._pool.take(byte_length)
        self.held_bytes += byte_length
        return True

    def settle(self, byte_length: int) -> None:
        """The answer exists and has this size."""
        if byte_length > self.held_bytes:
            self._pool.take(byte_length - self.held_bytes)
        elif byte_length < self.held_bytes:
            self._pool.give(self.held_bytes - byte_length)
        self.held_bytes = byte_length
