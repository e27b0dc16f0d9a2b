"""A shelf: encoded appends of many logs, found by offset, bounded by bytes over all logs, the oldest dropped first.

Why it exists: the tail cache and the read-ahead keep the same things under different bounds. What must stay true:
items of one log never overlap and are found by offset; a log may have holes, and a run ends at the first one; what is
dropped for room is dropped whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from llog.broker.consume.chunks import Chunk, bare_chunk, fresh_chunk
from llog.errors import InvalidField
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.log.keys import Log

# What a cached append costs besides its bytes: objects, columns of headers, its place in two lists.
TAIL_CACHE_BATCH_OVERHEAD_BYTES: Final = 768


class CachedBatch:
    """One append (or a fetched part of a log): encoded, its offsets patched in when it is read for the first time."""

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
        "epoch",
        "incarnation",
        "life_floor",
        "start_offset",
    )

    def __init__(
        self,
        start_offset: int,
        end_offset: int,
        body: Sequence[Buffer],
        *,
        encoding: str = "kafka-v2",
        epoch: int = 0,
        incarnation: int | None = None,
        committed_at_ms: float = 0.0,
        created_at_ms: int = 0,
        compaction_version: int = 0,
        chunk: Chunk | None = None,
    ) -> None:
        self.start_offset, self.end_offset = start_offset, end_offset
        self.encoding, self.epoch, self.created_at_ms = encoding, epoch, created_at_ms
        self.incarnation = incarnation
        """None: which life of the topic it belongs to is not known (yet)."""
        self.life_floor: int | None = None
        """The life that the log was known to be in when this was appended: it belongs to that one or a later."""
        self.committed_at_ms = committed_at_ms
        """On the machine's monotonic clock."""
        self.compaction_version = compaction_version
        """Of what was read from the stores: the log's compaction record at that time."""
        self.delivered = False
        self.chunk = chunk
        self._body: Sequence[Buffer] = body if chunk is None else ()
        """As it was appended and not copied: many appends are never read. Nothing once it is a chunk."""
        self.byte_length = total_length(body) if chunk is None else len(chunk.data)

    @property
    def body(self) -> Sequence[Buffer]:
        """As it was appended; nothing once it is a chunk."""
        return self._body

    @property
    def size(self) -> int:
        """What it takes of a bound; bare payloads grow a little when they become a RecordBatch."""
        growth = 16 * (self.end_offset - self.start_offset + 1) if self.encoding == BYTES_BATCH else 0
        return self.byte_length + TAIL_CACHE_BATCH_OVERHEAD_BYTES + growth

    def prepare(self) -> Chunk:
        """Its bytes with offsets. Raises `FormatError` when they are not what was said of them."""
        body = self._body  # taken first: another thread may make the chunk, and then lets go of it
        if self.chunk is None:
            count, source = self.end_offset - self.start_offset + 1, f"append at offset {self.start_offset}"
            data = bytearray().join(body)
            if self.encoding == BYTES_BATCH:
                chunk = bare_chunk(data, count, self.start_offset, self.epoch, self.created_at_ms, source)
            else:
                chunk = fresh_chunk([(data, count)], self.start_offset, self.epoch, source, verify=False)
            if chunk.end_offset != self.end_offset:
                raise InvalidField(source, f"ends at {chunk.end_offset}, {self.end_offset} was said")
            self.chunk, self._body = chunk, ()
        return self.chunk


class _Row:
    """The items of one log by offset. Leaving at the front costs nothing; the gap there is closed now and then."""

    __slots__ = ("first", "items", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.items: list[CachedBatch | None] = []
        self.first = 0

    def __len__(self) -> int:
        return len(self.items) - self.first

    def position_of(self, offset: int) -> int:
        """Of the last item that begins at or below `offset`; `first - 1` when none does."""
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


class Shelf:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.byte_length = 0
        self._rows: dict[Log, _Row] = {}
        self._by_age: OrderedDict[CachedBatch, Log] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    def log_count(self) -> int:
        return len(self._rows)

    def covers(self, log: Log, offset: int) -> bool:
        return next(self.run(log, offset), None) is not None

    def run(self, log: Log, offset: int) -> Iterator[CachedBatch]:
        """The item that holds `offset` and those behind it, up to the first hole."""
        row = self._rows.get(log)
        if row is None:
            return
        position = row.position_of(offset)
        item = row.at(position)
        while item is not None and item.start_offset <= offset <= item.end_offset:
            yield item
            offset = item.end_offset + 1
            position += 1
            item = row.at(position)

    def next_start(self, log: Log, offset: int) -> int | None:
        """Where the first item begins that lies behind `offset`."""
        row = self._rows.get(log)
        item = None if row is None else row.at(row.position_of(offset) + 1)
        return None if item is None else item.start_offset

    def overlapping(self, log: Log, start_offset: int, end_offset: int) -> list[CachedBatch]:
        row = self._rows.get(log)
        found: list[CachedBatch] = []
        if row is None:
            return found
        position = max(row.position_of(start_offset), row.first)
        while (item := row.at(position)) is not None and item.start_offset <= end_offset:
            if item.end_offset >= start_offset:
                found.append(item)
            position += 1
        return found

    def items(self, log: Log) -> list[CachedBatch]:
        row = self._rows.get(log)
        return [] if row is None else [item for item in row.items[row.first :] if item is not None]

    def unbound(self, log: Log) -> list[CachedBatch]:
        """The newest items of the log, back to the first whose life is known. (One that filled a hole below that is
        not found again; it counts by its own age alone.)"""
        row = self._rows.get(log)
        found: list[CachedBatch] = []
        position = len(row.items) - 1 if row is not None else -1
        while row is not None and (item := row.at(position)) is not None and item.incarnation is None:
            found.append(item)
            position -= 1
        return found

    def put(self, log: Log, item: CachedBatch) -> int:
        """Keep it; it must overlap nothing. How many others had to go; what is larger than the shelf is not kept."""
        if item.size > self.max_bytes:
            return 0
        self._rows.setdefault(log, _Row()).insert(item)
        self._by_age[item] = log
        self.byte_length += item.size
        evicted = 0
        while self.byte_length > self.max_bytes:
            oldest, its_log = next(iter(self._by_age.items()))
            self.remove(its_log, oldest)
            evicted += 1
        return evicted

    def remove(self, log: Log, item: CachedBatch) -> None:
        """Nothing happens when it is gone already."""
        if self._by_age.pop(item, None) is None:
            return
        self.byte_length -= item.size
        row = self._rows[log]
        row.remove(item)
        if len(row) == 0:
            del self._rows[log]

    def drop_below(self, log: Log, offset: int) -> None:
        """Everything that begins below `offset`."""
        row = self._rows.get(log)
        while row is not None and (item := row.at(row.first)) is not None and item.start_offset < offset:
            self.remove(log, item)  # the last to go takes the row with it, and leaves this one empty

    def drop(self, log: Log) -> None:
        row = self._rows.pop(log, None)
        if row is None:
            return
        for item in row.items[row.first :]:
            if item is not None:
                del self._by_age[item]
                self.byte_length -= item.size
