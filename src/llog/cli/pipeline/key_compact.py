"""`llog pipeline key-compact`: of every key the last record, in topics whose `cleanup.policy` holds `compact`.

It does not ask: what goes is what the topic's policy says is superseded. `--dry-run` says how much that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from llog.cli.compact import DryRun
from llog.cli.exits import FAILED
from llog.cli.output import AsJson
from llog.cli.pipeline.frame import InProcess, JobSetting, Master, app, print_report, run_job
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.pipeline.key_compact.job import KeyCompactReport

COLUMNS: Final = ("log", "outcome", "dirty", "clean below", "segments", "records", "superseded", "tombstones", "bytes")
MB: Final = 1_000_000


def key_compact(
    logs: Annotated[
        list[str] | None, typer.Argument(help="Topics, or topic:partition; without any, every topic so configured.")
    ] = None,
    dry_run: DryRun = False,
    force: Annotated[bool, typer.Option("--force", help="Whatever min.cleanable.dirty.ratio says.")] = False,
    mb_per_second: Annotated[
        float | None,
        typer.Option(
            "--mb-per-second",
            min=0,
            help="Of reading, all tasks together, instead of LLOG_KEY_COMPACT_BYTES_PER_SECOND; 0 for no limit.",
        ),
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Keep of every key the last record only; offsets stay. Exit code 1 when a log could not be done."""
    from llog.opening import Use
    from llog.pipeline.key_compact.report import KeyCompactOptions
    from llog.settings import Settings
    from llog.spark.job_work import do_key_compact

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    rate = settings.key_compact_bytes_per_second if mb_per_second is None else mb_per_second * MB
    options = KeyCompactOptions(dry_run=dry_run, force=force, bytes_per_second=rate or None).checked()
    setting = JobSetting(
        "compacting by key", settings, master=master, in_process=in_process, segments=Use.PUT, progress=not as_json
    )
    report = run_job(setting, lambda job: do_key_compact(job, logs or [], options))
    print_report(report, as_json, COLUMNS, _rows(report))
    for one in report.logs:
        if one.error:
            typer.echo(f"llog: {one.log}: {one.error}", err=True)
    waiting = [one for one in report.logs if one.not_in_segments]
    if waiting and not as_json:
        count = sum(one.not_in_segments for one in waiting)
        told = f"{count:,} offsets of {len(waiting)} logs are in shared blobs still, where keys are not looked at"
        typer.echo(f"llog: {told}: first `llog pipeline compact`", err=True)
    if dry_run and not as_json:
        typer.echo("nothing was changed", err=True)
    if not report.ok:
        raise typer.Exit(FAILED)


def _rows(report: KeyCompactReport) -> list[tuple[str, ...]]:
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


app.command(name="key-compact")(key_compact)
