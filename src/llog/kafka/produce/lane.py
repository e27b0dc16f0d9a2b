"""The produce requests of one connection, submitted in the order of their frames.

A request whose topics are known and fresh is submitted at once. One that must look a topic up, or whose batches are so
large that a thread checks them, comes later, and so do all requests behind it: a producer numbers its batches in the
order of its requests. The connection bounds the requests in flight, and with them this queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Lane:
    def __init__(self) -> None:
        self._last: asyncio.Task[Any] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing waits, so that a request may be submitted at once."""
        return self._last is None

    def run(self, submit: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Await `submit()` after all earlier ones. The task goes on when its caller is gone."""
        task = asyncio.create_task(self._after(self._last, submit))
        self._last = task
        task.add_done_callback(self._done)
        return task

    async def _after(self, before: asyncio.Task[Any] | None, submit: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if before is not None:
            await asyncio.wait([before])
        return await submit()

    def _done(self, task: asyncio.Task[Any]) -> None:
        if self._last is task:
            self._last = None
