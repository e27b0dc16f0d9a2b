"""Who rewrites the windows of a round, by their size: small rounds this process, all others Spark.

Why it exists: a Spark job costs some tenths of a second, whatever it does; a service that keeps up with its writers
mostly has rounds that are done by then. Spark is for the rounds that it can divide.

What must stay true: a round goes one way as a whole; where nobody knows how much there is to read, it is much.
"""

from __future__ import annotations

from collections.abc import Sequence

from llog.limits import COMPACT_HERE_BYTES_MAX
from llog.pipeline.compact.task import REWRITE_WINDOW
from llog.pipeline.compact.window import Window, Written
from llog.pipeline.compact.windows_here import OnWindowRun, WindowsHere
from llog.pipeline.runtime.work import Item, OnDone, Result, Runner, Task, TaskFailed, TaskTools


class SmallHere(WindowsHere):
    def __init__(self, tools: TaskTools, elsewhere: Runner, *, bytes_max: int = COMPACT_HERE_BYTES_MAX) -> None:
        super().__init__(tools)
        self._elsewhere, self._bytes_max = elsewhere, bytes_max

    async def run(
        self, task: Task[Item, Result], items: Sequence[Item], on_done: OnDone[Result] | None = None
    ) -> list[Result | TaskFailed]:
        return await self._elsewhere.run(task, items, on_done)

    async def run_windows(
        self, windows: Sequence[Window], on_done: OnDone[Written], on_run: OnWindowRun
    ) -> list[Written | TaskFailed]:
        if is_small(windows, self._bytes_max):
            return await super().run_windows(windows, on_done, on_run)
        return await self._elsewhere.run(REWRITE_WINDOW, windows, on_done)

    async def close(self) -> None:
        await self._elsewhere.close()


def is_small(windows: Sequence[Window], bytes_max: int) -> bool:
    lengths = [source.byte_length for window in windows for source in window.objects]
    return None not in lengths and sum(length or 0 for length in lengths) <= bytes_max
