"""`llog pipeline compact`: rewrite what logs hold in shared blobs into segments of their own, many logs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.output import AsJson
from llog.cli.pipeline.frame import InProcess, JobSetting, Master, app, print_report, run_job
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.pipeline.compact.report import CompactReport, LogReport

Topics = Annotated[list[str] | None, typer.Option("--topic", help="The same as a topic alone; may be given again.")]
Partition = Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition of the one --topic.")]
Merge = Annotated[bool, typer.Option("--merge", help="Then make larger segments of small neighbours.")]
MinAgeMs = Annotated[int, typer.Option("--min-age-ms", min=0, help="Leave what was appended more recently alone.")]


def compact(
    logs: Annotated[
        list[str] | None, typer.Argument(help="Topics, or topic:partition; without any, all of them.")
    ] = None,
    topic: Topics = None,
    partition: Partition = None,
    merge: Merge = False,
    min_age_ms: MinAgeMs = 0,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Compact every log, or those of some topics, up to their ends as they are now. Each blob is read once."""
    from llog.errors import InvalidArgument
    from llog.opening import Use
    from llog.settings import Settings
    from llog.spark.job_work import do_compact

    if partition is not None and len(topic or ()) != 1:
        raise InvalidArgument("--partition", "is of one topic: give exactly one --topic")
    names = [*(logs or ()), *(one if partition is None else f"{one}:{partition}" for one in topic or ())]
    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    setting = JobSetting("compacting", settings, master=master, in_process=in_process, segments=Use.PUT)
    report = run_job(setting, lambda job: do_compact(job, names, merge=merge, min_age_ms=min_age_ms))
    busy = [log for log in report.logs if log.outcome == "busy"]
    columns = ("log", "outcome", "segments", "merges", "entries", "offsets", "bytes", "what is wrong")
    print_report(report, as_json, columns, [_row(log) for log in report.logs if log.outcome != "idle"])
    if not as_json and report.tasks:
        typer.echo(_summary(report))
    if report.failed:
        raise typer.Exit(FAILED)
    if busy:
        raise typer.Exit(UNAVAILABLE)


app.command(name="compact")(compact)


def _row(log: LogReport) -> tuple[str, ...]:
    outcome = log.outcome if not log.resumed else f"{log.outcome} ({log.resumed} resumed)"
    numbers = (str(log.runs), str(log.merges), str(log.entries), str(log.offsets), f"{log.bytes_written:,}")
    return f"{log.topic}:{log.partition}", outcome, *numbers, log.error


def _summary(report: CompactReport) -> str:
    rate = report.bytes_read / max(report.seconds, 0.001) / 1e6
    return (
        f"{report.objects_read} objects, {report.bytes_read:,} bytes read in {report.tasks} tasks; "
        f"{report.bytes_written:,} bytes written; {report.seconds:.1f} s, {rate:,.0f} MB/s"
    )
