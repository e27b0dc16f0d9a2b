"""The export job on opened stores, and its destinations: `parquet:URL` or `iceberg:namespace.table`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from llog.errors import InvalidArgument
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.export.job import ExportReport, export, export_tools
from llog.pipeline.export.parquet import ParquetTarget
from llog.pipeline.export.plan import ExportTarget
from llog.pipeline.export.schema_source import SchemaLookup, schema_source
from llog.pipeline.runtime.tasks import LocalTasks
from llog.pipeline.scan.subscription import Subscription, find_logs
from llog.spark.jobs import Job
from llog.stores.objects.wrappers import RetryingObjectStore
from llog.wiring import ObjectStores


class Destination(NamedTuple):
    kind: Literal["parquet", "iceberg"]
    place: str
    """A URL, or the name of a table."""
    catalog: str | None = None
    warehouse: str | None = None
    by_date: bool = True


class Schemas(NamedTuple):
    """Where the schemas of `avro-confluent` values are, if not where the settings say."""

    directory: str = ""
    subject: str = ""
    """The registry's subject with the schema of the columns, if no schema is given."""


FROM_SETTINGS: Final = Schemas()


def parse_destination(text: str, option: str = "to") -> Destination:
    kind, _, place = text.partition(":")
    if place and kind == "parquet":
        return Destination("parquet", url_of(place))
    if place and kind == "iceberg":
        return Destination("iceberg", place)
    raise InvalidArgument(option, f"{text!r} must be parquet:URL or iceberg:namespace.table")


def refuse_unfit(kind: str, of_iceberg: Mapping[str, object], of_parquet: Mapping[str, object]) -> None:
    """Options, by their names, that say something of the other kind of target."""
    for name, given in (of_iceberg if kind == "parquet" else of_parquet).items():
        if given:
            raise InvalidArgument(name, f"means nothing for {kind}: targets")


def url_of(place: str) -> str:
    """A path is one of this machine's. (A shell leaves `~` alone behind a colon.)"""
    return place if "://" in place else f"file://{Path(place).expanduser().absolute()}"


async def do_export(
    job: Job,
    topic: str,
    to: Destination,
    decoding: Decoding,
    *,
    allow_gaps: bool = False,
    schemas: Schemas = FROM_SETTINGS,
) -> ExportReport:
    await _check_there(job, topic)
    lookup = _lookup(job, decoding, schemas)
    if lookup is not None:
        decoding = await lookup.with_columns(decoding, topic)
    async with ObjectStores(job.settings, wrap=job.meter.wrap) as objects:
        runner = job.runner
        if job.on_spark is None:
            # The runner of the job opens only the log's stores.
            runner = LocalTasks(export_tools(job.context, objects), on_progress=job.on_progress)
        target = await _target(job, objects, topic, to, decoding)
        report = await export(
            job.context,
            runner,
            topic,
            target,
            decoding=decoding,
            by_date=to.by_date,
            allow_gaps=allow_gaps,
            schemas=lookup,
        )
        return job.counted(report)


def _lookup(job: Job, decoding: Decoding, schemas: Schemas) -> SchemaLookup | None:
    if decoding.kind == "avro-confluent":
        return SchemaLookup(schema_source(job.settings, *schemas))
    if any(schemas):
        name = "schema_dir" if schemas.directory else "subject"
        raise InvalidArgument(name, f"means nothing for {decoding.kind} values; it is for avro-confluent")
    return None


async def discard_plan(job: Job, topic: str, to: Destination) -> int | None:
    """Drop what an earlier export into Parquet files began and did not finish: how many files, None where no plan was
    left. No other export of the topic may be running."""
    await _check_there(job, topic)
    async with ObjectStores(job.settings) as objects:
        return await (await _parquet(objects, topic, to)).discard()


async def _check_there(job: Job, topic: str) -> None:
    """Raise for a missing topic before anything is created for it."""
    await find_logs(job.context, Subscription(topics=(topic,)))


async def _parquet(objects: ObjectStores, topic: str, to: Destination) -> ParquetTarget:
    return ParquetTarget(RetryingObjectStore(objects.wrapped(to.place, await objects.at(to.place))), topic)


async def _target(job: Job, objects: ObjectStores, topic: str, to: Destination, decoding: Decoding) -> ExportTarget:
    if to.kind == "parquet":
        return await _parquet(objects, topic, to)
    catalogue = open_catalogue(job.settings, to.catalog, warehouse=to.warehouse)
    schema, random_bits = Decoder(decoding).schema, job.context.random_bits
    return await IcebergTarget.open(catalogue, to.place, schema, random_bits, by_date=to.by_date)
