"""Spark for a job that may have nothing to do: the session is started for the first task.

A session takes seconds to start. The driver finds out by itself, from metadata, whether there is work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llog.pipeline.compact.plan import Sizing
from llog.pipeline.key_compact.aggregate import ScratchPart, ScratchPlace, SegmentKeys
from llog.pipeline.runtime.tasks import Item, OnDone, OnPart, OnProgress, Result, Task, TaskFailed, TaskTools
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.spark.runner.worker import sent_settings
from llog.spark.sessions.preflight import check_form
from llog.spark.sessions.session import COMPACT_CORES_UNKNOWN, resize_of, sizing_of
from llog.stores.metering import OnRequests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from llog.spark.runner.key_aggregate import SparkKeyAggregate


class SparkOnDemand:
    """Runs tasks on `spark`, else on this process's session, which it starts if needed."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        on_progress: OnProgress = lambda _amount, _detail: None,
        on_requests: OnRequests = lambda _: None,
    ) -> None:
        sent_settings(settings)  # what cannot work is refused, whether there is work or not
        self._settings, self._master = settings, master
        self._on_progress, self._on_requests = on_progress, on_requests
        self._starting = asyncio.Lock()
        self._tasks: SparkTasks | None = None
        if master is not None:
            check_form(master)
        if spark is not None:
            self._take(SparkTasks(spark, settings, on_progress=on_progress))

    def _take(self, tasks: SparkTasks) -> SparkTasks:
        tasks.on_requests = self._on_requests
        self._tasks = tasks
        return tasks

    async def tasks(self) -> SparkTasks:
        async with self._starting:
            if self._tasks is not None:
                return self._tasks
            self._on_progress(0, "starting Spark")
            return self._take(
                await SparkTasks.start(self._settings, master=self._master, on_progress=self._on_progress)
            )

    async def start(self) -> bool:
        """Whether this call started it."""
        running = self._tasks is not None
        await self.tasks()
        return not running

    async def sizing(self) -> Sizing:
        """An assumption until it is started."""
        if self._tasks is None:
            return Sizing(COMPACT_CORES_UNKNOWN)
        resize = resize_of(self._tasks.spark)
        return await asyncio.to_thread(sizing_of, self._tasks.spark) if resize is None else await resize()

    async def run(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_done: OnDone[Result] | None = None,
        *,
        on_part: OnPart | None = None,
    ) -> list[Result | TaskFailed]:
        if not items:
            return []
        return await (await self.tasks()).run(task, items, on_done, on_part=on_part)

    async def close(self) -> None:
        """The session stays open."""
        if self._tasks is not None:
            await self._tasks.close()

    def key_aggregate(self, tools: TaskTools) -> KeyAggregateOnDemand:
        return KeyAggregateOnDemand(self, self._settings, tools, self._on_requests)


class KeyAggregateOnDemand:
    def __init__(self, on_demand: SparkOnDemand, settings: Settings, tools: TaskTools, on_requests: OnRequests) -> None:
        self._on_demand, self._settings, self._tools, self._on_requests = on_demand, settings, tools, on_requests
        self._aggregate: SparkKeyAggregate | None = None

    async def survivors(self, place: ScratchPlace, scanned: Sequence[SegmentKeys]) -> dict[int, ScratchPart]:
        if self._aggregate is None:
            from llog.spark.runner.key_aggregate import SparkKeyAggregate

            spark = (await self._on_demand.tasks()).spark
            self._aggregate = await asyncio.to_thread(
                SparkKeyAggregate, spark, self._settings, self._tools, self._on_requests
            )
        return await self._aggregate.survivors(place, scanned)
