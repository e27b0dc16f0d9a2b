"""One cached append, or batches read from the stores: what consumers are answered from.

An append is kept as it was uploaded, without offsets, because many appends are never read. When it is first read, its
batches get their offsets

- in place, where answers take whole batches: only headers are touched, and an answer consists of views of the buffers
  that came from the network. That is safe because only committed appends are cached: the outcome is final, so no
  upload, commit or retry reads these bytes any more, and the checksums of batches do not cover the changed fields.
  (Should a put that timed out still be sending, then it stores base offsets that no reader of a blob looks at.)
- in one buffer (`Chunk`), where answers divide batches: the kernels work on one buffer. A copy, unless the append came
  in one.

A buffer that is read-only, or holds a base offset that we did not write, is copied first: another process may read the
bytes (the shared cache), or one buffer was appended twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from llog.errors import InvalidField
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.cut import BatchSums, sum_records
from llog.formats.records.record_batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchRule, walk
from llog.log.read.slices import LEADER_EPOCH, Chunk, patch_slices, payload_chunk

# Memory of a cached batch besides its bytes: objects, columns of headers, two index entries.
TAIL_CACHE_BATCH_OVERHEAD_BYTES: Final = 768

_HEADER: Final = struct.Struct(">qi4xb6xi")
assert _HEADER.size == 27
"""Base offset, batch length, magic, last offset delta."""
_PATCHED: Final = struct.Struct(">qii")
"""Base offset, batch length, leader epoch."""
_PATCH_WORK_BYTES: Final = 512
"""What patching a batch costs, in bytes of other work."""
PAYLOAD_BYTES_UNKNOWN: Final = -1
_SENT_BASE_OFFSET: Final = 0
"""The base offset of batches as producers send them."""


class Taken(NamedTuple):
    """Whole batches of a cached batch."""

    buffers: Sequence[Buffer]
    byte_length: int
    next_offset: int
    """Behind the last batch that was taken; if all were, behind the last offset."""
    is_all: bool
    """No batch is left."""


class CachedBatch:
    __slots__ = (
        "_body",
        "_in_place",
        "_patched",
        "byte_length",
        "chunk",
        "committed_at_ms",
        "compaction_version",
        "copied",
        "created_at_ms",
        "delivered",
        "encoding",
        "end_offset",
        "incarnation",
        "incarnation_before",
        "payload_bytes",
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
        in_place: bool = True,
        chunk: Chunk | None = None,
        payload_bytes: int = PAYLOAD_BYTES_UNKNOWN,
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
        """All batches with their offsets in one buffer; None: not made yet."""
        self.summed = False
        self.sums: BatchSums | None = None
        """The records of the chunk; None before they were summed, or if a batch of it is compressed or not sound."""
        self._body: Sequence[Buffer] = body if chunk is None else ()
        """The body as appended. Empty once there is a chunk."""
        self._in_place = in_place
        self._patched: Sequence[memoryview] | None = None
        """The body with its offsets; None: not read yet, or there is a chunk."""
        self.copied = False
        """Its bytes are in other memory than before, which a limit must count anew."""
        self.byte_length = total_length(body) if chunk is None else len(chunk.data)
        self.payload_bytes = payload_bytes
        """Of the records' values, as the append counted them."""

    @property
    def size(self) -> int:
        """Bytes it counts against a limit; bare payloads grow a little when they become a RecordBatch."""
        growth = 16 * (self.end_offset - self.start_offset + 1) if self.encoding == BYTES_BATCH else 0
        return self.byte_length + TAIL_CACHE_BATCH_OVERHEAD_BYTES + growth

    def frames(self) -> list[tuple[int, object, int]]:
        """The parts of larger buffers that it consists of: the length of each, and the buffer, which it keeps in
        memory, with its length."""
        frames: list[tuple[int, object, int]] = []
        for view in self._body:
            if isinstance(view, memoryview):
                buffer: Any = view.obj
                whole = len(buffer) if type(buffer) is bytearray else memoryview(buffer).nbytes
                if whole > (length := view.nbytes):
                    frames.append((length, buffer, whole))
        return frames

    def copy_body(self) -> None:
        """Let go of the buffers that it is a part of, before it is read."""
        if len(self._body) != 1 or not isinstance(self._body[0], bytearray):
            self._body = [bytearray().join(self._body)]

    # -- offsets ---------------------------------------------------------------------------------------------------
    def is_ready(self, raw: bool) -> bool:
        """Whether whole batches can be taken (`raw`), or single records."""
        return (self._patched is not None or self.chunk is not None) if raw else self.summed

    def make_ready(self, raw: bool) -> None:
        """Raises `FormatError` if the body does not hold the given offsets. May run in several threads at once."""
        if raw and self.encoding != BYTES_BATCH:
            body = self._body  # read first, as in `prepare`
            if self._patched is None and self.chunk is None:
                self._patch(body)
            return
        chunk = self.prepare()
        if not raw and not self.summed:
            self.sums = sum_records(chunk.data, chunk.batches)
            self.summed = True

    def work_bytes(self, raw: bool) -> int:
        """Bytes that `make_ready` reads or copies, about."""
        if raw and self.encoding != BYTES_BATCH:
            return _PATCH_WORK_BYTES * len(self._body)
        return self.byte_length

    def prepare(self) -> Chunk:
        """The batches with their offsets, in one buffer."""
        body = self._body  # read first: another thread may create the chunk and drop the body
        if self.chunk is None:
            chunk = self._chunk(body)
            self.chunk = chunk
            self._body, self._patched = (), None
            self.copied = self.copied or len(body) != 1 or self.encoding == BYTES_BATCH
        return self.chunk

    def _chunk(self, body: Sequence[Buffer]) -> Chunk:
        start, count = self.start_offset, self.end_offset - self.start_offset + 1
        if self.encoding == BYTES_BATCH:
            return payload_chunk(bytearray().join(body), count, start, self.created_at_ms, self._source)
        if len(body) == 1:
            [data] = self._patch(body)
            return Chunk(start, self.end_offset, data, walk(data, self._source, rule=BatchRule.COMPACTED))
        joined = bytearray().join(body)
        batches = patch_slices(joined, [len(joined)], [count], start, LEADER_EPOCH, self._source, verify=False)
        return Chunk(start, self.end_offset, memoryview(joined).toreadonly(), batches)

    def _patch(self, body: Sequence[Buffer]) -> Sequence[memoryview]:
        patched: list[memoryview] = []
        next_offset = self.start_offset
        for buffer in body:
            view = memoryview(buffer).cast("B")
            if view.readonly or not self._in_place or _base_offset(view) not in (_SENT_BASE_OFFSET, next_offset):
                view, self.copied = memoryview(bytearray(view)), True
            next_offset = _patch_batches(view, next_offset, self._source)
            patched.append(view.toreadonly())
        if next_offset != self.end_offset + 1:
            held, count = next_offset - self.start_offset, self.end_offset - self.start_offset + 1
            raise InvalidField(self._source, f"holds {held} offsets, its append says {count}")
        # Kept by whichever thread comes last: all wrote the same bytes.
        self._body = self._patched = patched
        return patched

    @property
    def _source(self) -> str:
        return f"append at offset {self.start_offset}"

    # -- whole batches ---------------------------------------------------------------------------------------------
    def payload_bytes_of(self, taken: Taken) -> int:
        """Bytes of the values of whole batches, for the metrics: in proportion, where not all are taken; where the
        append did not count them, the bytes behind the batch headers."""
        chunk = self.chunk
        whole = self.byte_length if chunk is None else len(chunk.data)
        if self.payload_bytes == PAYLOAD_BYTES_UNKNOWN:
            count = sum(1 for view in self._body for _ in _batches_of(memoryview(view))) if chunk is None else 0
            self.payload_bytes = whole - HEADER_BYTES * (count if chunk is None else len(chunk.batches))
        return self.payload_bytes if taken.byte_length == whole else self.payload_bytes * taken.byte_length // whole

    def take(self, offset: int, bytes_max: int, *, at_least_one: bool) -> Taken:
        """The whole batches from the one with `offset` on: as many as fit, and the first in any case if
        `at_least_one`."""
        patched, chunk = self._patched, self.chunk  # in this order: a thread that creates the chunk drops the other
        if patched is None:
            assert chunk is not None
            return self._take_of_chunk(chunk, offset, bytes_max, at_least_one)
        if offset <= self.start_offset and self.byte_length <= bytes_max:
            return Taken(patched, self.byte_length, self.end_offset + 1, True)
        return self._take_of_body(patched, offset, bytes_max, at_least_one)

    def _take_of_chunk(self, chunk: Chunk, offset: int, bytes_max: int, at_least_one: bool) -> Taken:
        data, batches = chunk.data, chunk.batches
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

    def _take_of_body(self, patched: Sequence[memoryview], offset: int, bytes_max: int, at_least_one: bool) -> Taken:
        buffers: list[Buffer] = []
        size, next_offset, is_all = 0, offset, True
        for view in patched:
            begin = end = 0
            for position, length, last_offset in _batches_of(view):
                if last_offset < offset:
                    begin = end = position + length
                elif size + length <= bytes_max or (at_least_one and not size):
                    size, end, next_offset = size + length, position + length, last_offset + 1
                else:
                    is_all = False
                    break
            if end > begin:
                buffers.append(view if end - begin == len(view) else view[begin:end])
            if not is_all:
                break
        return Taken(buffers, size, next_offset, is_all)


# -- headers of produced batches, in Python: a kernel would cost more than the few batches of an append ----------------


def _base_offset(view: memoryview) -> int:
    return int.from_bytes(view[:8], "big", signed=True)


def _patch_batches(view: memoryview, offset: int, source: str) -> int:
    """Give the batches of a buffer consecutive offsets from `offset` on; returns the next one."""
    position, end = 0, len(view)
    while position < end:
        if end - position < HEADER_BYTES:
            raise InvalidField(source, f"{end - position} bytes at byte {position} are no batch")
        _, rest, magic, last_delta = _HEADER.unpack_from(view, position)
        length = rest + PREFIX_BYTES
        if magic != MAGIC or last_delta < 0 or not HEADER_BYTES <= length <= end - position:
            raise InvalidField(source, f"no batch at byte {position}")
        _PATCHED.pack_into(view, position, offset, rest, LEADER_EPOCH)
        offset += last_delta + 1
        position += length
    return offset


def _batches_of(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Position, length and last offset of each batch of a patched buffer."""
    position = 0
    while position < len(view):
        base_offset, rest, _, last_delta = _HEADER.unpack_from(view, position)
        yield position, rest + PREFIX_BYTES, base_offset + last_delta
        position += rest + PREFIX_BYTES
