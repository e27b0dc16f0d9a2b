"""`llog produce`, `llog consume` and `llog tail`: records from standard input and to standard output, as kcat does.

Memory is bounded by one batch and a few chunks of input, however much passes through. With `--json` each line is one
document. When `produce` fails, it says how many records were appended before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llog.cli.frame import PartitionOption, TopicName, with_stores
from llog.cli.output import JsonLines, progress_line

if TYPE_CHECKING:
    from llog.settings import Settings

From = Annotated[
    str,
    typer.Option(
        "--from", "-o", metavar="TARGET", help="earliest, latest, an offset, -N for the last N, @MS for a timestamp."
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        help="%s payload, %k key, %o offset, %p partition, %t topic, %T timestamp, %h headers, %S and %K lengths.",
    ),
]
Base64 = Annotated[bool, typer.Option("--base64", help="Keys and payloads are base64.")]
RecordsMax = Annotated[int | None, typer.Option("--max", "-c", min=1, help="Stop after this many records.")]


@with_stores("metadata", "objects", "wal")
def produce(
    settings: Settings,
    topic: TopicName,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", help="By default: by the key, and in turn for records without a key."),
    ] = None,
    partitioner: Annotated[
        Literal["murmur2", "crc32"],
        typer.Option("--partitioner", help="How a key chooses: as Kafka's Java clients, or as librdkafka by default."),
    ] = "murmur2",
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help=r"Separates key and payload, as in ':' or '\t'."),
    ] = None,
    tombstones: Annotated[bool, typer.Option("--tombstones", "-Z", help="Store an empty payload as null.")] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record; repeatable."),
    ] = None,
    read_as: Annotated[
        Literal["lines", "json"],
        typer.Option("--input", help="What a line holds: key and payload, or a document of `consume --json`."),
    ] = "lines",
    as_base64: Base64 = False,
    as_json: JsonLines = False,
) -> None:
    """Append each line of standard input as a record. Ctrl-C ends the input; --json prints offsets as they land."""
    import asyncio

    from llog.cli.records.produce import PartitionChoice, Producing
    from llog.cli.records.record_text import parser_of

    parser = parser_of(
        read_as, key_separator=key_separator, decode_base64=as_base64, tombstones=tombstones, headers=header or ()
    )
    producing = Producing(settings, topic, PartitionChoice(partition, partitioner), parser, as_json=as_json)
    try:
        asyncio.run(producing.run(typer.get_binary_stream("stdin")))
    except Exception:
        typer.echo(f"llog: {producing.appended} records were appended before this error:", err=True)
        raise
    if not as_json:
        for line in producing.lines():
            typer.echo(line)


@with_stores("metadata", "objects")
def consume(
    settings: Settings,
    topic: TopicName,
    partition: PartitionOption = None,
    start: From = "earliest",
    records_max: RecordsMax = None,
    format_text: Format = r"%s\n",
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", hidden=True, help="The default; accepted for users of kcat.")
    ] = True,
    as_base64: Base64 = False,
    as_json: JsonLines = False,
) -> None:
    """Write records to standard output, up to the present end of each log, one partition after the other."""
    _read(settings, topic, partition, start, records_max, format_text, as_base64, as_json, follow=False)


@with_stores("metadata", "objects")
def tail(
    settings: Settings,
    topic: TopicName,
    partition: PartitionOption = None,
    start: From = "latest",
    records_max: RecordsMax = None,
    format_text: Format = r"%s\n",
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the present end of the log, as `consume` does.")
    ] = False,
    as_base64: Base64 = False,
    as_json: JsonLines = False,
) -> None:
    """Follow a topic: write records as they are appended, until Ctrl-C."""
    _read(settings, topic, partition, start, records_max, format_text, as_base64, as_json, follow=not exit_at_end)


def _read(
    settings: Settings,
    topic: str,
    partition: int | None,
    start: str,
    records_max: int | None,
    format_text: str,
    as_base64: bool,
    as_json: bool,
    *,
    follow: bool,
) -> None:
    import asyncio
    import sys
    from contextlib import suppress

    from llog.cli.records import consume
    from llog.cli.records.record_text import writer
    from llog.cli.seek import parse_target

    write, target = writer(format_text, as_json=as_json, as_base64=as_base64), parse_target(start)
    # On a terminal, a progress line would move between the records.
    with progress_line("reading", wanted=not (follow or sys.stdout.isatty())) as advance:
        output = consume.RecordOutput(typer.get_binary_stream("stdout"), write, records_max, advance)
        if not follow:
            asyncio.run(consume.consume(settings, topic, partition, target, output))
            return
        with suppress(KeyboardInterrupt):  # the usual way to end it
            asyncio.run(consume.tail(settings, topic, partition, target, output))
