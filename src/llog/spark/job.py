"""What every job of the pipeline stands in, for commands as for programs: its stores, its runner, its progress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from llog.log.context import LogContext
from llog.opening import Use, opened_log
from llog.pipeline.runtime.tasks import LocalTasks, OnProgress, TaskRunner, tools_of
from llog.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from llog.spark.runner.tasks import SparkTasks


class Place(NamedTuple):
    """Where a job's tasks run: on a session of the caller's, on this process's (started if there is none), or here."""

    spark: SparkSession | None = None
    master: str | None = None
    in_process: bool = False


class Job(NamedTuple):
    settings: Settings
    context: LogContext
    runner: TaskRunner
    on_progress: OnProgress
    spark: SparkSession | None = None
    """None: tasks run in this process."""


@asynccontextmanager
async def opened_job(
    settings: Settings,
    place: Place,
    *,
    blobs: Use = Use.NOTHING,
    segments: Use = Use.NOTHING,
    on_progress: OnProgress = lambda _amount, _detail: None,
) -> AsyncIterator[Job]:
    """`blobs` and `segments` are what is done to the two stores beyond reading. A session is left as it is."""
    async with opened_log(settings, blobs=blobs, segments=segments) as stores:
        if place.in_process:
            runner = LocalTasks(tools_of(stores.context), on_progress=on_progress)
            yield Job(settings, stores.context, runner, on_progress)
            return
        on_spark = await _spark_tasks(settings, place, on_progress)
        try:
            yield Job(settings, stores.context, on_spark, on_progress, on_spark.spark)
        finally:
            await on_spark.close()


async def _spark_tasks(settings: Settings, place: Place, on_progress: OnProgress) -> SparkTasks:
    from llog.spark.runner.tasks import SparkTasks

    if place.spark is not None:
        return SparkTasks(place.spark, settings, on_progress=on_progress)
    on_progress(0, "starting Spark")
    return await SparkTasks.start(settings, master=place.master, on_progress=on_progress)
