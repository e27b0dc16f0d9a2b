"""Where the compactor's tasks run: in this process from the start, on Spark once it has joined, except small rounds.

A Spark session takes seconds to start, and may not start at all. The service does not wait for it and does not fail
without it: tasks are the same functions either way.

A job uses one backend from beginning to end. A Spark that fails a job for a reason outside its tasks, or that is gone
between jobs, is left and joined again after a pause; `spark_state` gives the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llog.errors import LlogError, SparkJobFailed, SparkSessionFailed
from llog.limits import COMPACT_HERE_BYTES_MAX, COMPACT_WINDOW_BYTES_IN_SERVICE
from llog.log.context import LogContext
from llog.pipeline.compact.plan import Resize, Sizing
from llog.pipeline.compact.task import REWRITE_WINDOW
from llog.pipeline.runtime.tasks import (
    Item,
    LocalTasks,
    OnDone,
    OnPart,
    Result,
    Task,
    TaskFailed,
    TaskRunner,
    TaskTools,
    tools_of,
)
from llog.stores.metering import OnRequests

if TYPE_CHECKING:
    from llog.pipeline.key_compact.aggregate import KeyAggregate

COMPACT_SPARK_REJOIN_MS: Final = 60_000
"""Pause between attempts to join Spark, and between checks of a joined session."""

STARTING: Final = "starting"
READY: Final = "ready"
NOT_WANTED: Final = "unavailable (LLOG_COMPACTOR_SPARK is false)"
_log: Final = logging.getLogger("llog.compactor")

MakeAggregate = Callable[[TaskTools], "KeyAggregate"]
CheckSession = Callable[[], Awaitable[None]]
"""Raises `SparkSessionFailed` when the session is gone."""


class Backend(NamedTuple):
    """A runner, and how large tasks are made for it."""

    runner: TaskRunner
    sizing: Sizing
    make_aggregate: MakeAggregate | None = None
    """Makes the backend's own aggregation of keys, in a thread; None: this process aggregates."""
    resize: Resize | None = None
    """Replaces `sizing` where the number of cores may change."""
    check: CheckSession | None = None
    """Called between jobs too: they may be hours apart, and the health page shows the state of Spark."""
    count_requests: Callable[[OnRequests], None] | None = None
    """Registers the receiver of the requests to object stores that tasks make in other processes."""


JoinSpark = Callable[[], Awaitable[Backend]]
"""Starts Spark or finds the running session. Raises `LlogError` with the reason when it cannot."""
OnSparkState = Callable[[str], None]


class TasksBySize:
    """Rewrites small rounds of windows locally and sends every other run to Spark.

    A Spark job costs some tenths of a second whatever it does; most rounds of a service that keeps up with its writers
    take less. A round goes one way as a whole; a round of unknown size is large.
    """

    def __init__(self, local: TaskRunner, spark: TaskRunner, *, local_bytes_max: int = COMPACT_HERE_BYTES_MAX) -> None:
        self._local, self._spark, self._local_bytes_max = local, spark, local_bytes_max

    async def run(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_done: OnDone[Result] | None = None,
        *,
        on_part: OnPart | None = None,
    ) -> list[Result | TaskFailed]:
        small = task.place == REWRITE_WINDOW.place and is_small(items, self._local_bytes_max)
        runner = self._local if small else self._spark
        return await runner.run(task, items, on_done, on_part=on_part)

    async def close(self) -> None:
        await self._spark.close()


def is_small(windows: Sequence[Any], bytes_max: int) -> bool:
    lengths = [source.byte_length for window in windows for source in window.objects]
    return None not in lengths and sum(length or 0 for length in lengths) <= bytes_max


class Backends:
    def __init__(
        self,
        context: LogContext,
        join: JoinSpark | None = None,
        *,
        on_state: OnSparkState | None = None,
        on_requests: OnRequests = lambda _: None,
        local_bytes_max: int = COMPACT_HERE_BYTES_MAX,
    ) -> None:
        self._context, self._join, self._local_bytes_max = context, join, local_bytes_max
        self._on_requests = on_requests
        self._local = Backend(LocalTasks(tools_of(context)), Sizing.in_process(COMPACT_WINDOW_BYTES_IN_SERVICE))
        self._spark: Backend | None = None
        self._to_close: list[Backend] = []
        """Backends that failed: at most one between two joins."""
        self._joining: asyncio.Task[None] | None = None
        self._on_state: OnSparkState = (lambda _: None) if on_state is None else on_state
        self.spark_state = STARTING if join is not None else NOT_WANTED
        """`starting`, `ready` or `unavailable (reason)`."""

    def start(self) -> None:
        """Join Spark in the background."""
        if self._join is not None and self._joining is None:
            self._joining = asyncio.create_task(self._keep_joined(self._join), name="Spark")

    @property
    def current(self) -> Backend:
        return self._local if self._spark is None else self._spark

    def failed(self, backend: Backend, error: BaseException) -> None:
        """Leave Spark if a job failed on it for a reason outside its tasks."""
        if backend is not self._spark or not isinstance(error, SparkJobFailed | SparkSessionFailed):
            return
        self._spark = None
        self._to_close.append(backend)
        self._set_state(f"unavailable ({error})")

    async def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        if self._spark is not None:
            self._to_close.append(self._spark)
        await self._close_failed()
        await self._local.runner.close()

    async def _keep_joined(self, join: JoinSpark) -> None:
        while True:
            if self._spark is not None:
                await self._check(self._spark)
            if self._spark is None:
                try:
                    await self._close_failed()
                    joined = await join()
                    if joined.count_requests is not None:
                        joined.count_requests(self._on_requests)
                    by_size = TasksBySize(self._local.runner, joined.runner, local_bytes_max=self._local_bytes_max)
                    self._spark = joined._replace(runner=by_size)
                    self._set_state(READY)
                except LlogError as error:
                    self._set_state(f"unavailable ({error})")
                except Exception as error:
                    _log.exception("Spark could not be joined")
                    self._set_state(f"unavailable ({type(error).__name__}: {error})")
            await self._context.sleep(COMPACT_SPARK_REJOIN_MS / 1_000)

    async def _check(self, backend: Backend) -> None:
        try:
            if backend.check is not None:
                await backend.check()
        except SparkSessionFailed as error:
            self.failed(backend, error)

    async def _close_failed(self) -> None:
        while self._to_close:
            await self._to_close.pop().runner.close()

    def _set_state(self, state: str) -> None:
        if state != self.spark_state:
            self.spark_state = state
            _log.info("Spark is %s", state)
            self._on_state(state)
