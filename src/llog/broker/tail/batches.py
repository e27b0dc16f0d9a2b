"""Cached batches of many logs, found by offset and limited in bytes. The tail cache and the read-ahead keep them so.

Batches of one log never overlap. A log may have holes; a run of batches ends at the first hole. When the limit is
reached, the batch that was added first is evicted. A batch that is a part of a larger buffer (of a frame that brought
batches for many logs) keeps all of that buffer in memory, so the buffer is counted, once for all its parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from llog.broker.tail.cached_batch import CachedBatch
from llog.limits import MIB
from llog.log.keys import Log

# Batches that the read-ahead keeps, and what it fetches for a consumer that continues where its last answer ended.
READ_AHEAD_BYTES_MAX: Final = 64 * MIB
READ_AHEAD_WINDOW_BYTES: Final = 4 * MIB
assert READ_AHEAD_WINDOW_BYTES <= READ_AHEAD_BYTES_MAX
# A buffer that has more than this part of a cache's limit is not kept for its parts.
_LARGE_FRAMES: Final = 8
# Answer ends that are remembered to recognise such consumers.
READ_AHEAD_READERS_MAX: Final = 10_000


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

    def ends_before(self, offset: int) -> bool:
        """Whether every batch lies below `offset`, as for an append to the log's end."""
        last = self.items[-1] if self.items else None
        return last is not None and last.end_offset < offset

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


class _Kept(NamedTuple):
    """A batch in a cache: its log, and what it counts against the limit."""

    log: Log
    own_bytes: int
    frames: list[int]


class _Frame:
    """A buffer that batches are parts of: in memory, and counted, as long as the cache has one of them."""

    __slots__ = ("buffer", "byte_length", "count")

    def __init__(self, buffer: object, byte_length: int) -> None:
        self.buffer, self.byte_length, self.count = buffer, byte_length, 0


class BatchCache:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self._frame_bytes_max = bytes_max, bytes_max // _LARGE_FRAMES
        self.byte_length = 0
        self._logs: dict[Log, _LogBatches] = {}
        self._by_age: OrderedDict[CachedBatch, _Kept] = OrderedDict()
        self._frames: dict[int, _Frame] = {}
        """By identity of the buffer."""

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
        if batches is None or batches.ends_before(start_offset):
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
        self._by_age[item] = self._count(log, item)
        batches = self._logs.get(log)
        if batches is None:
            batches = self._logs[log] = _LogBatches()
        batches.insert(item)
        evicted = 0
        while self.byte_length > self.bytes_max:
            oldest, kept = next(iter(self._by_age.items()))
            self.remove(kept.log, oldest)
            evicted += 1
        return evicted

    def count_again(self, item: CachedBatch) -> None:
        """The bytes of the batch were copied. If that exceeds the limit, the next `put` evicts."""
        kept = self._by_age.get(item)
        if kept is not None:
            self._uncount(kept)
            self._by_age[item] = self._count(kept.log, item)

    def _count(self, log: Log, item: CachedBatch) -> _Kept:
        own_bytes, identities = item.size, []
        for length, buffer, frame_bytes in item.frames():
            if frame_bytes > self._frame_bytes_max:
                item.copy_body()  # a small part of a large buffer must not evict everything else
                continue
            own_bytes -= length
            identity = id(buffer)
            frame = self._frames.get(identity)
            if frame is None:
                frame = self._frames[identity] = _Frame(buffer, frame_bytes)
                self.byte_length += frame_bytes
            frame.count += 1
            identities.append(identity)
        self.byte_length += own_bytes
        return _Kept(log, own_bytes, identities)

    def _uncount(self, kept: _Kept) -> None:
        self.byte_length -= kept.own_bytes
        for identity in kept.frames:
            frame = self._frames[identity]
            frame.count -= 1
            if not frame.count:
                self.byte_length -= frame.byte_length
                del self._frames[identity]

    def remove(self, log: Log, item: CachedBatch) -> None:
        """Does nothing if the batch was removed before."""
        kept = self._by_age.pop(item, None)
        if kept is None:
            return
        self._uncount(kept)
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
