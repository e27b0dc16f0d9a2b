"""A bound on bytes in hand: whoever takes some waits until there is room.

One that alone is larger than the bound gets its turn when nothing else is held, so nothing waits for ever. Turns go in
the order of asking.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._held = bytes_max, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, byte_length: int) -> AsyncIterator[None]:
        await self._acquire(byte_length)
        try:
            yield
        finally:
            self._release(byte_length)

    async def _acquire(self, byte_length: int) -> None:
        if not self._waiting and self._fits(byte_length):
            self._held += byte_length
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((byte_length, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(byte_length)  # it was given just now
            raise

    def _fits(self, byte_length: int) -> bool:
        return not self._held or self._held + byte_length <= self._bytes_max

    def _release(self, byte_length: int) -> None:
        self._held -= byte_length
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled
                self._waiting.popleft()
                continue
            if not self._fits(wanted):
                return
            self._waiting.popleft()
            self._held += wanted
            turn.set_result(None)
