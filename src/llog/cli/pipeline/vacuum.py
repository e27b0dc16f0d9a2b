"""`llog vacuum` and `llog pipeline vacuum`: one job, in this process, or with its tasks in Spark for very many objects.

Both end with 1 when a record of the metadata cannot be read: what it may name stays, everything else is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from llog.cli.compact import DryRun, Yes
from llog.cli.exits import FAILED
from llog.cli.output import AsJson, ask, print_json, print_table
from llog.cli.pipeline.frame import InProcess, JobSetting, Master, app, run_job
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.pipeline.vacuum.job import VacuumReport
    from llog.settings import Settings


def vacuum_here(
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Delete objects that no log names any more and that are older than the grace (LLOG_VACUUM_GRACE_MS).

    Ends with 1 when a record of the metadata cannot be read: what it may name stays, everything else is done.
    """
    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    report = _vacuum(settings, dry_run=dry_run, yes=yes, in_process=True)
    _tell(report, as_json, named=True)


def vacuum(
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """As `llog vacuum`, where there are very many objects: tasks list them and read their headers.

    Ends with 1 when a record of the metadata cannot be read: what it may name stays, everything else is done.
    """
    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    report = _vacuum(settings, dry_run=dry_run, yes=yes, master=master, in_process=in_process)
    _tell(report, as_json, named=False)


app.command(name="vacuum")(vacuum)


def _vacuum(
    settings: Settings, *, dry_run: bool, yes: bool, in_process: bool, master: str | None = None
) -> VacuumReport:
    from llog.opening import Use
    from llog.settings.urls import mask_url
    from llog.spark.job_work import do_vacuum

    if not (yes or dry_run):
        where = " and ".join(mask_url(url) for url in sorted({settings.objects_url, settings.wal_url}))
        ask(f"Delete what nothing names in {where}? --dry-run shows it")
    use = Use.LIST if dry_run else Use.PUT
    setting = JobSetting("vacuuming", settings, master=master, in_process=in_process, blobs=use, segments=use)
    return run_job(setting, lambda job: do_vacuum(job, dry_run=dry_run))


def _tell(report: VacuumReport, as_json: bool, *, named: bool) -> None:
    if as_json:
        print_json(report)
    else:
        _print(report)
        for name in report.names if named else ():
            typer.echo(name)
    if report.unreadable_count:
        raise typer.Exit(FAILED)


def _print(report: VacuumReport) -> None:
    went = "would go" if report.dry_run else "deleted"
    rows = [
        (place, str(swept.surveyed), f"{swept.surveyed_bytes:,}", str(swept.deleted), f"{swept.deleted_bytes:,}")
        for place, swept in report.places.items()
    ]
    print_table(("place", "old objects", "bytes", went, "bytes"), rows, unbroken=0)
    typer.echo(_summary(report, went))
    for reason in report.unreadable:
        typer.echo(f"llog: cannot be read, so what it may name stays: {reason}", err=True)


def _summary(report: VacuumReport, went: str) -> str:
    kept = {
        "unreadable": report.kept_unreadable,
        "of a log unknown here": report.kept_unknown_log,
        "their log did not answer": report.kept_unchecked,
        "named by a commit plan that is not finished": report.kept_planned,
        "a record that may name them cannot be read": report.kept_unread,
    }
    gone = f"{report.blobs_deleted} blobs and {report.segments_deleted} segments {went}"
    lines = [f"\n{gone}: {report.bytes_deleted:,} bytes"]
    if report.segments_marked:
        marked = "to be marked" if report.dry_run else "marked"
        lines.append(f"{report.segments_marked} segments {marked}: they go a grace later")
    if report.phantoms_removed:
        lines.append(f"{report.phantoms_removed} left-over entries of deleted topics removed")
    lines += [f"{count} kept: {reason}" for reason, count in kept.items() if count]
    lines += [f"never finished, and kept no longer: {path}" for path in report.plans_expired]
    return "\n".join(lines)
