"""One task that wakes groups at their deadlines.

A heartbeat moves a deadline back and leaves the wheel alone: a group is woken at the deadline that it had, finds
nothing due, and is set anew. So groups with many members cost the wheel a wake per session, not per heartbeat.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

WAKES_PER_TURN: Final = 64
"""Groups that are woken before other tasks have their turn."""
LATE_MS: Final = 250
LATE_GRACE_MS: Final = 500
"""A process that was held up for `LATE_MS` first has this long to read the requests that arrived meanwhile: members are
not taken for silent because their coordinator stood still (rule G7)."""
SLEEP_MS_MAX: Final = 1_000
"""The wheel looks again this often, so that a clock that jumps delays nothing for long."""

T = TypeVar("T")
_log: Final = logging.getLogger("llog.broker.groups")


class Wheel(Generic[T]):
    def __init__(
        self, wake: Callable[[T], None], *, now_ms: Callable[[], int], sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        self._wake, self._now_ms, self._sleep = wake, now_ms, sleep
        self._heap: list[tuple[int, int, T]] = []
        self._numbers = 0
        self._earlier = asyncio.Event()

    def at(self, at_ms: int, what: T) -> None:
        """Wake `what` then. It may be woken too early or without need, never too late."""
        first = not self._heap or at_ms < self._heap[0][0]
        self._numbers += 1
        heapq.heappush(self._heap, (at_ms, self._numbers, what))
        if first:
            self._earlier.set()

    async def run(self) -> None:
        while True:
            self._earlier.clear()
            now_ms = self._now_ms()
            woken = 0
            if self._heap and now_ms - self._heap[0][0] > LATE_MS:
                await self._sleep(LATE_GRACE_MS / 1_000)
                now_ms = self._now_ms()
            while self._heap and self._heap[0][0] <= now_ms:
                _, _, what = heapq.heappop(self._heap)
                try:
                    self._wake(what)
                except Exception:
                    _log.exception("a group's timer failed")
                woken += 1
                if woken % WAKES_PER_TURN == 0:
                    await self._sleep(0)
            wait_ms = self._heap[0][0] - self._now_ms() if self._heap else SLEEP_MS_MAX
            if wait_ms > 0:
                await self._pause(min(wait_ms, SLEEP_MS_MAX))

    async def _pause(self, ms: float) -> None:
        try:
            await asyncio.wait_for(self._earlier.wait(), ms / 1_000)
        except TimeoutError:
            pass
