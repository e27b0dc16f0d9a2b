"""`llog pipeline audit`: is everything there, and is it what it should be?

Exit codes: 0 clean; 1 damage was found (with `--strict`, leftovers too); 3 not everything could be looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.output import AsJson, print_json, print_table
from llog.cli.pipeline.frame import InProcess, JobSetting, Master, app, run_job
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.pipeline.audit.report import AuditReport, Finding

COLUMNS: Final = ("severity", "kind", "log", "offsets", "object", "what is wrong")
HOUR_MS: Final = 3_600_000
_COPY: Final = (
    "put the object back from a copy (earlier versions of a bucket, a snapshot of a disk); where there is none, "
    "`llog delete-records TOPIC PARTITION OFFSET` lets the log begin behind what is lost"
)
_VACUUM: Final = "`llog vacuum` takes it"
ADVICE: Final = {
    "store of others": "point LLOG_METADATA_URL, LLOG_OBJECTS_URL and LLOG_WAL_URL at stores of one cluster",
    **dict.fromkeys(("missing object", "checksum", "short object", "malformed object"), _COPY),
    "unsupported": "a newer release wrote it: audit with that one",
    **dict.fromkeys(("orphan", "unnamed segment", "phantom record", "expired plan"), _VACUUM),
    "phantom": "compaction or `llog vacuum` takes it",
    "below start": "`llog pipeline retain` takes it",
    "stalled run": "`llog pipeline compact` finishes it",
}
CONTRADICTION: Final = (
    "its metadata contradicts itself: fence the log (`llog fence`), look at it (`llog log describe`), and compare with "
    "a backup restored beside the store (`llog meta restore`)"
)


def audit(
    logs: Annotated[
        list[str] | None, typer.Argument(help="Topics, or topic:partition; without any, all of them, and orphans.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Read no object: metadata, and the length of what it names.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 for leftovers, too.")] = False,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Hold every entry against its object, and every old object against the entries; exit code 1 when one is wrong."""
    from llog.opening import Use
    from llog.settings import Settings
    from llog.spark.job_work import do_audit

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    setting = JobSetting("auditing", settings, master=master, in_process=in_process, blobs=Use.LIST, segments=Use.LIST)
    report = run_job(setting, lambda job: do_audit(job, logs or [], fast=fast))
    if as_json:
        print_json(document_of(report))
    else:
        if report.findings:
            print_table(COLUMNS, [_row(finding) for finding in report.findings], unbroken=2)
        typer.echo(_summary(report))
    if report.count_of("damage") or (strict and not report.tidy):
        raise typer.Exit(FAILED)
    if not report.complete:
        raise typer.Exit(UNAVAILABLE)


app.command(name="audit")(audit)


def document_of(report: AuditReport) -> dict[str, Any]:
    import msgspec

    verdict = {"clean": report.clean, "tidy": report.tidy, "complete": report.complete}
    return {**verdict, **msgspec.to_builtins(report)}


def _row(finding: Finding) -> tuple[str, ...]:
    offsets = f"{finding.start_offset} … {finding.end_offset}" if finding.start_offset >= 0 else ""
    age = "" if finding.age_ms is None else f" ({finding.age_ms / HOUR_MS:.1f} h old)"
    # The object has a column of its own.
    reason = finding.reason.partition(f"{finding.object}: ")[2] if finding.object else ""
    return finding.severity, finding.kind, finding.log, offsets, finding.object, (reason or finding.reason) + age


def _advice(report: AuditReport) -> list[str]:
    """What to do, once for each kind that was found."""
    kinds: dict[str, list[str]] = {}
    for finding in report.findings:
        told = kinds.setdefault(ADVICE.get(finding.kind, CONTRADICTION), [])
        told += [finding.kind] if finding.kind not in told else []
    return [f"{', '.join(named)}: {advice}" for advice, named in kinds.items()]


def _summary(report: AuditReport) -> str:
    looked = f"{report.logs} logs, {report.entries} entries, {report.objects} objects"
    lines = [f"{looked}, {report.bytes_read:,} bytes read; {report.surveyed} old objects looked up"]
    if report.findings:
        lines = ["", *_advice(report), "", *lines]
    lines += [f"not settled, look again: {log}" for log in report.unsettled]
    lines += [f"not looked at: {what}" for what in report.unchecked]
    verdict = "clean" if report.clean else "NOT CLEAN" if report.count_of("damage") else "NOT COMPLETE"
    return "\n".join(
        [*lines, f"{verdict}: {report.count_of('damage')} damaged, {report.count_of('leftover')} left over"]
    )
