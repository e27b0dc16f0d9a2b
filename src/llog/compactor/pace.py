"""Pauses that end early: when there is work, when the service stops, or when the clock was set back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

Sleep = Callable[[float], Awaitable[object]]


class Pause(NamedTuple):
    """A pause between two instants of this process's clock. A pause that begins in the future was noted before the
    clock was set back; it counts as over, so that nothing waits until the clock has caught up."""

    since_ms: int = 0
    until_ms: int = 0

    def left_ms(self, now_ms: int) -> int:
        return self.until_ms - now_ms if self.since_ms <= now_ms < self.until_ms else 0


class ServicePace:
    """One per service: every loop pauses with it, and a stop wakes all of them."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep, self._stop = sleep, asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    async def until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; a stop cancels it."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def rest(self, pause_ms: int, wake: asyncio.Event | None = None) -> None:
        """Returns when the time is over, `wake` is set (`rest` clears it), or the service stops."""
        ends = [asyncio.ensure_future(self._sleep(pause_ms / 1_000)), asyncio.ensure_future(self._stop.wait())]
        if wake is not None:
            ends.append(asyncio.ensure_future(wake.wait()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        if wake is not None:
            wake.clear()
