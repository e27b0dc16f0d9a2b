"""A runner that tells how far its tasks have come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llog.pipeline.runtime.work import Item, OnDone, Result, Runner, Task, TaskFailed

Advance = Callable[[int, str], None]
"""How much further it came, and what it is at."""


class ToldRunner:
    """Passes everything on to another runner; `inner` is that one."""

    def __init__(self, inner: Runner, advance: Advance) -> None:
        self.inner, self._advance = inner, advance
        self._done = self._planned = 0

    async def run(
        self, task: Task[Item, Result], items: Sequence[Item], on_done: OnDone[Result] | None = None
    ) -> list[Result | TaskFailed]:
        def told(number: int, outcome: Result | TaskFailed) -> None:
            self._done += 1
            self._tell(1)
            if on_done is not None:
                on_done(number, outcome)

        self._planned += len(items)
        self._tell(0)
        return await self.inner.run(task, items, told)

    async def close(self) -> None:
        await self.inner.close()

    def _tell(self, more: int) -> None:
        self._advance(more, f"{self._done} of {self._planned} tasks")
