"""Cached batches of many logs, found by offset and limited in bytes. The tail cache and the read-ahead keep them so.

Batches of one log never overlap. A log may have holes; a run of batches ends at the first hole. When the limit is
reached, the batch that was added first is evicted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.cut import BatchSums, sum_records
from llog.limits import MIB
from llog.log.keys import Log
from llog.log.read.slices import LEADER_EPOCH, Chunk, patch_slices, payload_chunk

# Memory of a cached batch besides its bytes: objects, columns of headers, two index entries.
TAIL_CACHE_BATCH_OVERHEAD_BYTES: Final = 768
# Batches that the read-ahead keeps, and what it fetches for a consumer that continues where its last answer ended.
READ_AHEAD_BYTES_MAX: Final = 64 * MIB
READ_AHEAD_WINDOW_BYTES: Final = 4 * MIB
assert READ_AHEAD_WINDOW_BYTES <= READ_AHEAD_BYTES_MAX
# Answer ends that are remembered to recognise such consumers.
READ_AHEAD_READERS_MAX: Final = 10_000


class Taken(NamedTuple):
    """Whole batches of a cached batch."""

    buffers: Sequence[Buffer]
    byte_length: int
    next_offset: int
    """Behind the last batch that was taken; if all were, behind the last offset."""
    is_all: bool
    """No batch is left."""


class CachedBatch:
    """One append, or batches read from the stores. An append becomes a chunk when it is read for the first time."""

    __slots__ = (
        "_body",
        "byte_length",
        "chunk",
        "committed_at_ms",
        "compaction_version",
        "created_at_ms",
        "delivered",
        "encoding",
        "end_offset",
        "incarnation",
        "incarnation_before",
        "start_offset",
        "summed",
        "sums",
    )

    def __init__(
        self,
        start_offset: int,
        end_offset: int,
        body: Sequence[Buffer],
        *,
        encoding: str = "kafka-v2",
        incarnation: int | None = None,
        committed_at_ms: float = 0.0,
        created_at_ms: int = 0,
        compaction_version: int = 0,
        chunk: Chunk | None = None,
    ) -> None:
        self.start_offset, self.end_offset = start_offset, end_offset
        self.encoding, self.created_at_ms = encoding, created_at_ms
        self.incarnation = incarnation
        """None: not known (yet)."""
        self.incarnation_before: int | None = None
        """The log's known incarnation at the time of the append: this batch belongs to it or to a later one."""
        self.committed_at_ms = committed_at_ms
        """On the machine's monotonic clock."""
        self.compaction_version = compaction_version
        """Version of the log's compaction record when the batch was read from the stores."""
        self.delivered = False
        self.chunk = chunk
        self.summed = False
        self.sums: BatchSums | None = None
        """The records of the chunk; None before they were summed, or if a batch of it is compressed or not sound."""
        self._body: Sequence[Buffer] = body if chunk is None else ()
        """The body as appended, not copied, because many appends are never read. Empty once there is a chunk."""
        self.byte_length = total_length(body) if chunk is None else len(chunk.data)

    @property
    def size(self) -> int:
        """Bytes it counts against a limit; bare payloads grow a little when they become a RecordBatch."""
        growth = 16 * (self.end_offset - self.start_offset + 1) if self.encoding == BYTES_BATCH else 0
        return self.byte_length + TAIL_CACHE_BATCH_OVERHEAD_BYTES + growth

    def is_ready(self, raw: bool) -> bool:
        """Whether whole batches can be taken (`raw`), or single records."""
        return self.chunk is not None and (raw or self.summed)

    def make_ready(self, raw: bool) -> None:
        """Raises `FormatError` if the body does not hold the given offsets. May run in several threads at once."""
        chunk = self.prepare()
        if not raw and not self.summed:
            self.sums = sum_records(chunk.data, chunk.batches)
            self.summed = True

    def take(self, offset: int, bytes_max: int, *, at_least_one: bool) -> Taken:
        """The whole batches from the one with `offset` on: as many as fit, and the first in any case if
        `at_least_one`."""
        assert self.chunk is not None
        data, batches = self.chunk.data, self.chunk.batches
        if offset <= self.start_offset and len(data) <= bytes_max:
            return Taken((data,) if len(data) else (), len(data), self.end_offset + 1, True)
        last_offsets, ends = batches.last_offset, batches.position + batches.length
        first = int(np.searchsorted(last_offsets, offset))
        if first == len(batches):
            return Taken((), 0, self.end_offset + 1, True)
        begin = int(batches.position[first])
        stop = max(int(np.searchsorted(ends, begin + bytes_max, side="right")), first + at_least_one)
        if stop <= first:
            return Taken((), 0, offset, False)
        end, is_all = int(ends[stop - 1]), stop == len(batches)
        next_offset = self.end_offset + 1 if is_all else int(last_offsets[stop - 1]) + 1
        return Taken((memoryview(data)[begin:end],), end - begin, next_offset, is_all)

    def prepare(self) -> Chunk:
        """The batches with their offsets, in one buffer."""
        body = self._body  # read first: another thread may create the chunk and drop the body
        if self.chunk is None:
            start, count = self.start_offset, self.end_offset - self.start_offset + 1
            source, data = f"append at offset {start}", bytearray().join(body)
            if self.encoding == BYTES_BATCH:
                chunk = payload_chunk(data, count, start, self.created_at_ms, source)
            else:
                batches = patch_slices(data, [len(data)], [count], start, LEADER_EPOCH, source, verify=False)
                chunk = Chunk(start, self.end_offset, memoryview(data).toreadonly(), batches)
            self.chunk, self._body = chunk, ()
        return self.chunk


class _LogBatches:
    """The batches of one log in offset order. Removing the first is cheap; the list is compacted now and then."""

    __slots__ = ("first", "items", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.items: list[CachedBatch | None] = []
        self.first = 0

    def __len__(self) -> int:
        return len(self.items) - self.first

    def position_of(self, offset: int) -> int:
        """Position of the last batch that begins at or below `offset`; `first - 1` if none does."""
        return bisect_right(self.starts, offset, self.first) - 1

    def at(self, position: int) -> CachedBatch | None:
        return self.items[position] if self.first <= position < len(self.items) else None

    def insert(self, item: CachedBatch) -> None:
        position = bisect_left(self.starts, item.start_offset, self.first)
        self.starts.insert(position, item.start_offset)
        self.items.insert(position, item)

    def remove(self, item: CachedBatch) -> None:
        position = bisect_left(self.starts, item.start_offset, self.first)
        if position != self.first:
            del self.starts[position], self.items[position]
            return
        self.items[position] = None
        self.first += 1
        if self.first > 64 and self.first * 2 > len(self.items):
            del self.starts[: self.first], self.items[: self.first]
            self.first = 0


class BatchCache:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.byte_length = 0
        self._logs: dict[Log, _LogBatches] = {}
        self._by_age: OrderedDict[CachedBatch, Log] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    def log_count(self) -> int:
        return len(self._logs)

    def covers(self, log: Log, offset: int) -> bool:
        return next(self.run(log, offset), None) is not None

    def run(self, log: Log, offset: int) -> Iterator[CachedBatch]:
        """The batch with `offset` and those behind it, up to the first hole."""
        batches = self._logs.get(log)
        if batches is None:
            return
        position = batches.position_of(offset)
        item = batches.at(position)
        while item is not None and item.start_offset <= offset <= item.end_offset:
            yield item
            offset = item.end_offset + 1
            position += 1
            item = batches.at(position)

    def next_start(self, log: Log, offset: int) -> int | None:
        """The start offset of the first batch behind `offset`."""
        batches = self._logs.get(log)
        item = None if batches is None else batches.at(batches.position_of(offset) + 1)
        return None if item is None else item.start_offset

    def overlapping(self, log: Log, start_offset: int, end_offset: int) -> list[CachedBatch]:
        batches = self._logs.get(log)
        overlapping: list[CachedBatch] = []
        if batches is None:
            return overlapping
        position = max(batches.position_of(start_offset), batches.first)
        while (item := batches.at(position)) is not None and item.start_offset <= end_offset:
            if item.end_offset >= start_offset:
                overlapping.append(item)
            position += 1
        return overlapping

    def items(self, log: Log) -> list[CachedBatch]:
        batches = self._logs.get(log)
        return [] if batches is None else [item for item in batches.items[batches.first :] if item is not None]

    def without_incarnation(self, log: Log) -> list[CachedBatch]:
        """The newest batches of the log, back to the first with a known incarnation. (A batch that filled a hole below
        is not among them; only its own age counts.)"""
        batches = self._logs.get(log)
        newest: list[CachedBatch] = []
        position = len(batches.items) - 1 if batches is not None else -1
        while batches is not None and (item := batches.at(position)) is not None and item.incarnation is None:
            newest.append(item)
            position -= 1
        return newest

    def put(self, log: Log, item: CachedBatch) -> int:
        """Add a batch that overlaps no other; return how many were evicted. One larger than the limit is not added."""
        if item.size > self.bytes_max:
            return 0
        self._logs.setdefault(log, _LogBatches()).insert(item)
        self._by_age[item] = log
        self.byte_length += item.size
        evicted = 0
        while self.byte_length > self.bytes_max:
            oldest, its_log = next(iter(self._by_age.items()))
            self.remove(its_log, oldest)
            evicted += 1
        return evicted

    def remove(self, log: Log, item: CachedBatch) -> None:
        """Does nothing if the batch was removed before."""
        if self._by_age.pop(item, None) is None:
            return
        self.byte_length -= item.size
        batches = self._logs[log]
        batches.remove(item)
        if len(batches) == 0:
            del self._logs[log]

    def drop_below(self, log: Log, offset: int) -> None:
        """Remove every batch that begins below `offset`."""
        batches = self._logs.get(log)
        while batches is not None and (item := batches.at(batches.first)) is not None and item.start_offset < offset:
            self.remove(log, item)

    def drop(self, log: Log) -> None:
        for item in self.items(log):
            self.remove(log, item)


class ReadAhead:
    """Batches read from the stores that consumers may ask for next.

    Index entries are fetched whole and answers are smaller, several consumers of a log want the same bytes, and a
    consumer that continues where its last answer ended gets a larger window. A kept batch counts only in the
    incarnation it was read in and, where keys are compacted, under the same version of the compaction record.
    """

    def __init__(self, bytes_max: int = READ_AHEAD_BYTES_MAX) -> None:
        self._batches = BatchCache(bytes_max)
        self._expected: OrderedDict[tuple[Log, int], None] = OrderedDict()

    def covers(self, log: Log, offset: int) -> bool:
        return self._batches.covers(log, offset)

    def lookup(
        self, log: Log, offset: int, incarnation: int, bytes_max: int, *, compaction_version: int | None = None
    ) -> list[CachedBatch]:
        """Batches without a gap from `offset` on. `compaction_version`: of a log that is compacted by key."""
        batches: list[CachedBatch] = []
        size = 0
        for item in self._batches.run(log, offset):
            rewritten = compaction_version not in (None, item.compaction_version)
            if rewritten or item.incarnation != incarnation or size >= bytes_max:
                break
            batches.append(item)
            size += item.byte_length
        return batches

    def put(self, log: Log, batch: CachedBatch) -> None:
        """Keep a batch; it replaces those it overlaps (a segment replaces the appends it was made of)."""
        for other in self._batches.overlapping(log, batch.start_offset, batch.end_offset):
            same = (other.incarnation, other.compaction_version) == (batch.incarnation, batch.compaction_version)
            if same and other.start_offset <= batch.start_offset and other.end_offset >= batch.end_offset:
                return
            self._batches.remove(log, other)
        self._batches.put(log, batch)

    def window_bytes(self, log: Log, offset: int, wanted_bytes: int) -> int:
        """How many bytes to fetch from `offset` on: more for a consumer that reads on."""
        if (log, offset) not in self._expected:
            return wanted_bytes
        del self._expected[log, offset]
        return max(wanted_bytes, READ_AHEAD_WINDOW_BYTES)

    def expect(self, log: Log, next_offset: int) -> None:
        """An answer ended before `next_offset`."""
        self._expected[log, next_offset] = None
        self._expected.move_to_end((log, next_offset))
        if len(self._expected) > READ_AHEAD_READERS_MAX:
            self._expected.popitem(last=False)
