"""`llog pipeline audit`: compare metadata with objects in both directions.

Exit code 1 when damage was found (with `--strict`, leftovers too), 3 when something could not be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.frame import InProcess, Logs, Master, run_job, with_stores
from llog.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from llog.pipeline.audit.report import AuditReport, Finding
    from llog.settings import Settings

COLUMNS: Final = ("severity", "kind", "log", "offsets", "object", "what is wrong")
HOUR_MS: Final = 3_600_000
_COPY: Final = (
    "restore the object from a copy (earlier versions of a bucket, a snapshot of a disk); without a copy, "
    "`llog delete-records TOPIC PARTITION OFFSET` moves the start of the log behind the lost records"
)
_VACUUM: Final = "`llog vacuum` removes it"
ADVICE: Final = {
    "store of others": "point LLOG_METADATA_URL, LLOG_OBJECTS_URL and LLOG_WAL_URL at stores of one cluster",
    **dict.fromkeys(("missing object", "checksum", "short object", "malformed object"), _COPY),
    "unsupported": "a newer release wrote it: audit with that release",
    **dict.fromkeys(("orphan", "unnamed segment", "phantom record", "expired plan"), _VACUUM),
    "phantom": "compaction or `llog vacuum` removes it",
    "below start": "`llog pipeline retain` removes it",
    "stalled run": "`llog pipeline compact` finishes it",
}
CONTRADICTION: Final = (
    "the log's metadata contradicts itself: fence the log (`llog fence`), inspect it (`llog log describe`), and "
    "compare it with a backup restored into another store (`llog meta restore`)"
)


@with_stores("metadata", "objects", "wal")
def audit(
    settings: Settings,
    logs: Logs = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Read no object: check metadata, and the length of each object.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 for leftovers, too.")] = False,
    as_json: AsJson = False,
    master: Master = None,
    in_process: InProcess = False,
) -> None:
    """Compare every index entry with its object, and every old object with the entries (orphans, without LOG).

    Exit code 1 when damage was found, 3 when something could not be checked.
    """
    from llog.spark.jobs import do_audit
    from llog.wiring import Use

    report = run_job(
        settings,
        "auditing",
        lambda job: do_audit(job, logs or [], fast=fast),
        master=master,
        in_process=in_process,
        blobs=Use.LIST,
        segments=Use.LIST,
    )
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


def document_of(report: AuditReport) -> dict[str, Any]:
    import msgspec

    verdict = {"clean": report.clean, "tidy": report.tidy, "complete": report.complete}
    return {**verdict, **msgspec.to_builtins(report)}


def _row(finding: Finding) -> tuple[str, ...]:
    offsets = f"{finding.start_offset} … {finding.end_offset}" if finding.start_offset >= 0 else ""
    age = "" if finding.age_ms is None else f" ({finding.age_ms / HOUR_MS:.1f} h old)"
    # The object is in its own column.
    reason = finding.reason.partition(f"{finding.object}: ")[2] if finding.object else ""
    return finding.severity, finding.kind, finding.log, offsets, finding.object, (reason or finding.reason) + age


def _advice(report: AuditReport) -> list[str]:
    """Advice for the kinds of findings in the report, each once."""
    kinds: dict[str, list[str]] = {}
    for finding in report.findings:
        same = kinds.setdefault(ADVICE.get(finding.kind, CONTRADICTION), [])
        same += [finding.kind] if finding.kind not in same else []
    return [f"{', '.join(named)}: {advice}" for advice, named in kinds.items()]


def _summary(report: AuditReport) -> str:
    checked = f"{report.logs} logs, {report.entries} entries, {report.objects} objects checked"
    lines = [f"{checked}, {report.bytes_read:,} bytes read; {report.surveyed} old objects looked up"]
    if report.findings:
        lines = ["", *_advice(report), "", *lines]
    lines += [f"changed during the audit, run it again: {log}" for log in report.unsettled]
    lines += [f"not checked: {name}" for name in report.unchecked]
    verdict = "clean" if report.clean else "NOT CLEAN" if report.count_of("damage") else "NOT COMPLETE"
    return "\n".join(
        [*lines, f"{verdict}: {report.count_of('damage')} damaged, {report.count_of('leftover')} leftovers"]
    )
