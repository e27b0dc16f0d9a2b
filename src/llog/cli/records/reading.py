"""What `llog consume` and `llog tail` do: find where to begin in each log, and copy records to standard output.

What must stay true: all starts are found before anything is written, so a wrong offset writes nothing; memory is
bounded by what one read brings, however much goes through.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import typer

from llog.cli.records.record_text import Write
from llog.cli.records.seeking import Ends, Place, find_place, read_ends
from llog.errors import OffsetOutOfRange, TopicNotFound
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.admin import PartitionDescription, describe_topic
from llog.opening import opened_log
from llog.pipeline.runtime.log_choice import logs_of
from llog.settings import Settings

if TYPE_CHECKING:
    from llog.pipeline.runtime.progress import Advance
from typing import Final

# How often `llog tail` looks whether logs grew.
CLI_TAIL_POLL_MS: Final = 250


class Sink:
    """Standard output, and how many more records it wants."""

    def __init__(self, stream: BinaryIO, write: Write, max_records: int | None, advance: Advance | None = None) -> None:
        self._stream, self._write = stream, write
        self._left = max_records
        self._advance = advance
        self._written = 0

    @property
    def full(self) -> bool:
        return self._left == 0

    async def copy(self, context: LogContext, log: Log, start: int, end_offset: int) -> int:
        """Write what lies from `start` to `end_offset`; the offset behind what was written."""
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
                    self._tell(len(shown), log)
                    start = max(start, run.next_offset)
                    if self.full:
                        break
            near = end_offset
        return start

    def _tell(self, count: int, log: Log) -> None:
        self._written += count
        if self._advance is not None:
            self._advance(count, f"{self._written:,} records, at {log}")


async def consume(settings: Settings, topic: str, partition: int | None, place: Place, sink: Sink) -> None:
    """Up to the end of each log as it is now, partition after partition."""
    async with opened_log(settings) as stores:
        for start, ends in await find_starts(stores.context, topic, partition, place):
            await sink.copy(stores.context, ends.log, start, ends.next_offset - 1)


async def find_starts(context: LogContext, topic: str, partition: int | None, place: Place) -> list[tuple[int, Ends]]:
    starts = []
    for ends in await read_ends(context, await logs_of(context, topic, partition)):
        start = await find_place(context, ends, place)
        if not ends.log_start_offset <= start <= ends.next_offset:
            raise OffsetOutOfRange(*ends.log, start, ends.log_start_offset, ends.next_offset)
        starts.append((start, ends))
    return starts


async def tail(settings: Settings, topic: str, partition: int | None, place: Place, sink: Sink) -> None:
    """Until the sink is full, the topic is gone, or somebody cancels it."""
    async with opened_log(settings) as stores:
        context = stores.context
        followed = (await describe_topic(context, topic)).topic.record.topic_id
        positions = {ends.log: start for start, ends in await find_starts(context, topic, partition, place)}
        while True:
            seen = await describe_topic(context, topic)
            if seen.topic.record.topic_id != followed:
                raise TopicNotFound(topic, "it was deleted and created again: follow it anew")
            for one in seen.partitions:
                if partition is None or one.partition == partition:
                    await follow(context, Log(topic, one.partition), one, positions, sink)
                if sink.full:
                    return
            await asyncio.sleep(CLI_TAIL_POLL_MS / 1_000)


async def follow(
    context: LogContext, log: Log, seen: PartitionDescription, positions: dict[Log, int], sink: Sink
) -> None:
    """Write what is new in one log. What was seen may be stale: then there is only less of it."""
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
