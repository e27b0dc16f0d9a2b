"""`llog pipeline retain`: apply every topic's retention now, instead of when the compactor service comes by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.compact import DryRun, Yes
from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.output import AsJson, ask
from llog.cli.pipeline.frame import JobSetting, app, print_report, run_job
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.pipeline.retain import RetainedLog

Logs = Annotated[list[str] | None, typer.Argument(help="Topics, or topic:partition; without any, all of them.")]
# It has no tasks; whoever runs one job after another in the same way shall not have to know.
Unused = Annotated[str | None, typer.Option("--master", hidden=True)]
UnusedFlag = Annotated[bool, typer.Option("--in-process", hidden=True)]
COLUMNS = ("log", "began at", "begins at", "entries", "segments", "bytes", "what is wrong")


def retain(
    logs: Logs = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    master: Unused = None,
    in_process: UnusedFlag = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Delete the records that pass their topic's retention.ms or retention.bytes. Blobs go with the next vacuum."""
    from llog.settings import Settings
    from llog.spark.job_work import do_retain

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    if not (yes or dry_run):
        ask(f"Delete what passes its retention in {', '.join(logs or ()) or 'every topic'}? --dry-run shows it")
    setting = JobSetting("retaining", settings, spark=False)
    report = run_job(setting, lambda job: do_retain(job, logs or [], dry_run=dry_run))
    print_report(report, as_json, COLUMNS, [_row(log) for log in report.logs])
    if dry_run and report.logs and not as_json:
        typer.echo("nothing was changed", err=True)
    if report.failed:
        lasting = any(log.error and not log.retriable for log in report.logs)
        raise typer.Exit(FAILED if lasting else UNAVAILABLE)


app.command(name="retain")(retain)


def _row(log: RetainedLog) -> tuple[str, ...]:
    numbers = (log.log_start_before, log.log_start_offset, log.entries_removed, log.segments_removed)
    return f"{log.topic}:{log.partition}", *map(str, numbers), f"{log.bytes_released:,}", log.error
