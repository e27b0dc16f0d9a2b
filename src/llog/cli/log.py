"""Commands about single logs: `llog log describe`, `llog log check`, `llog fence`, `llog unfence` and
`llog delete-records`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.frame import Partition, TopicName, on_log, with_stores
from llog.cli.output import AsJson, DryRun, Yes, ask, instant, print_json, print_report, print_result, print_table

if TYPE_CHECKING:
    from llog.cli.seek import LogSpan
    from llog.formats.values import ControlRecord
    from llog.log.context import LogContext
    from llog.log.inspect.describe import LogDescription
    from llog.log.inspect.invariants import LogCheck
    from llog.log.keys import Log
    from llog.settings import Settings

app = typer.Typer(help="Describe and check single logs.", no_args_is_help=True)

# The reason is part of the control record, which every append reads and writes. HTTP has the same limit.
FENCE_REASON_CHARS_MAX: Final = 1_000

ExpectedEpoch = Annotated[
    int | None,
    typer.Option("--expected-epoch", help="Only if the log is at this epoch, so that a repeated command is harmless."),
]


def _log(topic: str, partition: int) -> Log:
    from llog.log.keys import Log, check_partition, check_topic

    return Log(check_topic(topic), check_partition(partition))


# -- describe --------------------------------------------------------------------------------------------------------


@app.command()
@with_stores("metadata")
def describe(
    settings: Settings,
    topic: TopicName,
    partition: Partition,
    entries: Annotated[int, typer.Option("--entries", help="Also list this many index entries.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show one log: its offsets, its index, and unfinished work."""
    from llog.log.inspect.describe import describe_log

    description = on_log(settings, lambda context: describe_log(context, _log(topic, partition), entries=entries))
    if as_json:
        print_json(description)
        return
    print_table(("field", "value"), _rows(description))
    if description.entries:
        typer.echo()
        columns = ("start", "end", "type", "level", "verdict", "records", "bytes", "object")
        rows = [
            (e.start_offset, e.end_offset, e.type, e.level, e.verdict, e.records, e.byte_length, e.data_key)
            for e in description.entries
        ]
        print_table(columns, [tuple(map(str, row)) for row in rows], unbroken=2)


def _rows(description: LogDescription) -> list[tuple[str, str]]:
    index, run, pending, claim = description.index, description.run, description.pending, description.claim
    levels = ", ".join(f"{count} of level {level}" for level, count in index.compacted_by_level.items()) or "none"
    hidden = f"{index.phantoms} phantoms, {index.below_start} below the start"
    later = f", {index.later_incarnation} OF A LATER INCARNATION" if index.later_incarnation else ""
    return [
        ("log", f"{description.topic}:{description.partition}"),
        ("state", description.log_state + (f" ({description.fence_reason})" if description.fence_reason else "")),
        ("incarnation", f"{description.incarnation}, epoch {description.epoch}"),
        ("offsets", f"{description.log_start_offset} … {description.next_offset - 1}, next {description.next_offset}"),
        ("pending", "none" if pending is None else f"{pending.start_offset} … {pending.end_offset}"),
        ("cursor", "no compaction record" if description.cursor is None else str(description.cursor)),
        ("run", "none" if run is None else f"{run.kind} {run.state} {run.start_offset} … {run.end_offset}"),
        ("entries", f"{index.valid} valid ({hidden}){later}"),
        ("first entry", _span(index.first)),
        ("last entry", _span(index.last)),
        ("WAL", str(index.wal)),
        ("compacted", levels),
        ("bytes", f"{index.data_bytes:,}"),
        ("segments", ", ".join(f"{s.count} {state}" for state, s in description.segments.items()) or "none"),
        ("commit horizon", _instant(description.commit_horizon_ms)),
        ("segment horizon", _instant(description.segment_horizon_ms or 0)),
        ("producers", "no snapshot" if description.snapshot_as_of is None else f"as of {description.snapshot_as_of}"),
        ("claim", "none" if claim is None else f"{claim.compactor_id} since {_instant(claim.claimed_at_ms)}"),
        ("control version", str(description.control_version)),
    ]


def _span(row: object) -> str:
    from llog.log.inspect.describe import EntryRow

    return f"{row.start_offset} … {row.end_offset} {row.type}" if isinstance(row, EntryRow) else "none"


def _instant(ms: int) -> str:
    return instant(ms) if ms else "none"


# -- check -----------------------------------------------------------------------------------------------------------


@app.command()
@with_stores("metadata", "objects", "wal")
def check(
    settings: Settings,
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    partition: Annotated[int | None, typer.Argument(help="Only this partition of the topic.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read all bytes and compare every checksum.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that index entries cover every offset once and that every object exists; exit code 1 on a fault."""
    checks = on_log(settings, lambda context: _check(context, topic, partition, deep))
    faults = sum(len(one.faults) for one in checks)
    unsettled = [one for one in checks if not one.settled]
    document = {"ok": not faults and not unsettled, "logs": [_check_document(one) for one in checks]}
    rows = [(str(one.log), str(one.entries), str(one.objects), _result(one)) for one in checks]
    print_report(as_json, document, ("log", "entries", "objects", "result"), rows)
    for one in checks:
        for fault in one.faults:
            typer.echo(f"llog: {one.log}: {fault}", err=True)
    if faults:
        raise typer.Exit(FAILED)
    if unsettled:
        raise typer.Exit(UNAVAILABLE)


def _check_document(one: LogCheck) -> dict[str, object]:
    return {
        "topic": one.log.topic,
        "partition": one.log.partition,
        "settled": one.settled,
        "entries": one.entries,
        "objects": one.objects,
        "faults": [fault._asdict() for fault in one.faults],
    }


def _result(one: LogCheck) -> str:
    if one.faults:
        return f"{len(one.faults)} FAULTS"
    return "ok" if one.settled else "the log changed during the check: check again"


async def _check(context: LogContext, topic: str | None, partition: int | None, deep: bool) -> list[LogCheck]:
    from llog.cli.output import progress_line
    from llog.errors import PartitionNotInitialized
    from llog.log.inspect.invariants import check_log

    if topic is not None and partition is not None:
        with progress_line(f"checking {topic}:{partition}"):
            return [await check_log(context, _log(topic, partition), deep=deep)]
    checks = []
    with progress_line("checking") as advance:
        for log in await _logs(context, topic):
            advance(1, str(log))
            try:
                checks.append(await check_log(context, log, deep=deep))
            except PartitionNotInitialized:
                continue  # nothing was ever appended to this partition
    return checks


async def _logs(context: LogContext, topic: str | None) -> list[Log]:
    from llog.log.keys import Log
    from llog.log.topics.admin import list_topics
    from llog.pipeline.runtime.log_choice import logs_of

    if topic is not None:
        return await logs_of(context, topic)
    topics = await list_topics(context, strict=True)
    return [Log(name, number) for name, record in topics for number in range(record.partition_count)]


# -- fence and unfence -----------------------------------------------------------------------------------------------


@with_stores("metadata", audit="log.fence")
def fence(
    settings: Settings,
    topic: TopicName,
    partition: Partition,
    reason: Annotated[str, typer.Option("--reason", help="Why; refused producers see it.")] = "",
    expected_epoch: ExpectedEpoch = None,
    as_json: AsJson = False,
) -> None:
    """Close a log to appends until `llog unfence`. Readers are not affected."""
    from llog.log import fence as fencing

    _check_reason(reason)

    async def close(context: LogContext) -> ControlRecord:
        await fencing.fence(context, _log(topic, partition), expected_epoch=expected_epoch, reason=reason)
        return await _control(context, topic, partition)

    _print_control(topic, partition, on_log(settings, close), as_json, wanted="FENCED")


@with_stores("metadata", audit="log.unfence")
def unfence(
    settings: Settings,
    topic: TopicName,
    partition: Partition,
    expected_epoch: ExpectedEpoch = None,
    as_json: AsJson = False,
) -> None:
    """Open a fenced log to appends again."""
    from llog.log import fence as fencing

    async def open_again(context: LogContext) -> ControlRecord:
        await fencing.unfence(context, _log(topic, partition), expected_epoch=expected_epoch)
        return await _control(context, topic, partition)

    _print_control(topic, partition, on_log(settings, open_again), as_json, wanted="OPEN")


def _check_reason(reason: str) -> None:
    from llog.errors import InvalidArgument

    if len(reason) > FENCE_REASON_CHARS_MAX:
        raise InvalidArgument("--reason", f"has {len(reason)} characters, the limit is {FENCE_REASON_CHARS_MAX}")
    try:
        reason.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("--reason", f"{reason!r} is not UTF-8") from None


async def _control(context: LogContext, topic: str, partition: int) -> ControlRecord:
    """The state after the change; another operator may have changed it again."""
    from llog.log.read.view import view

    return (await view(context, _log(topic, partition), strict=True)).control


def _print_control(topic: str, partition: int, control: ControlRecord, as_json: bool, *, wanted: str) -> None:
    document = {
        "topic": topic,
        "partition": partition,
        "log_state": control.log_state,
        "epoch": control.epoch,
        "fence_reason": control.fence_reason,
    }
    reason = f" ({control.fence_reason})" if control.fence_reason else ""
    print_result(as_json, document, f"{topic}:{partition} is {control.log_state}{reason}, epoch {control.epoch}")
    if control.log_state != wanted:
        advice = f"check the log, then repeat with --expected-epoch {control.epoch}, or without it"
        typer.echo(f"llog: {topic}:{partition} is not {wanted}: its epoch is now {control.epoch}; {advice}", err=True)
        raise typer.Exit(FAILED)


# -- delete records --------------------------------------------------------------------------------------------------


@with_stores("metadata", "objects", "wal", audit="records.delete")
def delete_records(
    settings: Settings,
    topic: TopicName,
    partition: Partition,
    offset: Annotated[int, typer.Argument(help="The first offset to keep; -1 keeps none.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the records of one log below OFFSET."""
    from llog.log.cleanup.retention import delete_records as delete

    async def read(context: LogContext) -> LogSpan:
        from llog.cli.seek import read_spans

        [span] = await read_spans(context, topic, partition)
        return span

    span = on_log(settings, read)
    before = first_kept(span, offset)
    count = max(0, before - span.log_start_offset)
    described = f"{count} offsets of {span.log}" + (f": {span.log_start_offset} … {before - 1}" if count else "")
    if dry_run:
        document = {"topic": topic, "partition": partition, "offsets": count, "log_start_offset": before}
        print_result(as_json, {**document, "dry_run": True}, f"would delete {described}; nothing was changed")
        return
    if not yes:
        ask(f"Delete {described}? This cannot be undone")
    title = f"deleting below {before} of {span.log}"
    done = on_log(settings, lambda context: delete(context, span.log, before), title=title)
    removed = f"{done.entries_removed} index entries and {done.segments_removed} segments removed"
    text = f"{done.log} now begins at {done.log_start_offset}; {removed}"
    print_result(as_json, {**done._asdict(), "log": str(done.log), "dry_run": False}, text)


def first_kept(span: LogSpan, offset: int) -> int:
    """The new start of the log. -1 means the end shown in the question, not the end at the time of the answer."""
    from llog.errors import OffsetOutOfRange

    if offset == -1:
        return span.next_offset
    if not 0 <= offset <= span.next_offset:
        raise OffsetOutOfRange(*span.log, offset, span.log_start_offset, span.next_offset + 1)
    return max(offset, span.log_start_offset)
