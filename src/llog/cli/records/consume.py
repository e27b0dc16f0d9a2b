"""Reading for `llog consume` and `llog tail`: find the start in each log, then copy records to standard output.

All starts are found before anything is written, so a wrong offset writes nothing. Memory is bounded by one read.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final

import typer

from llog.cli.records.record_text import Write
from llog.cli.seek import LogSpan, SeekTarget, find_offset, read_spans
from llog.errors import OffsetOutOfRange, TopicNotFound
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.admin import PartitionDescription, describe_topic
from llog.settings import Settings
from llog.wiring import opened_log

if TYPE_CHECKING:
    from llog.pipeline.runtime.tasks import OnProgress

# How often `llog tail` checks whether logs have grown.
TAIL_POLL_MS: Final = 250


class RecordOutput:
    """Standard output, and the number of records it still takes."""

    def __init__(
        self, stream: BinaryIO, write: Write, records_max: int | None, advance: OnProgress | None = None
    ) -> None:
        self._stream, self._write = stream, write
        self._left = records_max
        self._advance = advance
        self._written = 0

    @property
    def full(self) -> bool:
        return self._left == 0

    async def copy(self, context: LogContext, log: Log, start: int, end_offset: int) -> int:
        """Write the records from `start` to `end_offset`; return the offset after the last one written."""
        # Fetch no more than the records that are left to write. Key compaction leaves gaps: then continue after them.
        near = end_offset if self._left is None else min(end_offset, start + self._left - 1)
        while start <= end_offset and not self.full:
            async with aclosing(iter_runs(context, log, start, end_offset=near)) as runs:
                async for run in runs:
                    wanted = (record for record in run.records() if record.offset <= end_offset)
                    lines = [self._write(log, record) for record in islice(wanted, self._left)]
                    self._left = None if self._left is None else self._left - len(lines)
                    self._stream.write(b"".join(lines))
                    self._stream.flush()
                    self._report(len(lines), log)
                    start = max(start, run.next_offset)
                    if self.full:
                        break
            near = end_offset
        return start

    def _report(self, count: int, log: Log) -> None:
        self._written += count
        if self._advance is not None:
            self._advance(count, f"{self._written:,} records, at {log}")


async def consume(
    settings: Settings, topic: str, partition: int | None, target: SeekTarget, output: RecordOutput
) -> None:
    """Copy each log up to its present end, one partition after the other."""
    async with opened_log(settings) as stores:
        for start, span in await find_starts(stores.context, topic, partition, target):
            await output.copy(stores.context, span.log, start, span.next_offset - 1)


async def find_starts(
    context: LogContext, topic: str, partition: int | None, target: SeekTarget
) -> list[tuple[int, LogSpan]]:
    starts = []
    for span in await read_spans(context, topic, partition):
        start = await find_offset(context, span, target)
        if not span.log_start_offset <= start <= span.next_offset:
            raise OffsetOutOfRange(*span.log, start, span.log_start_offset, span.next_offset)
        starts.append((start, span))
    return starts


async def tail(settings: Settings, topic: str, partition: int | None, target: SeekTarget, output: RecordOutput) -> None:
    """Follow the topic until the output is full, the topic is deleted, or the task is cancelled."""
    async with opened_log(settings) as stores:
        context = stores.context
        topic_id = (await describe_topic(context, topic)).topic.record.topic_id
        positions = {span.log: start for start, span in await find_starts(context, topic, partition, target)}
        while True:
            described = await describe_topic(context, topic)
            if described.topic.record.topic_id != topic_id:
                raise TopicNotFound(topic, "it was deleted and created again: start the command again to follow it")
            for one in described.partitions:
                if partition is None or one.partition == partition:
                    await follow(context, Log(topic, one.partition), one, positions, output)
                if output.full:
                    return
            await asyncio.sleep(TAIL_POLL_MS / 1_000)


async def follow(
    context: LogContext, log: Log, described: PartitionDescription, positions: dict[Log, int], output: RecordOutput
) -> None:
    """Write the new records of one log. A stale description only means that there are fewer of them."""
    start = positions.setdefault(log, described.log_start_offset)  # the partition may have been added just now
    first = described.log_start_offset
    if start < first:
        typer.echo(f"llog: {log}: offsets {start} … {first - 1} were removed before they were read", err=True)
        start = positions[log] = first
    try:
        positions[log] = await output.copy(context, log, start, described.next_offset - 1)
    except OffsetOutOfRange as error:
        if error.offset >= error.log_start_offset:
            raise
        positions[log] = error.offset  # removed during the read: the next round reports it
