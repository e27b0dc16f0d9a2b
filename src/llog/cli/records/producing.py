"""What `llog produce` does: lines become records, records become batches, batches are appended one after the other.

A batch goes when it is large enough (LLOG_BATCH_MAX_BYTES) or when its first line has waited LLOG_BATCH_MAX_DELAY_MS:
a person who types sees each line land. What must stay true: of one partition, records land in the order of their lines.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import BinaryIO, Final

from llog.api.aio import AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.cli.output import print_json_line
from llog.cli.progress import progress_line
from llog.cli.records.input import Input
from llog.cli.records.record_text import Lines, Parsed, Parser, partition_of
from llog.errors import LogError
from llog.log.append.append import Appended
from llog.log.keys import check_partition, check_topic
from llog.log.topics.create import load_topic
from llog.settings import Settings

# Records that one append of `llog produce` takes at most; bytes are LLOG_BATCH_MAX_BYTES.
CLI_PRODUCE_RECORDS_MAX: Final = 50_000


class Batch:
    """Records on their way, by partition."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: dict[int, list[Parsed]] = {}
        self.count = self.size_bytes = 0

    def add(self, partition: int, record: Parsed) -> None:
        self.records.setdefault(partition, []).append(record)
        self.count += 1
        self.size_bytes += len(record.key or b"") + len(record.payload or b"")
        self.size_bytes += sum(len(name) + len(value or b"") for name, value in record.headers)

    def groups(self, topic: str, now_ms: int) -> list[SharedAppendGroup]:
        return [
            SharedAppendGroup(
                topic,
                partition,
                [record.payload for record in records],
                # An encoding of bare payloads takes no keys, not even absent ones.
                keys=[record.key for record in records] if any(r.key is not None for r in records) else None,
                headers=[record.headers for record in records] if any(r.headers for r in records) else None,
                timestamps_ms=timestamps_of(records, now_ms),
            )
            for partition, records in sorted(self.records.items())
        ]


def timestamps_of(records: Sequence[Parsed], now_ms: int) -> list[int] | None:
    """Their own, where they have one; None when none has."""
    if all(record.timestamp_ms is None for record in records):
        return None
    return [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]


class Producing:
    def __init__(self, settings: Settings, topic: str, partition: int | None, parser: Parser, *, as_json: bool) -> None:
        self._settings, self._topic, self._parser, self._as_json = settings, check_topic(topic), parser, as_json
        self._partition = None if partition is None else check_partition(partition)
        self._partitions = 1
        self.appended = 0
        self._landed: dict[int, tuple[int, int, int]] = {}
        """By partition: records, first offset, last offset."""

    async def run(self, stream: BinaryIO) -> None:
        loop = asyncio.get_running_loop()
        async with await AsyncLeaderlessLogWriter.open(self._settings) as writer:
            found = await load_topic(writer.context, self._topic)
            if found is not None and found[0].state == "LIVE":
                self._partitions = found[0].partition_count
            source = Input(stream)

            def interrupted() -> None:
                source.stop()
                loop.remove_signal_handler(signal.SIGINT)  # a second one ends at once

            loop.add_signal_handler(signal.SIGINT, interrupted)
            try:
                with progress_line("appending", wanted=not stream.isatty()) as advance:
                    async for batch in self._batches(source):
                        await self._append(writer, batch)
                        advance(batch.count, f"{self.appended:,} records")
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                source.close()

    async def _batches(self, source: Input) -> AsyncIterator[Batch]:
        loop = asyncio.get_running_loop()
        delay_s = self._settings.batch_max_delay_ms / 1_000
        lines, line_number = Lines(), 0
        batch, due_s = Batch(0), 0.0
        ended = False
        while not ended:
            piece = await source.piece(max(0.0, due_s - loop.time()) if batch.count else None)
            ended = piece == b""
            for line in lines.end() if ended else lines.feed(piece or b""):
                line_number += 1
                record = self._parser.parse(line, line_number)
                if not batch.count:
                    due_s = loop.time() + delay_s
                batch.add(self._choose(record.key, batch.number), record)
                if self._full(batch):
                    yield batch
                    batch = Batch(batch.number + 1)
            if batch.count and (ended or loop.time() >= due_s):
                yield batch
                batch = Batch(batch.number + 1)

    def _choose(self, key: bytes | None, batch_number: int) -> int:
        return partition_of(key, batch_number, self._partitions) if self._partition is None else self._partition

    def _full(self, batch: Batch) -> bool:
        return batch.size_bytes >= self._settings.batch_max_bytes or batch.count >= CLI_PRODUCE_RECORDS_MAX

    async def _append(self, writer: AsyncLeaderlessLogWriter, batch: Batch) -> None:
        try:
            results = await writer.append_shared(batch.groups(self._topic, writer.context.now_ms()))
        except LogError as error:
            # Of several partitions some may have landed; whoever repeats the rest must know.
            for outcome in error.outcomes:
                if isinstance(outcome, Appended):
                    self._note(outcome.log.partition, outcome.start_offset, outcome.end_offset)
            raise
        for result in results:
            self._note(result.partition, result.start_offset, result.end_offset)

    def _note(self, partition: int, start_offset: int, end_offset: int) -> None:
        landed = end_offset - start_offset + 1
        self.appended += landed
        count, first, _ = self._landed.get(partition, (0, start_offset, 0))
        self._landed[partition] = (count + landed, first, end_offset)
        if self._as_json:
            document = {
                "topic": self._topic,
                "partition": partition,
                "start_offset": start_offset,
                "end_offset": end_offset,
                "count": landed,
            }
            print_json_line(document)

    def lines(self) -> Iterator[str]:
        """What became of it, for people."""
        if not self._landed:
            yield "nothing to append: standard input was empty"
        for partition, (count, first, last) in sorted(self._landed.items()):
            yield f"{self._topic}:{partition}: {count} records, offsets {first} … {last}"
