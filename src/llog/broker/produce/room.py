"""Waiting for room in the memory pool, for requests whose bytes can stay in the socket of their sender.

Three queues, each served in order: bodies that hold some of the pool already, so that what has begun can end; bodies
that begin to arrive; requests that have arrived. A body that waits for its share of incomplete bodies keeps no other
waiter from the room that there is; one that waits for room does, or large ones would wait forever.

Room is granted in a later turn of the loop than the one in which it was given back, so a request may give back what it
reserved and hand the same bytes on to an append, which takes them, before anyone else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from llog.errors import RequestOverload

if TYPE_CHECKING:
    from llog.broker.produce.pool import IncompleteBody, MemoryPool

ROOM_SPARE_FRACTION: Final = 1 / 16
"""Of the pool, never granted: for the overhead that appends add to the bytes reserved for them."""
ROOM_WAITERS_MAX: Final = 20_000
"""In one queue. Every connection waits for one frame at most."""
ROOM_GRANTS_PER_TURN: Final = 64
"""Waiters that are granted room in one turn of the loop: each goes on to handle a request."""


class RoomWaiter:
    __slots__ = ("body", "byte_length", "granted", "queue")

    def __init__(self, byte_length: int, granted: Callable[[], None], body: IncompleteBody | None, queue: int) -> None:
        self.byte_length, self.granted, self.body, self.queue = byte_length, granted, body, queue


class RoomQueue:
    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._bytes_max = pool.limit_bytes - int(pool.limit_bytes * ROOM_SPARE_FRACTION)
        self._queues: tuple[dict[RoomWaiter, None], ...] = ({}, {}, {})
        self._waking = False

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def reserve(
        self, byte_length: int, granted: Callable[[], None], body: IncompleteBody | None = None
    ) -> RoomWaiter | None:
        """Take bytes, for a body that is arriving or a request that has arrived. None: they are taken.

        Otherwise `granted` is called once they are. `RequestOverload` when too many wait, or for bytes that never fit.
        """
        number = 2 if body is None else 0 if body.held_bytes else 1
        queue = self._queues[number]
        if not queue and self._try_take(byte_length, body):
            return None
        if len(queue) >= ROOM_WAITERS_MAX or byte_length > self._pool.limit_bytes:
            raise RequestOverload("too many requests wait for memory: try again, or use another broker")
        waiter = RoomWaiter(byte_length, granted, body, number)
        queue[waiter] = None
        self._pool.notify()
        self.wake()  # those before it may wait for a share that it does not need
        return waiter

    def leave(self, waiter: RoomWaiter) -> None:
        """Wait no longer; nothing was taken."""
        del self._queues[waiter.queue][waiter]
        self.wake()

    def wake(self) -> None:
        """There may be room: look in the next turn of the loop."""
        if not self._waking and any(self._queues):
            self._waking = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._waking = False
        grants = 0
        for queue in self._queues:
            blocked: set[Hashable] = set()  # clients that have their share of incomplete bodies
            for waiter in list(queue):
                client = None if waiter.body is None else waiter.body.client
                if waiter not in queue or client in blocked:
                    continue
                if not self._has_room(waiter.byte_length):
                    return
                if grants >= ROOM_GRANTS_PER_TURN:
                    self.wake()
                    return
                if self._try_take(waiter.byte_length, waiter.body):
                    del queue[waiter]
                    grants += 1
                    waiter.granted()
                else:
                    blocked.add(client)

    def _has_room(self, byte_length: int) -> bool:
        used = self._pool.used
        return used + byte_length <= self._bytes_max or not used

    def _try_take(self, byte_length: int, body: IncompleteBody | None) -> bool:
        return self._has_room(byte_length) and (self._pool if body is None else body).try_take(byte_length)
