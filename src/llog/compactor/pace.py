"""Pauses that end early: when there is work, when the service stops, or when the clock was set back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

Sleep = Callable[[float], Awaitable[object]]


class Pause(NamedTuple):
    """From an instant to another, by this process's own clock. One that has not begun was noted before the clock was
    set back, and is over: nothing waits until the clock has caught up."""

    since_ms: int = 0
    until_ms: int = 0

    def left_ms(self, now_ms: int) -> int:
        return self.until_ms - now_ms if self.since_ms <= now_ms < self.until_ms else 0


class ServicePace:
    """One per service: every loop rests here, and a stop wakes them all."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep, self._stop = sleep, asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    async def rest(self, pause_ms: int, wake: asyncio.Event | None = None) -> None:
        """Until the time is over, `wake` is set (and cleared here), or the service stops."""
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
