"""`llog offsets`: where the logs of a topic begin and end. `llog group …`: positions of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from llog.cli.exits import FAILED
from llog.cli.frame import PartitionOption, TopicName, on_log, with_stores
from llog.cli.output import AsJson, instant, print_report

if TYPE_CHECKING:
    from llog.broker.groups.positions import CommittedPosition
    from llog.cli.seek import LogSpan
    from llog.errors import LogError
    from llog.log.context import LogContext
    from llog.log.keys import Log
    from llog.log.read.timestamps import OffsetAndTimestamp
    from llog.settings import Settings

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]

# -- of a topic ------------------------------------------------------------------------------------------------------

FORMER_SPELLINGS: Final = {
    "group": "; positions are shown by `llog group describe GROUP` and set by `llog group commit GROUP`",
    "topic": "; offsets of a topic are shown by `llog offsets TOPIC`",
}


class OffsetsCommand(TyperCommand):
    """Adds the new spelling to the usage error of a former one: `llog offsets group GROUP`, `llog offsets topic
    TOPIC`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        hint = FORMER_SPELLINGS.get(args[0] if args else "", "")
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hint and hasattr(error, "message"):  # a usage error
                error.message += hint
            raise


@with_stores("metadata")
def offsets(
    settings: Settings,
    topic: TopicName,
    partition: PartitionOption = None,
    timestamp_ms: Annotated[
        int | None, typer.Option("--timestamp-ms", min=0, help="Also show the first record at or after this time.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the first readable offset of each log and the offset of its next record."""

    async def read(context: LogContext) -> list[tuple[LogSpan, OffsetAndTimestamp | None]]:
        from llog.cli.seek import read_spans
        from llog.log.read.timestamps import offset_for_timestamp

        spans = await read_spans(context, topic, partition)
        if timestamp_ms is None:
            return [(span, None) for span in spans]
        return [
            (span, await offset_for_timestamp(context, span.log, timestamp_ms) if span.initialized else None)
            for span in spans
        ]

    spans, by_time = on_log(settings, read), timestamp_ms is not None
    columns = ("log", "start", "next", "offsets", *(("since", "timestamp") if by_time else ()))
    rows = []
    for span, since in spans:
        time_cells = ("none", "") if since is None else (str(since.offset), str(since.timestamp_ms))
        numbers = (span.log_start_offset, span.next_offset, span.next_offset - span.log_start_offset)
        rows.append((str(span.log), *map(str, numbers), *(time_cells if by_time else ())))
    documents = [
        {
            "topic": span.log.topic,
            "partition": span.log.partition,
            "log_start_offset": span.log_start_offset,
            "next_offset": span.next_offset,
            **({"since": None if since is None else since._asdict()} if by_time else {}),
        }
        for span, since in spans
    ]
    print_report(as_json, documents, columns, rows)


# -- of a group ------------------------------------------------------------------------------------------------------

group_app = typer.Typer(help="Show and set the positions of consumer groups.", no_args_is_help=True)


@group_app.command()
@with_stores("metadata")
def describe(
    settings: Settings,
    group: GroupName,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    partition: PartitionOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the positions of a consumer group and how many offsets it is behind."""
    from llog.errors import InvalidArgument

    if partition is not None and topic is None:
        raise InvalidArgument("--partition", "needs --topic")

    async def read(context: LogContext) -> list[tuple[LogSpan, CommittedPosition]]:
        from llog.broker.groups.positions import GroupPositions
        from llog.cli.seek import read_span
        from llog.pipeline.runtime.log_choice import logs_of

        positions = await GroupPositions(context).fetch(group)
        logs = sorted(positions) if topic is None else await logs_of(context, topic, partition)
        return [
            (await read_span(context, log), committed) for log in logs if (committed := positions.get(log)) is not None
        ]

    positions = on_log(settings, read)
    documents = [
        {
            "topic": span.log.topic,
            "partition": span.log.partition,
            **committed.position._asdict(),
            "committed_at_ms": committed.committed_at_ms,
            "next_offset": span.next_offset,
            "behind": max(0, span.next_offset - committed.position.offset),
        }
        for span, committed in positions
    ]
    rows = [
        (
            str(span.log),
            str(committed.position.offset),
            str(span.next_offset),
            str(max(0, span.next_offset - committed.position.offset)),
            instant(committed.committed_at_ms),
            committed.position.metadata,
        )
        for span, committed in positions
    ]
    columns = ("log", "position", "next", "behind", "committed", "metadata")
    print_report(as_json, documents, columns, rows, empty=f"group {group} has no position")


@group_app.command()
@with_stores("metadata", audit="group.commit")
def commit(
    settings: Settings,
    group: GroupName,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to set positions in.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TARGET", help="earliest, latest, an offset, -N before the end, or @MS for a timestamp."
        ),
    ],
    partition: PartitionOption = None,
    as_json: AsJson = False,
) -> None:
    """Set the positions of a consumer group in a topic."""
    from llog.cli.seek import parse_target

    target = parse_target(to, "--to")

    async def write(context: LogContext) -> dict[Log, tuple[int, LogError | None]]:
        """By log: the offset, and why it was not stored."""
        from llog.broker.groups.positions import GroupPositions, Position
        from llog.cli.seek import find_offset, read_spans

        spans = await read_spans(context, topic, partition)
        positions = {span.log: Position(await find_offset(context, span, target)) for span in spans}
        outcomes = await GroupPositions(context).commit_all(group, positions)
        return {log: (positions[log].offset, error) for log, error in outcomes.items()}

    outcomes = on_log(settings, write)
    documents = [
        {
            "topic": log.topic,
            "partition": log.partition,
            "offset": offset,
            "error": None if error is None else str(error),
        }
        for log, (offset, error) in outcomes.items()
    ]
    rows = [
        (str(log), str(offset), "committed" if error is None else "FAILED") for log, (offset, error) in outcomes.items()
    ]
    print_report(as_json, documents, ("log", "position", "result"), rows)
    failed = [error for _, error in outcomes.values() if error is not None]
    for error in failed:
        typer.echo(f"llog: group {group}: {error}", err=True)
    if failed:
        raise typer.Exit(FAILED)
