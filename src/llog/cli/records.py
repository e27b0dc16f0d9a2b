"""`llog produce`, `llog consume`, `llog tail`: records from standard input, and to standard output, as kcat does it.

What must stay true: memory is bounded by one batch and some pieces of input, however much goes through; `produce` says
how much was appended also when it ends with an error; what these three write with `--json` is one document per line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from llog.cli.output import AsJson
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.cli.record_text import Write
    from llog.cli.seeking import Ends, Place
    from llog.log.context import LogContext
    from llog.log.keys import Log
    from llog.log.topic_admin import PartitionDescription
    from llog.settings import Settings

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", help="Only this one; all when left out.")]
From = Annotated[
    str,
    typer.Option(
        "--from", metavar="PLACE", help="earliest, latest, an offset, -N for the last N, @MS for a timestamp."
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
    as_base64: Base64 = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Append the lines of standard input, one record each. Ctrl-C ends the input; with --json, offsets as they land."""
    import asyncio

    from llog.cli.producing import Producing
    from llog.cli.record_text import LineParser
    from llog.settings import Settings

    parser = LineParser(key_separator=key_separator, decode_base64=as_base64, tombstones=tombstones)
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


# -- consume ---------------------------------------------------------------------------------------------------------


def consume(
    topic: TopicName,
    partition: Partition = None,
    place: From = "earliest",
    max_records: MaxRecords = None,
    format_text: Format = r"%s\n",
    as_base64: Base64 = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
) -> None:
    """Write records to standard output, up to the end of the log as it is now: partition after partition."""
    import asyncio

    from llog.cli.record_text import writer
    from llog.cli.seeking import parse_place
    from llog.settings import Settings

    write = writer(format_text, as_json=as_json, as_base64=as_base64)
    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url)
    sink = _Sink(typer.get_binary_stream("stdout"), write, max_records)
    asyncio.run(_consume(settings, topic, partition, parse_place(place), sink))


class _Sink:
    """Standard output, and how many more records it wants."""

    def __init__(self, stream: BinaryIO, write: Write, max_records: int | None) -> None:
        self._stream, self._write = stream, write
        self._left = max_records

    @property
    def full(self) -> bool:
        return self._left == 0

    async def copy(self, context: LogContext, log: Log, start: int, end_offset: int) -> int:
        """Write what lies from `start` to `end_offset`; the offset behind what was written."""
        from contextlib import aclosing
        from itertools import islice

        from llog.log.read import iter_runs

        # Of few records no more is fetched than they take. Key compaction leaves holes: then the loop goes on behind.
        near = end_offset if self._left is None else min(end_offset, start + self._left - 1)
        while start <= end_offset and not self.full:
            async with aclosing(iter_runs(context, log, start, end_offset=near)) as runs:
                async for run in runs:
                    wanted = (record for record in run.records() if record.offset <= end_offset)
                    shown = [self._write(log, record) for record in islice(wanted, self._left)]
                    self._left = None if self._left is None else self._left - len(shown)
                    self._stream.write(b"".join(shown))
                    self._stream.flush()
                    start = max(start, run.next_offset)
                    if self.full:
                        break
            near = end_offset
        return start


async def _consume(settings: Settings, topic: str, partition: int | None, place: Place, sink: _Sink) -> None:
    from llog.api.opening import opened_log

    async with opened_log(settings) as stores:
        for start, ends in await _starts(stores.context, topic, partition, place):
            await sink.copy(stores.context, ends.log, start, ends.next_offset - 1)


async def _starts(context: LogContext, topic: str, partition: int | None, place: Place) -> list[tuple[int, Ends]]:
    """Where to begin in each log. All are found before anything is written, so a wrong offset writes nothing."""
    from llog.cli.seeking import chosen_logs, find_place, read_ends
    from llog.errors import OffsetOutOfRange

    starts = []
    for ends in await read_ends(context, await chosen_logs(context, topic, partition)):
        start = await find_place(context, ends, place)
        if not ends.log_start_offset <= start <= ends.next_offset:
            raise OffsetOutOfRange(*ends.log, start, ends.log_start_offset, ends.next_offset)
        starts.append((start, ends))
    return starts


# -- tail ------------------------------------------------------------------------------------------------------------


def tail(
    topic: TopicName,
    partition: Partition = None,
    place: From = "latest",
    max_records: MaxRecords = None,
    format_text: Format = r"%s\n",
    as_base64: Base64 = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
) -> None:
    """Follow a topic: write records as they are appended, until Ctrl-C."""
    import asyncio
    from contextlib import suppress

    from llog.cli.record_text import writer
    from llog.cli.seeking import parse_place
    from llog.settings import Settings

    write = writer(format_text, as_json=as_json, as_base64=as_base64)
    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url)
    sink = _Sink(typer.get_binary_stream("stdout"), write, max_records)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        asyncio.run(_tail(settings, topic, partition, parse_place(place), sink))


async def _tail(settings: Settings, topic: str, partition: int | None, place: Place, sink: _Sink) -> None:
    import asyncio

    from llog.api.opening import opened_log
    from llog.errors import TopicNotFound
    from llog.limits import CLI_TAIL_POLL_MS
    from llog.log.keys import Log
    from llog.log.topic_admin import describe_topic

    async with opened_log(settings) as stores:
        context = stores.context
        followed = (await describe_topic(context, topic)).topic.record.topic_id
        positions = {ends.log: start for start, ends in await _starts(context, topic, partition, place)}
        while True:
            seen = await describe_topic(context, topic)
            if seen.topic.record.topic_id != followed:
                raise TopicNotFound(topic, "it was deleted and created again: follow it anew")
            for one in seen.partitions:
                if partition is None or one.partition == partition:
                    await _follow(context, Log(topic, one.partition), one, positions, sink)
                if sink.full:
                    return
            await asyncio.sleep(CLI_TAIL_POLL_MS / 1_000)


async def _follow(
    context: LogContext, log: Log, seen: PartitionDescription, positions: dict[Log, int], sink: _Sink
) -> None:
    """Write what is new in one log. What was seen may be stale: then there is only less of it."""
    from llog.errors import OffsetOutOfRange

    start = positions.setdefault(log, seen.log_start_offset)  # a partition that was added meanwhile
    if start < seen.log_start_offset:
        typer.echo(f"llog: {log}: {start} … {seen.log_start_offset - 1} were removed before they were read", err=True)
        start = positions[log] = seen.log_start_offset
    try:
        positions[log] = await sink.copy(context, log, start, seen.next_offset - 1)
    except OffsetOutOfRange as error:
        if error.offset >= error.log_start_offset:
            raise
        positions[log] = error.offset  # removed under us: the next look tells how much
