"""Where tasks run: in this process from the first moment, in Spark once it has joined, except small rounds.

Why it exists: a Spark session takes seconds to start, and may not be had at all. The service does not wait for it and
does not fail without it: tasks are the same functions either way, so the only difference is who runs them.

What must stay true: a job runs on one runner from beginning to end (which may do small rounds here: `small_here`); a
Spark that failed a job for a reason outside its tasks is left, and tried again after a pause, and so is one that is
gone while there are no jobs; whoever brought Spark is told by `state` why it is not there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from llog.compactor.small_here import SmallHere
from llog.errors import LlogError, SparkJobFailed, SparkSessionFailed
from llog.limits import COMPACT_HERE_BYTES_MAX, COMPACT_WINDOW_BYTES_IN_SERVICE
from llog.log.context import LogContext
from llog.pipeline.compact.plan import Resize, Sizing
from llog.pipeline.compact.windows_here import WindowsHere
from llog.pipeline.runtime.work import Runner, TaskTools, tools_of

if TYPE_CHECKING:
    from llog.pipeline.key_compact.aggregate import KeyAggregate

# A Spark that could not be had, or that went away, is tried again.
COMPACT_SPARK_REJOIN_MS: Final = 60_000


STARTING: Final = "starting"
READY: Final = "ready"
NOT_WANTED: Final = "unavailable (LLOG_COMPACTOR_SPARK is false)"
_log: Final = logging.getLogger("llog.compactor")


MakeAggregate = Callable[[TaskTools], "KeyAggregate"]
Check = Callable[[], Awaitable[None]]
"""Raises `SparkSessionFailed` where Spark is gone."""


class TaskRunner(NamedTuple):
    """Who runs tasks, and how large they are made for it."""

    runner: Runner
    sizing: Sizing
    make_aggregate: MakeAggregate | None = None
    """Its own way to aggregate keys, made in a thread; None: this process does it."""
    resize: Resize | None = None
    """Where the number of its cores may change; `sizing` does not count then."""
    check: Check | None = None
    """Asked now and then, between jobs too: those may be hours apart, and people are told that it is there."""


Join = Callable[[], Awaitable[TaskRunner]]
"""Start Spark, or find the session there is. Raises `LlogError` for a reason that can be told."""
OnState = Callable[[str], None]


class TaskRunners:
    def __init__(
        self,
        context: LogContext,
        join: Join | None = None,
        *,
        on_state: OnState | None = None,
        here_bytes_max: int = COMPACT_HERE_BYTES_MAX,
    ) -> None:
        self._context, self._join, self._here_bytes_max = context, join, here_bytes_max
        self._here = TaskRunner(
            WindowsHere(tools_of(context)),
            Sizing.in_process(COMPACT_WINDOW_BYTES_IN_SERVICE),
        )
        self._spark: TaskRunner | None = None
        self._left: list[TaskRunner] = []
        """Runners that failed, and are still to be closed: at most one between two joins."""
        self._joining: asyncio.Task[None] | None = None
        self._on_state: OnState = (lambda _: None) if on_state is None else on_state
        self.state = STARTING if join is not None else NOT_WANTED
        """Of Spark: `starting`, `ready` or `unavailable (why)`."""

    def start(self) -> None:
        """Begin to join Spark, in the background."""
        if self._join is not None and self._joining is None:
            self._joining = asyncio.create_task(self._keep_joined(self._join), name="Spark")

    @property
    def current(self) -> TaskRunner:
        return self._here if self._spark is None else self._spark

    def failed(self, used: TaskRunner, error: BaseException) -> None:
        """A job on this runner ended so: is Spark still worth using?"""
        if used is not self._spark or not isinstance(error, SparkJobFailed | SparkSessionFailed):
            return
        self._spark = None
        self._left.append(used)
        self._tell(f"unavailable ({error})")

    async def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        if self._spark is not None:
            self._left.append(self._spark)
        await self._close_left()
        await self._here.runner.close()

    async def _keep_joined(self, join: Join) -> None:
        while True:
            if self._spark is not None:
                await self._check(self._spark)
            if self._spark is None:
                try:
                    await self._close_left()
                    joined = await join()
                    small_here = SmallHere(tools_of(self._context), joined.runner, bytes_max=self._here_bytes_max)
                    self._spark = joined._replace(runner=small_here)
                    self._tell(READY)
                except LlogError as error:
                    self._tell(f"unavailable ({error})")
                except Exception as error:
                    _log.exception("Spark could not be joined")
                    self._tell(f"unavailable ({type(error).__name__}: {error})")
            await self._context.sleep(COMPACT_SPARK_REJOIN_MS / 1_000)

    async def _check(self, used: TaskRunner) -> None:
        try:
            if used.check is not None:
                await used.check()
        except SparkSessionFailed as error:
            self.failed(used, error)

    async def _close_left(self) -> None:
        while self._left:
            await self._left.pop().runner.close()

    def _tell(self, state: str) -> None:
        if state != self.state:
            self.state = state
            _log.info("Spark is %s", state)
            self._on_state(state)
