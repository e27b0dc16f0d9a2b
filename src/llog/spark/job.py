"""What every job of the pipeline stands in, for commands as for programs: its stores, its runner, its progress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from llog.log.context import LogContext
from llog.opening import Use, opened_log
from llog.pipeline.runtime.progress import Advance, ToldRunner
from llog.pipeline.runtime.work import InProcessRunner, Runner, tools_of
from llog.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Place(NamedTuple):
    """Where a job's tasks run: on a session of the caller's, on this process's (started if there is none), or here."""

    spark: SparkSession | None = None
    master: str | None = None
    in_process: bool = False


class Job(NamedTuple):
    settings: Settings
    context: LogContext
    runner: ToldRunner
    advance: Advance

    @property
    def spark(self) -> SparkSession | None:
        """None: its tasks run in this process."""
        return getattr(self.runner.inner, "spark", None)


def nothing_told(_amount: int, _detail: str) -> None: ...


@asynccontextmanager
async def opened_job(
    settings: Settings,
    place: Place,
    *,
    blobs: Use = Use.NOTHING,
    segments: Use = Use.NOTHING,
    advance: Advance = nothing_told,
) -> AsyncIterator[Job]:
    """`blobs` and `segments` are what is done to the two stores beyond reading. A session is left as it is."""
    async with opened_log(settings, blobs=blobs, segments=segments) as stores:
        runner = ToldRunner(await _runner(settings, place, stores.context, advance), advance)
        try:
            yield Job(settings, stores.context, runner, advance)
        finally:
            await runner.close()


async def _runner(settings: Settings, place: Place, context: LogContext, advance: Advance) -> Runner:
    if place.in_process:
        return InProcessRunner(tools_of(context))
    from llog.spark.runner.runner import SparkRunner

    if place.spark is not None:
        return SparkRunner(place.spark, settings)
    advance(0, "starting Spark")
    return await SparkRunner.start(settings, master=place.master)
