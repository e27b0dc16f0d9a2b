"""`llog produce`, `llog consume`, `llog tail`: records from standard input, and to standard output, as kcat does it.

What must stay true: memory is bounded by one batch and some pieces of input, however much goes through; `produce` says
how much was appended also when it ends with an error; what these three write with `--json` is one document per line.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", help="Only this one; all when left out.")]
From = Annotated[
    str,
    typer.Option(
        "--from", "-o", metavar="PLACE", help="earliest, latest, an offset, -N for the last N, @MS for a timestamp."
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
Base64 = Annotated[bool, typer.Option("--base64", help="Keys and payloads in base64.")]
MaxRecords = Annotated[int | None, typer.Option("--max", "-c", min=1, help="End after so many records.")]
LineJson = Annotated[bool, typer.Option("--json", help="One JSON document per line.")]


# -- produce ---------------------------------------------------------------------------------------------------------


def produce(
    topic: TopicName,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="When left out: by the key, and in turn without one.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help=r"What stands between key and payload, as in ':' or '\t'."),
    ] = None,
    tombstones: Annotated[bool, typer.Option("--tombstones", "-Z", help="An empty payload is a null.")] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record; may be given many times."),
    ] = None,
    read_as: Annotated[
        Literal["lines", "json"],
        typer.Option("--input", help="What a line is: key and payload, or a document as `consume --json` writes it."),
    ] = "lines",
    as_base64: Base64 = False,
    as_json: LineJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Append the lines of standard input, one record each. Ctrl-C ends the input; with --json, offsets as they land."""
    import asyncio

    from llog.cli.records.producing import Producing
    from llog.cli.records.record_text import parser_of
    from llog.settings import Settings

    parser = parser_of(
        read_as, key_separator=key_separator, decode_base64=as_base64, tombstones=tombstones, headers=header or ()
    )
    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    producing = Producing(settings, topic, partition, parser, as_json=as_json)
    try:
        asyncio.run(producing.run(typer.get_binary_stream("stdin")))
    except Exception:
        typer.echo(f"llog: {producing.appended} records were appended before this:", err=True)
        raise
    if not as_json:
        for line in producing.lines():
            typer.echo(line)


# -- consume and tail ------------------------------------------------------------------------------------------------


def consume(
    topic: TopicName,
    partition: Partition = None,
    place: From = "earliest",
    max_records: MaxRecords = None,
    format_text: Format = r"%s\n",
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", hidden=True, help="As it does anyway; who comes from kcat types it.")
    ] = True,
    as_base64: Base64 = False,
    as_json: LineJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
) -> None:
    """Write records to standard output, up to the end of the log as it is now: partition after partition."""
    _read(
        False, topic, partition, place, max_records, format_text, as_base64, as_json, metadata_url, objects_url
    )  # fmt: skip


def tail(
    topic: TopicName,
    partition: Partition = None,
    place: From = "latest",
    max_records: MaxRecords = None,
    format_text: Format = r"%s\n",
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="End where the log ends now, as `consume` does.")
    ] = False,
    as_base64: Base64 = False,
    as_json: LineJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
) -> None:
    """Follow a topic: write records as they are appended, until Ctrl-C."""
    _read(
        not exit_at_end, topic, partition, place, max_records, format_text, as_base64, as_json, metadata_url,
        objects_url,
    )  # fmt: skip


def _read(
    following: bool,
    topic: str,
    partition: int | None,
    place: str,
    max_records: int | None,
    format_text: str,
    as_base64: bool,
    as_json: bool,
    metadata_url: str | None,
    objects_url: str | None,
) -> None:
    import asyncio
    import sys
    from contextlib import suppress

    from llog.cli.progress import progress_line
    from llog.cli.records import reading
    from llog.cli.records.record_text import writer
    from llog.cli.records.seeking import parse_place
    from llog.settings import Settings

    write, start = writer(format_text, as_json=as_json, as_base64=as_base64), parse_place(place)
    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url)
    # Between records on a terminal a line that moves would only be in their way.
    with progress_line("reading", wanted=not (following or sys.stdout.isatty())) as advance:
        sink = reading.Sink(typer.get_binary_stream("stdout"), write, max_records, advance)
        if not following:
            asyncio.run(reading.consume(settings, topic, partition, start, sink))
            return
        with suppress(KeyboardInterrupt):  # the usual way to end it
            asyncio.run(reading.tail(settings, topic, partition, start, sink))
