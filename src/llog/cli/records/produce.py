"""Appending for `llog produce`: lines become records, records become batches, batches are appended in order.

A batch is appended when it is large enough (LLOG_BATCH_MAX_BYTES) or its first line has waited LLOG_BATCH_MAX_DELAY_MS,
so that a person who types sees each line land. Within a partition, records keep the order of their lines.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, BinaryIO, Final

from llog.api.aio import AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.cli.output import print_json_line, progress_line
from llog.cli.records.record_text import LineSplitter, ParsedRecord, Parser
from llog.errors import LogError
from llog.formats.partitioner import Partitioner, has_partition, partitions_of_keys
from llog.limits import KIB
from llog.log.append.append import Appended
from llog.log.keys import check_partition, check_topic
from llog.log.topics.create import load_topic
from llog.settings import Settings

# Records in one append; LLOG_BATCH_MAX_BYTES limits its bytes.
PRODUCE_RECORDS_MAX: Final = 50_000
# How much of standard input is read at a time, and how many chunks may wait.
INPUT_CHUNK_BYTES: Final = 256 * KIB
INPUT_CHUNKS_MAX: Final = 4


class PartitionChoice:
    """The partition of each record: the given one, else that of its key, else all in turn, batch by batch."""

    def __init__(self, partition: int | None, partitioner: Partitioner) -> None:
        self._partition = None if partition is None else check_partition(partition)
        self._partitioner: Partitioner = partitioner
        self.partition_count = 1

    def of(self, records: Sequence[ParsedRecord], batch_number: int) -> list[int]:
        if self._partition is not None:
            return [self._partition] * len(records)
        chosen = [batch_number % self.partition_count] * len(records)
        keyed = [row for row, record in enumerate(records) if has_partition(record.key, self._partitioner)]
        if keyed:
            keys = [records[row].key or b"" for row in keyed]
            by_key = partitions_of_keys(keys, self.partition_count, self._partitioner)
            for row, partition in zip(keyed, by_key.tolist(), strict=True):
                chosen[row] = partition
        return chosen


class LineBatch:
    """Records of one append."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[ParsedRecord] = []
        self.size_bytes = 0

    def add(self, record: ParsedRecord) -> None:
        self.records.append(record)
        self.size_bytes += len(record.key or b"") + len(record.payload or b"")
        self.size_bytes += sum(len(name) + len(value or b"") for name, value in record.headers)

    @property
    def count(self) -> int:
        return len(self.records)

    def groups(self, topic: str, choice: PartitionChoice, now_ms: int) -> list[SharedAppendGroup]:
        by_partition: dict[int, list[ParsedRecord]] = {}
        for record, partition in zip(self.records, choice.of(self.records, self.number), strict=True):
            by_partition.setdefault(partition, []).append(record)
        return [
            SharedAppendGroup(
                topic,
                partition,
                [record.payload for record in records],
                # The encoding of bare payloads accepts no keys, not even null ones.
                keys=[record.key for record in records] if any(r.key is not None for r in records) else None,
                headers=[record.headers for record in records] if any(r.headers for r in records) else None,
                timestamps_ms=timestamps_of(records, now_ms),
            )
            for partition, records in sorted(by_partition.items())
        ]


def timestamps_of(records: Sequence[ParsedRecord], now_ms: int) -> list[int] | None:
    """The records' own timestamps, `now_ms` where one has none; None when none has one."""
    if all(record.timestamp_ms is None for record in records):
        return None
    return [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]


class Producing:
    def __init__(
        self, settings: Settings, topic: str, choice: PartitionChoice, parser: Parser, *, as_json: bool
    ) -> None:
        self._settings, self._topic, self._parser, self._as_json = settings, check_topic(topic), parser, as_json
        self._choice = choice
        self.appended = 0
        self._landed: dict[int, tuple[int, int, int]] = {}
        """By partition: records, first offset, last offset."""

    async def run(self, stream: BinaryIO) -> None:
        loop = asyncio.get_running_loop()
        async with await AsyncLeaderlessLogWriter.open(self._settings) as writer:
            loaded = await load_topic(writer.context, self._topic)
            if loaded is not None and loaded[0].state == "LIVE":
                self._choice.partition_count = loaded[0].partition_count
            source = StandardInput(stream)

            def interrupted() -> None:
                source.stop()
                loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends the command at once

            loop.add_signal_handler(signal.SIGINT, interrupted)
            try:
                with progress_line("appending", wanted=not stream.isatty()) as advance:
                    async for batch in self._batches(source):
                        await self._append(writer, batch)
                        advance(batch.count, f"{self.appended:,} records")
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                source.close()

    async def _batches(self, source: StandardInput) -> AsyncIterator[LineBatch]:
        loop = asyncio.get_running_loop()
        delay_s = self._settings.batch_max_delay_ms / 1_000
        lines, line_number = LineSplitter(), 0
        batch, due_s = LineBatch(0), 0.0
        ended = False
        while not ended:
            chunk = await source.chunk(max(0.0, due_s - loop.time()) if batch.count else None)
            ended = chunk == b""
            for line in lines.end() if ended else lines.feed(chunk or b""):
                line_number += 1
                record = self._parser.parse(line, line_number)
                if not batch.count:
                    due_s = loop.time() + delay_s
                batch.add(record)
                if self._full(batch):
                    yield batch
                    batch = LineBatch(batch.number + 1)
            if batch.count and (ended or loop.time() >= due_s):
                yield batch
                batch = LineBatch(batch.number + 1)

    def _full(self, batch: LineBatch) -> bool:
        return batch.size_bytes >= self._settings.batch_max_bytes or batch.count >= PRODUCE_RECORDS_MAX

    async def _append(self, writer: AsyncLeaderlessLogWriter, batch: LineBatch) -> None:
        try:
            groups = batch.groups(self._topic, self._choice, writer.context.now_ms())
            results = await writer.append_shared(groups)
        except LogError as error:
            # Some partitions may have succeeded; a user who repeats the rest needs to know which.
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
            offsets = {"start_offset": start_offset, "end_offset": end_offset, "count": landed}
            print_json_line({"topic": self._topic, "partition": partition, **offsets})

    def lines(self) -> Iterator[str]:
        """The result, for people."""
        if not self._landed:
            yield "nothing was appended: standard input was empty"
        for partition, (count, first, last) in sorted(self._landed.items()):
            yield f"{self._topic}:{partition}: {count} records, offsets {first} … {last}"


class StandardInput:
    """Reads a stream in a thread, chunk by chunk, with an end that Ctrl-C can bring early.

    An event loop cannot wait for a file, and a terminal may be silent for hours. The thread is a daemon and reads the
    descriptor itself: the lock of Python's buffered reader would block the end of the process. At most INPUT_CHUNKS_MAX
    chunks wait; then the thread waits for the consumer.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(INPUT_CHUNKS_MAX)
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._next: asyncio.Future[bytes | OSError] | None = None
        threading.Thread(target=self._read_all, name="llog-stdin", daemon=True).start()

    def stop(self) -> None:
        """Behave as if the input ended here."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def chunk(self, wait_s: float | None = None) -> bytes | None:
        """The next chunk; empty at the end; None when nothing arrived within `wait_s`."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._chunks.get())
        either: set[asyncio.Future[Any]] = {self._next, self._stopped}
        await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            return b""
        if not self._next.done():
            return None
        chunk, self._next = self._next.result(), None
        if isinstance(chunk, OSError):
            raise chunk
        return chunk

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    # -- in the thread -----------------------------------------------------------------------------------------------
    def _read_all(self) -> None:
        chunk: bytes | OSError = b" "
        while isinstance(chunk, bytes) and chunk:
            try:
                chunk = self._read()
            except OSError as error:
                chunk = error
            except ValueError:  # the stream was closed: its reader has ended
                return
            handing = self._chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(handing, self._loop).result()
            except (RuntimeError, CancelledError):
                handing.close()  # the event loop has ended
                return

    def _read(self) -> bytes:
        try:
            descriptor = self._stream.fileno()
        except io.UnsupportedOperation:
            return self._stream.read(INPUT_CHUNK_BYTES)
        return os.read(descriptor, INPUT_CHUNK_BYTES)
