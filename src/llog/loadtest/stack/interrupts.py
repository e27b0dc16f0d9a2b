"""Ctrl-C and SIGTERM while a run works: the part that runs now is cancelled, and the next part begins.

So the first signal ends the load, after which the run is summarised and taken down; a second one skips the summary. The
processes of a run live in sessions of their own, so a signal of the terminal reaches only the orchestrator.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """`with Interrupts() as interrupts:` inside an event loop."""

    def __init__(self) -> None:
        self.seen = False
        self._part: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        self.seen = True
        if self._part is not None:
            self._part.cancel()

    async def run(self, part: Coroutine[Any, Any, T]) -> T | None:
        """The result of this part; None if a signal ended it."""
        task: asyncio.Task[T] = asyncio.ensure_future(part)
        self._part = task
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            self._part = None
