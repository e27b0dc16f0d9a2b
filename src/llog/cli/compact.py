"""`llog compact`, `llog delete-records`: what the compactor service does by itself, by hand (and `pipeline_vacuum`).

What must stay true: what takes data away asks first, says how much, and has a `--dry-run` that changes no log; a log
that grows all the time does not keep `compact` busy for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.output import AsJson, ask, print_json, print_table
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from llog.cli.records.seeking import Ends
    from llog.log.cleanup.retention import Retained
    from llog.log.keys import Log
    from llog.log.rewrite.publish import Compacted
    from llog.settings import Settings

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


# -- compact ---------------------------------------------------------------------------------------------------------


def compact(
    topic: str,
    partition: int,
    max_offsets: Annotated[int | None, typer.Option("--max-offsets", min=1, help="In one segment at most.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Then make larger segments of small neighbours.")] = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Rewrite what one log holds in shared blobs, up to its end as it is now, into segments of its own."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    runs = asyncio.run(_compact(settings, topic, partition, max_offsets, merge))
    if as_json:
        print_json([{**run._asdict(), "log": str(run.log)} for run in runs])
    elif not runs:
        typer.echo(f"{topic}:{partition}: nothing to do")
    else:
        columns = ("run", "level", "start", "end", "entries", "bytes", "segment")
        rows = [
            (
                run.kind + (", resumed" if run.resumed else ""),
                str(run.level),
                str(run.start_offset),
                str(run.end_offset),
                str(run.entry_count),
                f"{run.byte_length:,}",
                run.data_key,
            )
            for run in runs
        ]
        print_table(columns, rows)


async def _compact(
    settings: Settings, topic: str, partition: int, max_offsets: int | None, merge: bool
) -> list[Compacted]:
    from llog.api.aio import AsyncLeaderlessLogCompactor
    from llog.log.keys import Log, check_partition, check_topic
    from llog.log.read.view import view

    log = Log(check_topic(topic), check_partition(partition))
    async with await AsyncLeaderlessLogCompactor.open(settings) as compactor:
        seen = await view(compactor.context, log, strict=True)
        left = seen.next_offset - max(seen.cursor, seen.log_start_offset)
        runs = await _until_done(
            f"compacting {log}", left, lambda: compactor.compact_once(*log, max_offsets=max_offsets), seen.next_offset
        )
        if merge:
            runs += await _until_done(f"merging {log}", None, lambda: compactor.merge_once(*log), None)
        return runs


async def _until_done(
    what: str, total: int | None, once: Callable[[], Awaitable[Compacted | None]], end: int | None
) -> list[Compacted]:
    """Run after run, until nothing is left, or what was there at the start (below `end`) is done."""
    from llog.cli.progress import progress_line

    runs: list[Compacted] = []
    with progress_line(what, total=total) as advance:
        while (run := await once()) is not None:
            runs.append(run)
            advance(run.end_offset - run.start_offset + 1, f"{run.start_offset} … {run.end_offset}")
            if end is not None and run.kind == "COMPACT" and run.end_offset + 1 >= end:
                break
    return runs


# -- delete records --------------------------------------------------------------------------------------------------


def delete_records(
    topic: str,
    partition: int,
    offset: Annotated[int, typer.Argument(help="The first offset that stays; -1 for none.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Delete the records of one log below OFFSET."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    ends = asyncio.run(_ends(settings, topic, partition))
    before = first_kept(ends, offset)
    gone = max(0, before - ends.log_start_offset)
    words = f"{gone} offsets of {ends.log}" + (f": {ends.log_start_offset} … {before - 1}" if gone else "")
    if dry_run:
        document = {"topic": topic, "partition": partition, "offsets": gone, "log_start_offset": before}
        if as_json:
            print_json({**document, "dry_run": True})
        else:
            typer.echo(f"would delete {words}; nothing was changed")
        return
    if not yes:
        ask(f"Delete {words}? It cannot be undone")
    done = asyncio.run(_delete(settings, ends.log, before))
    if as_json:
        print_json({**done._asdict(), "log": str(done.log), "dry_run": False})
    else:
        removed = f"{done.entries_removed} index entries and {done.segments_removed} segments removed"
        typer.echo(f"{done.log} begins at {done.log_start_offset} now; {removed}")


def first_kept(ends: Ends, offset: int) -> int:
    """Where the log will begin. -1 means the end that was shown, not one that the log grows to until the answer."""
    from llog.errors import OffsetOutOfRange

    if offset == -1:
        return ends.next_offset
    if not 0 <= offset <= ends.next_offset:
        raise OffsetOutOfRange(*ends.log, offset, ends.log_start_offset, ends.next_offset + 1)
    return max(offset, ends.log_start_offset)


async def _ends(settings: Settings, topic: str, partition: int) -> Ends:
    from llog.cli.records.seeking import read_ends
    from llog.opening import opened_log
    from llog.pipeline.runtime.log_choice import logs_of

    async with opened_log(settings) as stores:
        [ends] = await read_ends(stores.context, await logs_of(stores.context, topic, partition))
        return ends


async def _delete(settings: Settings, log: Log, before_offset: int) -> Retained:
    from llog.cli.progress import progress_line
    from llog.log.cleanup.retention import delete_records as delete
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        with progress_line(f"deleting below {before_offset} of {log}"):
            return await delete(stores.context, log, before_offset)
