"""Pauses that end early when there is a reason: something to do, or a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Sleep = Callable[[float], Awaitable[object]]


class Pace:
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
