"""`llog pipeline …`: jobs over many logs: compact, key-compact, retain and vacuum (see also `audit` and `export`).

A job names logs as `topic` or `topic:partition`, and runs its tasks on Spark or, with `--in-process`, in this process.
`llog compact` and `llog vacuum` are the same commands, with `--in-process` as their default. A command that deletes
data asks first and has `--dry-run`; key-compact does not ask, since the policy of the topic decides what is superseded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.frame import InProcess, Logs, Master, run_job, with_stores
from llog.cli.output import AsJson, DryRun, Yes, ask, print_json, print_report, print_table

if TYPE_CHECKING:
    from llog.pipeline.compact.round import CompactReport, LogReport
    from llog.pipeline.key_compact.report import KeyCompactReport
    from llog.pipeline.vacuum.job import VacuumReport
    from llog.settings import Settings

app = typer.Typer(
    help="Jobs over many logs, on Spark or with --in-process in this process.",
    no_args_is_help=True,
)

MB: Final = 1_000_000


# -- compact ---------------------------------------------------------------------------------------------------------


@with_stores("metadata", "objects", "wal")
def compact(
    settings: Settings,
    logs: Logs = None,
    merge: Annotated[bool, typer.Option("--merge", help="Then merge small neighbouring segments.")] = False,
    min_age_ms: Annotated[
        int, typer.Option("--min-age-ms", min=0, help="Leave records alone that were appended more recently.")
    ] = 0,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
) -> None:
    """Rewrite records from shared blobs into segments per log, up to the present end of each log.

    Each blob is read once. Exit code 1 when a log failed, 3 when one was too busy.
    """
    from llog.errors import InvalidArgument, TopicNotFound
    from llog.spark.jobs import do_compact
    from llog.wiring import Use

    names = logs or []
    try:
        report = run_job(
            settings,
            "compacting",
            lambda job: do_compact(job, names, merge=merge, min_age_ms=min_age_ms),
            master=master,
            in_process=in_process,
            segments=Use.PUT,
        )
    except TopicNotFound as error:
        if len(names) == 2 and names[1].isdigit() and error.topic == names[1]:  # the former TOPIC PARTITION
            raise InvalidArgument("LOG", f"write {names[0]}:{names[1]} for one partition") from None
        raise
    columns = ("log", "outcome", "segments", "merges", "entries", "offsets", "bytes", "error")
    rows = [_compact_row(log) for log in report.logs if log.outcome != "idle"]
    print_report(as_json, report, columns, rows, empty="nothing to do")
    if report.tasks and not as_json:
        typer.echo(_compact_summary(report))
    if report.failed:
        raise typer.Exit(FAILED)
    if report.count("busy"):
        raise typer.Exit(UNAVAILABLE)


def _compact_row(log: LogReport) -> tuple[str, ...]:
    outcome = log.outcome if not log.resumed else f"{log.outcome} ({log.resumed} resumed)"
    numbers = (str(log.runs), str(log.merges), str(log.entries), str(log.offsets), f"{log.bytes_written:,}")
    return f"{log.topic}:{log.partition}", outcome, *numbers, log.error


def _compact_summary(report: CompactReport) -> str:
    rate = report.bytes_read / max(report.seconds, 0.001) / MB
    return (
        f"{report.objects_read} objects, {report.bytes_read:,} bytes read in {report.tasks} tasks; "
        f"{report.bytes_written:,} bytes written; {sum(report.object_requests.values())} requests to object stores; "
        f"{report.seconds:.1f} s, {rate:,.0f} MB/s"
    )


# -- key-compact -----------------------------------------------------------------------------------------------------


@with_stores("metadata", "objects", "wal")
def key_compact(
    settings: Settings,
    logs: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG", help="A topic, or topic:partition; all compacted topics when left out."),
    ] = None,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Ignore min.cleanable.dirty.ratio.")] = False,
    mb_per_second: Annotated[
        float | None,
        typer.Option(
            "--mb-per-second",
            min=0,
            help="Limit the reads of all tasks together, instead of LLOG_KEY_COMPACT_BYTES_PER_SECOND; 0: no limit.",
        ),
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
) -> None:
    """Keep only the last record of each key, in topics with cleanup.policy=compact. Offsets stay.

    Exit code 1 when a log could not be compacted.
    """
    from llog.pipeline.key_compact.report import KeyCompactOptions
    from llog.spark.jobs import do_key_compact
    from llog.wiring import Use

    rate = settings.key_compact_bytes_per_second if mb_per_second is None else mb_per_second * MB
    options = KeyCompactOptions(dry_run=dry_run, force=force, bytes_per_second=rate or None).checked()
    report = run_job(
        settings,
        "compacting by key",
        lambda job: do_key_compact(job, logs or [], options),
        master=master,
        in_process=in_process,
        segments=Use.PUT,
        progress=not as_json,
    )
    columns = ("log", "outcome", "dirty", "clean below", "segments", "records", "superseded", "tombstones", "bytes")
    print_report(as_json, report, columns, _key_compact_rows(report), empty="nothing to do")
    for one in report.logs:
        if one.error:
            typer.echo(f"llog: {one.log}: {one.error}", err=True)
    waiting = [one for one in report.logs if one.not_in_segments]
    if waiting and not as_json:
        count = sum(one.not_in_segments for one in waiting)
        skipped = f"{count:,} offsets of {len(waiting)} logs are still in shared blobs and were skipped"
        typer.echo(f"llog: {skipped}: run `llog pipeline compact` first", err=True)
    if dry_run and not as_json:
        typer.echo("nothing was changed", err=True)
    if not report.ok:
        raise typer.Exit(FAILED)


def _key_compact_rows(report: KeyCompactReport) -> list[tuple[str, ...]]:
    return [
        (
            str(one.log),
            "to be compacted" if report.dry_run and one.state == "compacted" else one.state,
            f"{one.dirty_ratio:.0%}",
            str(one.clean_until),
            f"{one.segments_replaced} → {one.segments_written}",
            str(one.records_before),
            str(one.superseded),
            str(one.tombstones),
            f"{one.bytes_before:,} → {one.bytes_after:,}",
        )
        for one in report.logs
    ]


# -- retain ----------------------------------------------------------------------------------------------------------


@with_stores("metadata", "objects", "wal", audit="records.retain")
def retain(
    settings: Settings,
    logs: Logs = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    # The job has no tasks; the options are accepted so that scripts can call all jobs alike.
    master: Annotated[str | None, typer.Option("--master", hidden=True)] = None,
    in_process: Annotated[bool, typer.Option("--in-process/--spark", hidden=True)] = True,
) -> None:
    """Delete records beyond their topic's retention.ms or retention.bytes. The next vacuum removes their blobs.

    Exit code 1 when a log failed, 3 when a retry may succeed.
    """
    from llog.spark.jobs import do_retain

    if not (yes or dry_run):
        where = ", ".join(logs or ()) or "every topic"
        ask(f"Delete the records beyond retention in {where}? --dry-run shows them")
    report = run_job(settings, "retaining", lambda job: do_retain(job, logs or [], dry_run=dry_run), in_process=True)
    columns = ("log", "old start", "new start", "entries", "segments", "bytes", "error")
    rows = [
        (
            f"{log.topic}:{log.partition}",
            str(log.log_start_before),
            str(log.log_start_offset),
            str(log.entries_removed),
            str(log.segments_removed),
            f"{log.bytes_released:,}",
            log.error,
        )
        for log in report.logs
    ]
    print_report(as_json, report, columns, rows, empty="nothing to do")
    if dry_run and report.logs and not as_json:
        typer.echo("nothing was changed", err=True)
    if report.failed:
        lasting = any(log.error and not log.retriable for log in report.logs)
        raise typer.Exit(FAILED if lasting else UNAVAILABLE)


# -- vacuum ----------------------------------------------------------------------------------------------------------


@with_stores("metadata", "objects", "wal", audit="vacuum.delete")
def vacuum(
    settings: Settings,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
) -> None:
    """Delete objects that no log references and that are older than the grace (LLOG_VACUUM_GRACE_MS).

    Exit code 1 when a metadata record cannot be read: objects it may reference are kept, all others are handled.
    """
    from llog.settings.urls import mask_url
    from llog.spark.jobs import do_vacuum
    from llog.wiring import Use

    if not (yes or dry_run):
        where = " and ".join(mask_url(url) for url in sorted({settings.objects_url, settings.wal_url}))
        ask(f"Delete unreferenced objects in {where}? --dry-run shows them")
    use = Use.LIST if dry_run else Use.PUT
    report = run_job(
        settings,
        "vacuuming",
        lambda job: do_vacuum(job, dry_run=dry_run),
        master=master,
        in_process=in_process,
        blobs=use,
        segments=use,
    )
    if as_json:
        print_json(report)
    else:
        _print_vacuum(report)
    if report.unreadable_count:
        raise typer.Exit(FAILED)


def _print_vacuum(report: VacuumReport) -> None:
    went = "would be deleted" if report.dry_run else "deleted"
    rows = [
        (place, str(swept.surveyed), f"{swept.surveyed_bytes:,}", str(swept.deleted), f"{swept.deleted_bytes:,}")
        for place, swept in report.places.items()
    ]
    print_table(("place", "old objects", "bytes", went, "bytes"), rows, unbroken=0)
    typer.echo(_vacuum_summary(report, went))
    for name in report.names:
        typer.echo(name)
    for reason in report.unreadable:
        typer.echo(f"llog: a record cannot be read, so objects it may reference are kept: {reason}", err=True)


def _vacuum_summary(report: VacuumReport, went: str) -> str:
    kept = {
        "the object cannot be read": report.kept_unreadable,
        "their log is unknown to this cluster": report.kept_unknown_log,
        "their log did not answer": report.kept_unchecked,
        "an unfinished commit plan references them": report.kept_planned,
        "a record that may reference them cannot be read": report.kept_unread,
    }
    gone = f"{report.blobs_deleted} blobs and {report.segments_deleted} segments {went}"
    lines = [f"\n{gone}: {report.bytes_deleted:,} bytes"]
    if report.segments_marked:
        marked = "would be marked" if report.dry_run else "marked"
        lines.append(f"{report.segments_marked} segments {marked}: a vacuum after another grace deletes them")
    if report.phantoms_removed:
        lines.append(f"{report.phantoms_removed} left-over entries of deleted topics removed")
    lines += [f"{count} kept: {reason}" for reason, count in kept.items() if count]
    lines += [f"expired commit plan removed: {path}" for path in report.plans_expired]
    return "\n".join(lines)
