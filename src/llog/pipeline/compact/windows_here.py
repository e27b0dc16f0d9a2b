"""The runner of windows in the driver's own process: it tells of each run, not only of each window.

Why it exists: a log is published by a dozen small writes one after the other, which mostly wait for a disk. Told early,
the driver does that while the rest of the window is still being written, instead of afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from llog.pipeline.compact.task import RunOutcome, Window, Written, rewrite_window
from llog.pipeline.runtime.work import InProcessRunner, OnDone, TaskFailed, TaskTools, attempted

COMPACT_TASKS_IN_PROCESS: Final = 1


OnWindowRun = Callable[[int, int, RunOutcome], None]
"""The number of the window, of the run in it, and what became of the run."""


class WindowsHere(InProcessRunner):
    """One window at a time: its threads use all cores, and its bytes are in memory."""

    def __init__(
        self, tools: TaskTools, *, at_once: int = COMPACT_TASKS_IN_PROCESS, on_window: Callable[[], None] | None = None
    ) -> None:
        super().__init__(tools, at_once=at_once)
        self._on_window = on_window

    async def run_windows(
        self, windows: Sequence[Window], on_done: OnDone[Written], on_run: OnWindowRun
    ) -> list[Written | TaskFailed]:
        """As `run`, and `on_run` is told of each run as soon as its segment is written."""
        slots = asyncio.Semaphore(self._at_once)

        async def one(number: int, window: Window) -> Written | TaskFailed:
            async with slots:
                function = partial(rewrite_window, on_run=partial(on_run, number))
                outcome: Written | TaskFailed = await attempted(function, self._tools, window)
            on_done(number, outcome)
            if self._on_window is not None:
                self._on_window()
            return outcome

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, window)) for number, window in enumerate(windows)]
        return [task.result() for task in tasks]
