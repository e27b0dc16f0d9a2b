"""The jobs of the data pipeline as functions for programs and notebooks; `llog pipeline …` runs the same jobs.

    from llog.spark import jobs

    report = jobs.compact("orders", "visits:3", merge=True)      # topics, or topic:partition; without names all logs
    report = jobs.export("orders", "iceberg:shop.orders", spark=spark)
    report = jobs.vacuum(dry_run=True, in_process=True)

Each function returns the report that the command prints as JSON. The report holds the failure of a single log; a
failure of the whole job is raised. Tasks run on `spark`, else on the session of this process (`llog.spark.session`,
started if needed and left running), or with `in_process` in this process, without Spark. `settings` name the stores;
the default is the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from llog.log.keys import check_topic
from llog.settings import Settings
from llog.spark.job import Job, Place, do_audit, do_compact, do_key_compact, do_retain, do_vacuum, opened_job
from llog.wiring import Use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from llog.pipeline.audit.report import AuditReport
    from llog.pipeline.compact.round import CompactReport
    from llog.pipeline.export.job import ExportReport
    from llog.pipeline.key_compact.report import KeyCompactReport
    from llog.pipeline.retain import RetainReport
    from llog.pipeline.vacuum.job import VacuumReport

__all__ = ["audit", "compact", "export", "key_compact", "retain", "vacuum"]

T = TypeVar("T")


def compact(
    *logs: str,
    merge: bool = False,
    min_age_ms: int = 0,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> CompactReport:
    """Shared blobs become segments, up to the ends that the logs have now; with `merge` small segments larger ones."""
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
    """Of every key the last record stays, where the topic's policy says so. `bytes_per_second` of reading: None is the
    setting's, 0 no limit."""
    from llog.pipeline.key_compact.report import KeyCompactOptions

    settings = settings or Settings.from_env()
    rate = settings.key_compact_bytes_per_second if bytes_per_second is None else bytes_per_second
    options = KeyCompactOptions(dry_run=dry_run, force=force, bytes_per_second=rate or None).checked()
    place = Place(spark, in_process=in_process)
    return _run(lambda job: do_key_compact(job, logs, options), settings, place, segments=Use.PUT)


def retain(*logs: str, dry_run: bool = False, settings: Settings | None = None) -> RetainReport:
    """Log starts move by `retention.ms` and `retention.bytes`: metadata only, so there is no Spark in it."""
    return _run(lambda job: do_retain(job, logs, dry_run=dry_run), settings, Place(in_process=True))


def vacuum(
    *,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> VacuumReport:
    """Objects that nothing names go, once they are older than the grace."""
    use, place = Use.LIST if dry_run else Use.PUT, Place(spark, in_process=in_process)
    return _run(lambda job: do_vacuum(job, dry_run=dry_run), settings, place, blobs=use, segments=use)


def audit(
    *logs: str,
    fast: bool = False,
    spark: SparkSession | None = None,
    in_process: bool = False,
    settings: Settings | None = None,
) -> AuditReport:
    """Every entry against its object; without `logs`, every old object against the entries too. `report.clean` says
    whether all is well. With `fast` no object is read."""
    place = Place(spark, in_process=in_process)
    return _run(lambda job: do_audit(job, logs, fast=fast), settings, place, blobs=Use.LIST, segments=Use.LIST)


def export(
    topic: str,
    to: str,
    *,
    decode: Literal["raw", "json", "avro", "avro-confluent"] = "raw",
    schema: str = "",
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
    """What came since the last export, `to` `parquet:URL` or `iceberg:namespace.table`; nothing comes twice. `schema`
    is the text of a JSON Schema or Avro schema."""
    from llog.pipeline.export.decode import Decoding
    from llog.spark.export_work import do_export, parse_destination, refuse_unfit, url_of

    destination = parse_destination(to)
    refuse_unfit(destination.kind, {"catalog": catalog, "warehouse": warehouse}, {})
    destination = destination._replace(
        catalog=catalog, warehouse=None if warehouse is None else url_of(warehouse), by_date=by_date
    )
    decoding = Decoding(decode, schema, on_error, prefix)
    return _run(
        lambda job: do_export(job, check_topic(topic), destination, decoding, allow_gaps=allow_gaps),
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
    """A cell of a notebook runs within an event loop, which cannot be entered again: there, in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="llog-job") as thread:
        return thread.submit(asyncio.run, work).result()
