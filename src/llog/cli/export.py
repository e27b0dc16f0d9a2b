"""`llog pipeline export`: write a topic as Parquet files or into an Iceberg table. Each run adds the new records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.frame import InProcess, Master, TopicName, run_job, with_stores
from llog.cli.output import AsJson, print_report

if TYPE_CHECKING:
    from llog.pipeline.export.job import ExportReport, PartitionExport
    from llog.settings import Settings
    from llog.spark.export_work import Destination
    from llog.spark.jobs import Job

To = Annotated[
    str,
    typer.Option("--to", help="parquet:URL (file:///dir, s3://bucket/prefix, or a path), or iceberg:namespace.table."),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        help="The Iceberg catalog: sqlite:///…, postgresql+psycopg://…, http(s)://… (REST), thrift://… (Hive), or "
        "pyiceberg:NAME from pyiceberg's own configuration. By default SQLite in LLOG_DATA_DIR.",
    ),
]
Warehouse = Annotated[
    str | None, typer.Option("--warehouse", help="Where new Iceberg tables go; by default LLOG_OBJECTS_URL/warehouse.")
]
Decode = Annotated[
    Literal["raw", "json", "avro", "avro-confluent"],
    typer.Option(
        "--decode",
        help="How values become columns; avro-confluent reads each value by the schema whose id it begins with, from "
        "LLOG_SCHEMA_REGISTRY_URL or --schema-dir.",
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="A file with the JSON Schema or the Avro schema of the columns. For avro-confluent the default is the "
        "newest schema of --subject, or the file with the highest id in --schema-dir.",
    ),
]
SchemaDir = Annotated[
    Path | None,
    typer.Option("--schema-dir", help="For avro-confluent: a directory with the Avro schemas by id, as {id}.avsc."),
]
SubjectName = Annotated[
    str, typer.Option("--subject", help="The registry's subject with the columns' schema; by default TOPIC-value.")
]
OnError = Annotated[
    Literal["column", "quarantine", "fail"],
    typer.Option(
        "--on-error",
        help="What to do with values that cannot be decoded: store them in the columns _error and _raw_value, write "
        "them to quarantine files beside the data, or fail.",
    ),
]
Prefix = Annotated[str, typer.Option("--prefix", help="Prepended to the names of the schema's columns.")]
Dates = Annotated[bool, typer.Option("--dates/--no-dates", help="Partition files by date as well as by partition.")]
AllowGaps = Annotated[
    bool, typer.Option("--allow-gaps", help="Continue when retention removed records before they were exported.")
]
DiscardPlan = Annotated[
    bool,
    typer.Option(
        "--discard-plan",
        help="For parquet: targets: first discard what an earlier run left unfinished, including its files. No other "
        "export of the topic may be running.",
    ),
]


@with_stores("metadata", "objects", "wal")
def export(
    settings: Settings,
    topic: TopicName,
    to: To,
    catalog: Catalog = None,
    warehouse: Warehouse = None,
    decode: Decode = "raw",
    schema: Schema = None,
    schema_dir: SchemaDir = None,
    subject: SubjectName = "",
    on_error: OnError = "column",
    prefix: Prefix = "",
    dates: Dates = True,
    allow_gaps: AllowGaps = False,
    discard_plan: DiscardPlan = False,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
) -> None:
    """Write the records appended since the last export as Parquet (zstd) or into an Iceberg table, each once."""
    from llog.errors import ExportFailed
    from llog.log.keys import check_topic
    from llog.pipeline.export.decode import Decoding
    from llog.spark.export_work import Schemas, do_export, parse_destination, refuse_unfit, url_of

    destination = parse_destination(to, "--to")
    of_iceberg, of_parquet = {"--catalog": catalog, "--warehouse": warehouse}, {"--discard-plan": discard_plan}
    refuse_unfit(destination.kind, of_iceberg, of_parquet)
    warehouse = None if warehouse is None else url_of(warehouse)
    destination = destination._replace(catalog=catalog, warehouse=warehouse, by_date=dates)
    check_topic(topic)
    decoding = Decoding(decode, _text(schema), on_error, prefix)
    schemas = Schemas("" if schema_dir is None else str(schema_dir), subject)

    async def work(job: Job) -> ExportReport:
        if discard_plan:
            await _discard(job, topic, destination)
        return await do_export(job, topic, destination, decoding, allow_gaps=allow_gaps, schemas=schemas)

    try:
        report = run_job(settings, f"exporting {topic}", work, master=master, in_process=in_process)
    except ExportFailed as error:
        typer.echo(f"llog: {error}", err=True)
        raise typer.Exit(UNAVAILABLE if error.retriable else FAILED) from None
    rows = _rows(report) if report.commits else []
    print_report(as_json, report, ("field", "value"), rows, empty="nothing to do")
    if report.bad_records:
        where = "in quarantine files" if report.quarantine_files else "in the column _error"
        typer.echo(f"llog: {report.bad_records} values could not be decoded; they are {where}", err=True)


def _text(path: Path | None) -> str:
    from llog.errors import InvalidArgument
    from llog.limits import EXPORT_SCHEMA_BYTES_MAX

    if path is None:
        return ""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(EXPORT_SCHEMA_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("--schema", f"{path}: {error}") from None


async def _discard(job: Job, topic: str, destination: Destination) -> None:
    from llog.spark.export_work import discard_plan

    dropped = await discard_plan(job, topic, destination)
    text = "no unfinished plan to discard" if dropped is None else f"discarded an unfinished plan and {dropped} files"
    typer.echo(f"llog: {text}", err=True)


def _rows(report: ExportReport) -> list[tuple[str, str]]:
    rows = [
        ("to", report.target),
        ("records", f"{report.records:,}"),
        ("files", f"{report.files:,}"),
        ("bytes", f"{report.bytes_written:,}"),
        ("commits", f"{report.commits}" + (f", {report.resumed} of an earlier run" if report.resumed else "")),
        ("tasks", str(report.tasks)),
        ("seconds", f"{report.seconds:.1f}"),
    ]
    rows += [("values not decoded", f"{report.bad_records:,}")] if report.bad_records else []
    rows += [("in quarantine", name) for name in report.quarantine_files]
    return rows + [(f"partition {one.partition}", _reached(one)) for one in report.partitions]


def _reached(one: PartitionExport) -> str:
    return "nothing yet" if one.empty else f"up to offset {one.next_offset - 1}"
