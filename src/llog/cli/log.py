"""`llog log …`: look into single logs, and check that what must stay true of them does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.exits import FAILED, UNAVAILABLE
from llog.cli.output import AsJson, print_json, print_table
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.log.context import LogContext
    from llog.log.inspect.describe import LogDescription
    from llog.log.inspect.invariants import LogCheck
    from llog.log.keys import Log
    from llog.settings import Settings

app = typer.Typer(help="Look into logs, and check them.", no_args_is_help=True)


@app.command()
def describe(
    topic: str,
    partition: int,
    entries: Annotated[int, typer.Option("--entries", help="Also list so many index entries.")] = 0,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Show one log: its records, what its index holds, and what is under way."""
    import asyncio

    from llog.settings import Settings

    found = asyncio.run(_describe(Settings.from_env(metadata_url=metadata_url), topic, partition, entries))
    if as_json:
        print_json(found)
        return
    print_table(("field", "value"), _rows(found))
    if found.entries:
        typer.echo()
        columns = ("start", "end", "type", "level", "verdict", "records", "bytes", "object")
        rows = [
            (e.start_offset, e.end_offset, e.type, e.level, e.verdict, e.records, e.byte_length, e.data_key)
            for e in found.entries
        ]
        print_table(columns, [tuple(map(str, row)) for row in rows], unbroken=2)


async def _describe(settings: Settings, topic: str, partition: int, entries: int) -> LogDescription:
    from llog.log.inspect.describe import describe_log
    from llog.log.keys import Log, check_partition, check_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await describe_log(stores.context, Log(check_topic(topic), check_partition(partition)), entries=entries)


def _rows(found: LogDescription) -> list[tuple[str, str]]:
    index, run, pending, claim = found.index, found.run, found.pending, found.claim
    levels = ", ".join(f"{count} of level {level}" for level, count in index.compacted_by_level.items()) or "none"
    hidden = f"{index.phantoms} phantoms, {index.below_start} below the start, {index.later_life} of a later life"
    rows = [
        ("log", f"{found.topic}:{found.partition}"),
        ("state", found.log_state + (f" ({found.fence_reason})" if found.fence_reason else "")),
        ("life", f"{found.incarnation}, epoch {found.epoch}"),
        ("offsets", f"{found.log_start_offset} … {found.next_offset - 1}, next {found.next_offset}"),
        ("pending", "none" if pending is None else f"{pending.start_offset} … {pending.end_offset}"),
        ("cursor", "no compaction record" if found.cursor is None else str(found.cursor)),
        ("run", "none" if run is None else f"{run.kind} {run.state} {run.start_offset} … {run.end_offset}"),
        (
            "entries",
            f"{index.valid} valid ({hidden})" + (f", {index.later_life} OF A LATER LIFE" * bool(index.later_life)),
        ),
        ("first entry", _span(index.first)),
        ("last entry", _span(index.last)),
        ("WAL", str(index.wal)),
        ("compacted", levels),
        ("bytes", f"{index.data_bytes:,}"),
        ("segments", ", ".join(f"{s.count} {state}" for state, s in found.segments.items()) or "none"),
        ("commit horizon", _instant(found.commit_horizon_ms)),
        ("segment horizon", _instant(found.segment_horizon_ms or 0)),
        ("producers", "no snapshot" if found.snapshot_as_of is None else f"as of {found.snapshot_as_of}"),
        ("claim", "none" if claim is None else f"{claim.compactor_id} since {_instant(claim.claimed_at_ms)}"),
        ("control version", str(found.control_version)),
    ]
    return rows


def _span(row: object) -> str:
    from llog.log.inspect.describe import EntryRow

    return f"{row.start_offset} … {row.end_offset} {row.type}" if isinstance(row, EntryRow) else "none"


def _instant(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds") if ms else "none"


@app.command()
def check(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    partition: Annotated[int | None, typer.Argument(help="Only this partition of it.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read all bytes and compare every checksum.")] = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Check that every offset is covered once and every object is there; exit code 1 when something is wrong."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    found = asyncio.run(_check(settings, topic, partition, deep))
    faults = sum(len(one.faults) for one in found)
    unsettled = [one for one in found if not one.settled]
    if as_json:
        print_json({"ok": not faults and not unsettled, "logs": [_as_json(one) for one in found]})
    else:
        rows = [(str(one.log), str(one.entries), str(one.objects), _result(one)) for one in found]
        print_table(("log", "entries", "objects", "result"), rows)
    for one in found:
        for fault in one.faults:
            typer.echo(f"llog: {one.log}: {fault}", err=True)
    if faults:
        raise typer.Exit(FAILED)
    if unsettled:
        raise typer.Exit(UNAVAILABLE)


def _as_json(one: LogCheck) -> dict[str, object]:
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
    return "ok" if one.settled else "it moved all the time: check again"


async def _check(settings: Settings, topic: str | None, partition: int | None, deep: bool) -> list[LogCheck]:
    from llog.cli.progress import progress_line
    from llog.errors import PartitionNotInitialized
    from llog.log.inspect.invariants import check_log
    from llog.log.keys import Log, check_partition, check_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        context = stores.context
        if topic is not None and partition is not None:
            with progress_line(f"checking {topic}:{partition}"):
                return [await check_log(context, Log(check_topic(topic), check_partition(partition)), deep=deep)]
        found = []
        with progress_line("checking") as advance:
            async for log in _logs(context, topic):
                advance(1, str(log))
                try:
                    found.append(await check_log(context, log, deep=deep))
                except PartitionNotInitialized:
                    continue  # of this partition nothing was ever written
        return found


async def _logs(context: LogContext, topic: str | None) -> AsyncIterator[Log]:
    from llog.errors import TopicNotFound
    from llog.formats.values import TopicRecord, decode_value
    from llog.log.keys import Log, check_topic

    wanted = None if topic is None else context.keys.topic(check_topic(topic)).path
    seen = False
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        if wanted is not None and record.key.path != wanted:
            continue
        value = decode_value(TopicRecord, record.value, record.key.path)
        if value.state == "LIVE":
            seen = True
            for number in range(value.partition_count):
                yield Log(record.key.path.rpartition("/")[2], number)
    if topic is not None and not seen:
        raise TopicNotFound(topic, "no such topic; `llog topic list` shows those there are")
