"""The environment of a pipeline job (stores, runner, progress), and what each job does in it.

`llog pipeline …` and `llog.spark.jobs` share these functions. A log is named "topic" or "topic:partition"; no names
mean all logs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from llog.log.context import LogContext
from llog.pipeline.audit.job import audit
from llog.pipeline.audit.report import AuditReport
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.compact.round import CompactReport
from llog.pipeline.key_compact.aggregate import KeyAggregate, LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompactOptions, KeyCompactReport, key_compact
from llog.pipeline.retain import RetainedLog, RetainReport, retain_logs
from llog.pipeline.runtime.log_choice import chosen_logs
from llog.pipeline.runtime.tasks import LocalTasks, OnProgress, TaskRunner, tools_of
from llog.pipeline.vacuum.job import VacuumReport, vacuum
from llog.settings import Settings
from llog.wiring import Use, opened_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from llog.spark.runner.tasks import SparkTasks


class Place(NamedTuple):
    """Where the tasks of a job run: on the caller's session, on this process's (started if needed), or in process."""

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


# -- job_work ----------------------------------------------------------------------------------------------------------


async def do_compact(job: Job, names: Sequence[str], *, merge: bool, min_age_ms: int) -> CompactReport:
    logs = await chosen_logs(job.context, names) if names else None
    return await compact(
        job.context,
        job.runner,
        logs,
        options=replace(_sized(job), min_age_ms=min_age_ms),
        merge=merge,
        owner=f"{job.settings.compactor_id}/pipeline",
        session_timeout_ms=job.settings.session_timeout_ms,
    )


def _sized(job: Job) -> CompactOptions:
    """Windows as large as the runner can hold."""
    if job.spark is None:
        return CompactOptions(sizing=Sizing.in_process())
    from llog.spark.sessions.session import resize_of, sizing_of

    return CompactOptions(sizing=sizing_of(job.spark), resize=resize_of(job.spark))


async def do_key_compact(job: Job, names: Sequence[str], options: KeyCompactOptions) -> KeyCompactReport:
    chosen = await chosen_logs(job.context, names) if names else None
    return await key_compact(job.context, job.runner, _aggregate(job), chosen, options=options)


def _aggregate(job: Job) -> KeyAggregate:
    """On the runner's own Spark session, or in this process as the tasks are."""
    if job.spark is None:
        return LocalKeyAggregate(tools_of(job.context))
    from llog.spark.runner.key_aggregate import SparkKeyAggregate

    return SparkKeyAggregate(job.spark, job.settings, tools_of(job.context))


async def do_retain(job: Job, names: Sequence[str], *, dry_run: bool) -> RetainReport:
    def note(log: RetainedLog) -> None:
        job.on_progress(1, f"{log.topic}:{log.partition}")

    logs = await chosen_logs(job.context, names)
    return await retain_logs(job.context, logs, dry_run=dry_run, on_done=note)


async def do_vacuum(job: Job, *, dry_run: bool) -> VacuumReport:
    return await vacuum(job.context, job.runner, dry_run=dry_run)


async def do_audit(job: Job, names: Sequence[str], *, fast: bool) -> AuditReport:
    logs = await chosen_logs(job.context, names) if names else None
    return await audit(job.context, job.runner, logs=logs, fast=fast, on_progress=job.on_progress)
