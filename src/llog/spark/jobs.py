"""The jobs of the data pipeline as functions for programs and notebooks; `llog pipeline …` runs the same jobs.

    from llog.spark import jobs

    report = jobs.compact("orders", "visits:3", merge=True)      # topics, or topic:partition; without names all logs
    report = jobs.export("orders", "iceberg:shop.orders", spark=spark)
    report = jobs.vacuum(dry_run=True, in_process=True)

Each function returns the report that the command prints as JSON. The report holds the failure of a single log; a
failure of the whole job is raised. Tasks run on `spark`, else on the session of this process (`llog.spark.session`,
started for the first task and left running), or with `in_process` in this process, without Spark. `settings` name the
stores; the default is the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from llog.log.context import LogContext
from llog.log.keys import check_topic
from llog.pipeline.audit.job import audit as audit_logs
from llog.pipeline.audit.report import AuditReport
from llog.pipeline.compact.job import CompactOptions
from llog.pipeline.compact.job import compact as compact_logs
from llog.pipeline.compact.plan import Sizing
from llog.pipeline.compact.round import CompactReport
from llog.pipeline.key_compact.aggregate import KeyAggregate, LocalKeyAggregate
from llog.pipeline.key_compact.job import key_compact as key_compact_logs
from llog.pipeline.key_compact.report import KeyCompactOptions, KeyCompactReport
from llog.pipeline.retain import RetainedLog, RetainReport, retain_logs
from llog.pipeline.runtime.log_choice import chosen_logs
from llog.pipeline.runtime.tasks import LocalTasks, OnProgress, TaskRunner, tools_of
from llog.pipeline.vacuum.job import VacuumReport
from llog.pipeline.vacuum.job import vacuum as vacuum_stores
from llog.settings import Settings
from llog.stores.objects.wrappers import ObjectMeter
from llog.telemetry.process_logs import ensure_audit_lines
from llog.wiring import Use, Wrapping, opened_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from llog.pipeline.export.job import ExportReport
    from llog.spark.runner.on_demand import SparkOnDemand

T = TypeVar("T")


def compact(
    *logs: str,
    merge: bool = False,
    min_age_ms: int = 0,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> CompactReport:
    """Rewrite shared blobs into segments, up to the present ends of the logs; `merge` also joins small segments."""
    return _run(
        lambda job: do_compact(job, logs, merge=merge, min_age_ms=min_age_ms),
        settings,
        Place(spark, in_process=in_process),
        segments=Use.PUT,
    )


def key_compact(
    *logs: str,
    dry_run: bool = False,
    force: bool = False,
    bytes_per_second: float | None = None,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> KeyCompactReport:
    """Keep the last record of every key, for topics with that policy. `bytes_per_second` limits reading: None uses the
    setting, 0 means no limit."""
    settings = settings or Settings.from_env()
    rate = settings.key_compact_bytes_per_second if bytes_per_second is None else bytes_per_second
    options = KeyCompactOptions(dry_run=dry_run, force=force, bytes_per_second=rate or None).checked()
    place = Place(spark, in_process=in_process)
    return _run(lambda job: do_key_compact(job, logs, options), settings, place, segments=Use.PUT)


def retain(*logs: str, dry_run: bool = False, settings: Settings | None = None) -> RetainReport:
    """Raise log starts by `retention.ms` and `retention.bytes`. Changes metadata only, without Spark."""
    return _run(lambda job: do_retain(job, logs, dry_run=dry_run), settings, Place(in_process=True))


def vacuum(
    *,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> VacuumReport:
    """Delete objects that nothing names and that are older than the grace."""
    use, place = Use.LIST if dry_run else Use.PUT, Place(spark, in_process=in_process)
    return _run(lambda job: do_vacuum(job, dry_run=dry_run), settings, place, blobs=use, segments=use)


def audit(
    *logs: str,
    fast: bool = False,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> AuditReport:
    """Compare every entry with its object; without `logs`, also every old object with the entries. `report.clean` is
    the verdict. With `fast` no object is read."""
    place = Place(spark, in_process=in_process)
    return _run(lambda job: do_audit(job, logs, fast=fast), settings, place, blobs=Use.LIST, segments=Use.LIST)


def export(
    topic: str,
    to: str,
    *,
    decode: Literal["raw", "json", "avro", "avro-confluent"] = "raw",
    schema: str = "",
    schema_dir: str = "",
    subject: str = "",
    on_error: Literal["column", "quarantine", "fail"] = "column",
    prefix: str = "",
    by_date: bool = True,
    allow_gaps: bool = False,
    catalog: str | None = None,
    warehouse: str | None = None,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> ExportReport:
    """Export the records since the last export `to` `parquet:URL` or `iceberg:namespace.table`, each once. `schema` is
    the text of a JSON Schema or Avro schema. For `avro-confluent` the registry of the settings, or `schema_dir`, has
    the schemas by id; without `schema`, the columns are those of the newest one of `subject` (`{topic}-value`)."""
    from llog.pipeline.export.decode import Decoding
    from llog.spark.export_work import Schemas, do_export, parse_destination, refuse_unfit, url_of

    destination = parse_destination(to)
    refuse_unfit(destination.kind, {"catalog": catalog, "warehouse": warehouse}, {})
    destination = destination._replace(
        catalog=catalog, warehouse=None if warehouse is None else url_of(warehouse), by_date=by_date
    )
    decoding = Decoding(decode, schema, on_error, prefix)
    return _run(
        lambda job: do_export(
            job,
            check_topic(topic),
            destination,
            decoding,
            allow_gaps=allow_gaps,
            schemas=Schemas(schema_dir, subject),
        ),
        settings,
        Place(spark, in_process=in_process),
    )


def _run(
    work: Callable[[Job], Awaitable[T]],
    settings: Settings | None,
    place: Place,
    *,
    blobs: Use = Use.NOTHING,
    segments: Use = Use.NOTHING,
) -> T:
    async def main() -> T:
        async with opened_job(settings or Settings.from_env(), place, blobs=blobs, segments=segments) as job:
            return await work(job)

    return _finished(main())


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; in a thread where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="llog-job") as thread:
        return thread.submit(asyncio.run, work).result()


# -- jobs on opened stores, also for `llog pipeline …` -----------------------------------------------------------------


class Place(NamedTuple):
    """Where the tasks of a job run: on the caller's session, on this process's (started if needed), or in process."""

    spark: SparkSession | None = None
    master: str | None = None
    in_process: bool = False


class _Counting(Protocol):
    object_requests: dict[str, int]


Counted = TypeVar("Counted", bound=_Counting)


class Job(NamedTuple):
    settings: Settings
    context: LogContext
    runner: TaskRunner
    on_progress: OnProgress
    meter: ObjectMeter
    """Counts the requests of the job and its tasks to object stores."""
    on_spark: SparkOnDemand | None = None
    """None: tasks run in this process."""

    def counted(self, report: Counted) -> Counted:
        """The report of the finished job, with the requests that it took."""
        report.object_requests = self.meter.requests()
        return report


@asynccontextmanager
async def opened_job(
    settings: Settings,
    place: Place,
    *,
    blobs: Use = Use.NOTHING,
    segments: Use = Use.NOTHING,
    on_progress: OnProgress = lambda _amount, _detail: None,
) -> AsyncIterator[Job]:
    """`blobs` and `segments`: the use of the two stores beyond reading. Spark is started for the first task; the
    session stays open."""
    ensure_audit_lines()
    meter = ObjectMeter()
    metered = Wrapping(lambda store: store, meter.wrap)
    async with opened_log(settings, blobs=blobs, segments=segments, wrapping=metered) as stores:
        if place.in_process:
            runner = LocalTasks(tools_of(stores.context), on_progress=on_progress)
            yield Job(settings, stores.context, runner, on_progress, meter)
            return
        from llog.spark.runner.on_demand import SparkOnDemand

        on_spark = SparkOnDemand(
            settings, place.spark, master=place.master, on_progress=on_progress, on_requests=meter.add
        )
        try:
            yield Job(settings, stores.context, on_spark, on_progress, meter, on_spark)
        finally:
            await on_spark.close()


async def do_compact(job: Job, names: Sequence[str], *, merge: bool, min_age_ms: int) -> CompactReport:
    logs = await chosen_logs(job.context, names) if names else None
    report = await compact_logs(
        job.context,
        job.runner,
        logs,
        options=replace(_sized(job), min_age_ms=min_age_ms),
        merge=merge,
        owner=f"{job.settings.compactor_id}/pipeline",
        session_timeout_ms=job.settings.session_timeout_ms,
    )
    return job.counted(report)


def _sized(job: Job) -> CompactOptions:
    """Windows as large as the runner can hold."""
    if job.on_spark is None:
        return CompactOptions(sizing=Sizing.in_process())
    return CompactOptions(resize=job.on_spark.sizing, start=job.on_spark.start)


async def do_key_compact(job: Job, names: Sequence[str], options: KeyCompactOptions) -> KeyCompactReport:
    chosen = await chosen_logs(job.context, names) if names else None
    return job.counted(await key_compact_logs(job.context, job.runner, _aggregate(job), chosen, options=options))


def _aggregate(job: Job) -> KeyAggregate:
    """On the runner's own Spark session, or in this process as the tasks are."""
    tools = tools_of(job.context)
    return LocalKeyAggregate(tools) if job.on_spark is None else job.on_spark.key_aggregate(tools)


async def do_retain(job: Job, names: Sequence[str], *, dry_run: bool) -> RetainReport:
    def note(log: RetainedLog) -> None:
        job.on_progress(1, f"{log.topic}:{log.partition}")

    logs = await chosen_logs(job.context, names)
    return await retain_logs(job.context, logs, dry_run=dry_run, on_done=note)


async def do_vacuum(job: Job, *, dry_run: bool) -> VacuumReport:
    return job.counted(await vacuum_stores(job.context, job.runner, dry_run=dry_run))


async def do_audit(job: Job, names: Sequence[str], *, fast: bool) -> AuditReport:
    logs = await chosen_logs(job.context, names) if names else None
    report = await audit_logs(job.context, job.runner, logs=logs, fast=fast, on_progress=job.on_progress)
    return job.counted(report)
