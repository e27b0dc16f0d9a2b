"""`llog pipeline export`: a topic as Parquet files or as an Iceberg table, each run adding what came since the last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.output import AsJson
from llog.cli.pipeline.frame import InProcess, JobSetting, Master, app, print_report, run_job
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.pipeline.export.job import ExportReport, PartitionExport
    from llog.spark.export_work import Destination
    from llog.spark.job import Job

To = Annotated[
    str,
    typer.Option("--to", help="parquet:URL (file:///dir, s3://bucket/prefix, or a path), or iceberg:namespace.table."),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        help="Of an Iceberg table: sqlite:///…, postgresql+psycopg://…, http(s)://… (REST), thrift://… (Hive), or "
        "pyiceberg:NAME from pyiceberg's own configuration. Without it: SQLite in LLOG_DATA_DIR.",
    ),
]
Warehouse = Annotated[
    str | None, typer.Option("--warehouse", help="Where new Iceberg tables go; LLOG_OBJECTS_URL/warehouse by default.")
]
Decode = Annotated[
    Literal["raw", "json", "avro", "avro-confluent"],
    typer.Option("--decode", help="How values become columns; avro-confluent skips the 5 bytes that name a schema."),
]
Schema = Annotated[
    Path | None, typer.Option("--schema", help="A file with the JSON Schema, or with the Avro schema, of the values.")
]
OnError = Annotated[
    Literal["column", "quarantine", "fail"],
    typer.Option(
        "--on-error",
        help="Values that cannot be read: into columns _error and _raw_value, or into files "
        "beside the data, or the export ends.",
    ),
]
Prefix = Annotated[str, typer.Option("--prefix", help="In front of the names of the schema's columns.")]
Dates = Annotated[bool, typer.Option("--dates/--no-dates", help="Divide files by date as well as by partition.")]
AllowGaps = Annotated[
    bool, typer.Option("--allow-gaps", help="Go on where retention took records before they were exported.")
]

DiscardPlan = Annotated[
    bool,
    typer.Option(
        "--discard-plan",
        help="Of a parquet: target: first drop what an earlier run began and did not finish, files and all. No other "
        "export of the topic may be running.",
    ),
]


def export(
    topic: str,
    to: To,
    catalog: Catalog = None,
    warehouse: Warehouse = None,
    decode: Decode = "raw",
    schema: Schema = None,
    on_error: OnError = "column",
    prefix: Prefix = "",
    dates: Dates = True,
    allow_gaps: AllowGaps = False,
    discard_plan: DiscardPlan = False,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Write what came since the last export as Parquet (zstd), or add it to an Iceberg table; nothing comes twice."""
    from llog.errors import ExportFailed
    from llog.log.keys import check_topic
    from llog.pipeline.export.decode import Decoding
    from llog.settings import Settings
    from llog.spark.export_work import do_export, parse_destination, refuse_unfit, url_of

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    destination = parse_destination(to, "--to")
    of_iceberg, of_parquet = {"--catalog": catalog, "--warehouse": warehouse}, {"--discard-plan": discard_plan}
    refuse_unfit(destination.kind, of_iceberg, of_parquet)
    warehouse = None if warehouse is None else url_of(warehouse)
    destination = destination._replace(catalog=catalog, warehouse=warehouse, by_date=dates)
    check_topic(topic)
    decoding = Decoding(decode, _text(schema), on_error, prefix)
    setting = JobSetting(f"exporting {topic}", settings, master=master, in_process=in_process)

    async def work(job: Job) -> ExportReport:
        if discard_plan:
            await _discard(job, topic, destination)
        return await do_export(job, topic, destination, decoding, allow_gaps=allow_gaps)

    try:
        report = run_job(setting, work)
    except ExportFailed as error:
        typer.echo(f"llog: {error}", err=True)
        raise typer.Exit(UNAVAILABLE if error.retriable else FAILED) from None
    print_report(report, as_json, ("what", "how much"), _rows(report) if report.commits else [])
    if report.bad_records:
        told = "in quarantine" if report.quarantine_files else "in the column _error"
        typer.echo(f"llog: {report.bad_records} values could not be decoded; they are {told}", err=True)


app.command(name="export")(export)


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
    nothing, told = "no plan was left unfinished", f"dropped a plan that was not finished, and {dropped} files"
    typer.echo(f"llog: {nothing if dropped is None else told}", err=True)


def _rows(report: ExportReport) -> list[tuple[str, str]]:
    rows = [
        ("to", report.target),
        ("records", f"{report.records:,}"),
        ("files", f"{report.files:,}"),
        ("bytes", f"{report.bytes_written:,}"),
        ("commits", f"{report.commits}" + (f", {report.resumed} left by an earlier run" if report.resumed else "")),
        ("tasks", str(report.tasks)),
        ("seconds", f"{report.seconds:.1f}"),
    ]
    rows += [("values not decoded", f"{report.bad_records:,}")] if report.bad_records else []
    rows += [("in quarantine", name) for name in report.quarantine_files]
    return rows + [(f"partition {one.partition}", _reached(one)) for one in report.partitions]


def _reached(one: PartitionExport) -> str:
    return "nothing yet" if one.empty else f"up to offset {one.next_offset - 1}"
