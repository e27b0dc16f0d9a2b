"""`llog offsets …`: where logs begin and end, and how far consumer groups have come.

`llog offsets TOPIC` is short for `llog offsets topic TOPIC`; the long form is for a topic called `topic` or `group`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from llog.cli.exits import FAILED
from llog.cli.output import AsJson, print_json, print_table
from llog.cli.stores import MetadataUrl

if TYPE_CHECKING:
    from llog.broker.groups.positions import CommittedPosition
    from llog.cli.records.seeking import Ends, Place
    from llog.errors import LogError
    from llog.log.keys import Log
    from llog.log.read.timestamps import OffsetAndTimestamp
    from llog.settings import Settings


class TopicUnlessToldOtherwise(TyperGroup):
    """What is neither a command nor a call for help is a topic's name, or an option of `topic`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["topic", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=TopicUnlessToldOtherwise,
    help="Where logs begin and end (`llog offsets TOPIC`), and how far consumer groups have come.",
    no_args_is_help=True,
)

Partition = Annotated[int | None, typer.Option("--partition", "-p", help="Only this one; all when left out.")]


# -- of a topic ------------------------------------------------------------------------------------------------------


@app.command()
def topic(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partition: Partition = None,
    timestamp_ms: Annotated[
        int | None, typer.Option("--timestamp-ms", min=0, help="Also the first record at least as new as this.")
    ] = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Show the first readable offset of each log, the one its next record gets, and offsets by timestamp."""
    import asyncio

    from llog.settings import Settings

    found = asyncio.run(_topic(Settings.from_env(metadata_url=metadata_url), name, partition, timestamp_ms))
    asked = timestamp_ms is not None
    if as_json:
        print_json([_document(ends, since, asked) for ends, since in found])
        return
    columns = ("log", "start", "next", "offsets", *(("since", "timestamp") if asked else ()))
    rows = []
    for ends, since in found:
        told = ("none", "") if since is None else (str(since.offset), str(since.timestamp_ms))
        span = (str(ends.log_start_offset), str(ends.next_offset), str(ends.next_offset - ends.log_start_offset))
        rows.append((str(ends.log), *span, *(told if asked else ())))
    print_table(columns, rows)


def _document(ends: Ends, since: OffsetAndTimestamp | None, asked: bool) -> dict[str, object]:
    return {
        "topic": ends.log.topic,
        "partition": ends.log.partition,
        "log_start_offset": ends.log_start_offset,
        "next_offset": ends.next_offset,
        **({"since": None if since is None else since._asdict()} if asked else {}),
    }


async def _topic(
    settings: Settings, name: str, partition: int | None, timestamp_ms: int | None
) -> list[tuple[Ends, OffsetAndTimestamp | None]]:
    from llog.cli.records.seeking import read_ends
    from llog.log.read.timestamps import offset_for_timestamp
    from llog.opening import opened_log
    from llog.pipeline.runtime.log_choice import logs_of

    async with opened_log(settings) as stores:
        context = stores.context
        found: list[tuple[Ends, OffsetAndTimestamp | None]] = []
        for ends in await read_ends(context, await logs_of(context, name, partition)):
            since = None
            if timestamp_ms is not None and ends.there:
                since = await offset_for_timestamp(context, ends.log, timestamp_ms)
            found.append((ends, since))
        return found


# -- of a group ------------------------------------------------------------------------------------------------------


@app.command()
def group(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")],
    action: Annotated[Literal["fetch", "commit"], typer.Argument(help="fetch shows positions, commit sets them.")] = (
        "fetch"
    ),
    topic_name: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic; commit needs it.")] = None,
    partition: Partition = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="For commit: earliest, latest, an offset, -N before the end, @MS for a timestamp.",
        ),
    ] = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Show the positions of a consumer group and how far it is behind, or set them."""
    import asyncio

    from llog.cli.records.seeking import parse_place
    from llog.errors import InvalidArgument
    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url)
    if partition is not None and topic_name is None:
        raise InvalidArgument("--partition", "needs --topic")
    if action == "fetch":
        if to is not None:
            raise InvalidArgument("--to", f"is for commit: llog offsets group {name} commit --topic … --to {to}")
        _print_positions(name, asyncio.run(_fetch(settings, name, topic_name, partition)), as_json)
        return
    if topic_name is None or to is None:
        raise InvalidArgument("commit", "needs --topic and --to, as in --topic orders --to earliest")
    place = parse_place(to, "--to")
    outcomes = asyncio.run(_commit(settings, name, topic_name, partition, place))
    _print_outcomes(name, outcomes, as_json)


async def _fetch(
    settings: Settings, name: str, topic_name: str | None, partition: int | None
) -> list[tuple[Ends, CommittedPosition]]:
    from llog.broker.groups.positions import GroupPositions
    from llog.cli.records.seeking import read_ends
    from llog.opening import opened_log
    from llog.pipeline.runtime.log_choice import logs_of

    async with opened_log(settings) as stores:
        context = stores.context
        positions = await GroupPositions(context).fetch(name)
        if topic_name is not None:
            wanted = await logs_of(context, topic_name, partition)
            positions = {log: positions[log] for log in wanted if log in positions}
        ends = await read_ends(context, sorted(positions))
        return [(one, committed) for one in ends if (committed := positions[one.log]) is not None]


def _print_positions(name: str, found: list[tuple[Ends, CommittedPosition]], as_json: bool) -> None:
    from datetime import UTC, datetime

    if as_json:
        print_json(
            [
                {
                    "topic": ends.log.topic,
                    "partition": ends.log.partition,
                    **committed.position._asdict(),
                    "committed_at_ms": committed.committed_at_ms,
                    "next_offset": ends.next_offset,
                    "behind": max(0, ends.next_offset - committed.position.offset),
                }
                for ends, committed in found
            ]
        )
        return
    if not found:
        typer.echo(f"{name} has no position here")
        return
    rows = [
        (
            str(ends.log),
            str(committed.position.offset),
            str(ends.next_offset),
            str(max(0, ends.next_offset - committed.position.offset)),
            datetime.fromtimestamp(committed.committed_at_ms / 1_000, UTC).isoformat(timespec="seconds"),
            committed.position.metadata,
        )
        for ends, committed in found
    ]
    print_table(("log", "position", "next", "behind", "committed", "metadata"), rows)


async def _commit(
    settings: Settings, name: str, topic_name: str, partition: int | None, place: Place
) -> dict[Log, tuple[int, LogError | None]]:
    """By log: the offset, and why it was not kept."""
    from llog.broker.groups.positions import GroupPositions, Position
    from llog.cli.records.seeking import find_place, read_ends
    from llog.opening import opened_log
    from llog.pipeline.runtime.log_choice import logs_of

    async with opened_log(settings) as stores:
        context = stores.context
        ends = await read_ends(context, await logs_of(context, topic_name, partition))
        positions = {one.log: Position(await find_place(context, one, place)) for one in ends}
        outcomes = await GroupPositions(context).commit_all(name, positions)
        return {log: (positions[log].offset, error) for log, error in outcomes.items()}


def _print_outcomes(name: str, outcomes: dict[Log, tuple[int, LogError | None]], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "topic": log.topic,
                    "partition": log.partition,
                    "offset": offset,
                    "error": None if error is None else str(error),
                }
                for log, (offset, error) in outcomes.items()
            ]
        )
    else:
        rows = [
            (str(log), str(offset), "kept" if error is None else "NOT KEPT")
            for log, (offset, error) in outcomes.items()
        ]
        print_table(("log", "position", "result"), rows)
    failed = [error for _, error in outcomes.values() if error is not None]
    for error in failed:
        typer.echo(f"llog: group {name}: {error}", err=True)
    if failed:
        raise typer.Exit(FAILED)
