"""The segment: one compacted object of one log, with an index of its batches at the end.

    RecordBatches with final offsets
    "LLX1" · u32 length · JSON extension            what we add: ranges, checksums, epochs, producers, sources
    one 32-byte index entry per batch               i64 base offset, u32 byte position, u32 batch length,
                                                    i32 last offset delta, i64 max timestamp, i32 record count
    u32 entry count · u32 magic "KLIX"

A reader of the plain format finds everything from the end and never sees the extension, which comes before the entries.
Plain objects (without an extension) are read here too. Batches tile the data section from 0 in offset order, so the
last entry shows where the data ends and the footer begins. The log's index entry can be rebuilt from the object alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from llog.errors import BadMagic, ChecksumMismatch, InvalidArgument, InvalidField, TruncatedInput, ValueTooLarge
from llog.formats.buffers import Buffer, crc32c, crc32c_of, json_decoder, json_value, total_length
from llog.formats.records.record_batch import HEADER_BYTES as BATCH_HEADER_BYTES
from llog.formats.records.record_batch import BatchColumns
from llog.limits import GIB, MIB

SEGMENT_EXTENSION_BYTES_MAX: Final = 16 * MIB
# Byte positions inside a segment are u32.
SEGMENT_DATA_BYTES_MAX: Final = 4 * GIB - 1

MAGIC: Final = 0x4B4C4958
EXTENSION_MAGIC: Final = b"LLX1"
_TAIL: Final = struct.Struct(">II")
_EXTENSION_PREFIX: Final = struct.Struct(">4sI")
ENTRY: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("byte_position", ">u4"),
        ("batch_length", ">u4"),
        ("last_offset_delta", ">i4"),
        ("max_timestamp_ms", ">i8"),
        ("record_count", ">i4"),
    ]
)
assert ENTRY.itemsize == 32
TAIL_BYTES_MIN: Final = _TAIL.size + ENTRY.itemsize
"""Enough bytes from the end to compute the length of the footer."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class ProducerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The last batch of a producer in this segment, enough to check its next sequence numbers."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int


class SegmentExtension(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that the plain format lacks. The offset range may be wider than the batches (key compaction)."""

    v: int = 1
    topic: str
    partition: _Count
    incarnation: _Count
    start_offset: _Count
    end_offset: int
    level: _Count
    created_at_ms: _Count
    data_crc32c: _Count
    index_crc32c: _Count
    epochs: dict[int, int] = {}
    """Epoch → first offset written under it."""
    producers: tuple[ProducerSummary, ...] = ()
    sources: tuple[str, ...] = ()
    """URIs of the objects these bytes came from."""


class Segment(NamedTuple):
    """A segment ready for `ObjectStore.put`."""

    buffers: list[Buffer]
    extension: SegmentExtension
    byte_length: int
    footer_length: int
    record_count: int
    max_timestamp_ms: int


class SegmentFooter(NamedTuple):
    """The parsed end of a segment. `entries` is a structured array, one row per batch."""

    entries: npt.NDArray[Any]
    extension: SegmentExtension | None
    data_length: int
    footer_length: int

    def batches_from(self, offset: int) -> int:
        """The first batch that ends at or after `offset`; len(entries) if there is none."""
        last_offsets = self.entries["base_offset"].astype(np.int64) + self.entries["last_offset_delta"]
        return int(np.searchsorted(last_offsets, offset, side="left"))

    def byte_range(self, start_offset: int, end_offset: int, bytes_max: int | None = None) -> tuple[int, int]:
        """(byte offset, byte length) of the batches that hold `start_offset` … `end_offset`, both included.

        Whole batches, as many as fit `bytes_max` but at least one. (0, 0) if no batch matches.
        """
        first = self.batches_from(start_offset)
        stop = int(np.searchsorted(self.entries["base_offset"].astype(np.int64), end_offset, side="right"))
        if first >= stop:
            return 0, 0
        begin = int(self.entries["byte_position"][first])
        ends = self.entries["byte_position"][first:stop].astype(np.int64) + self.entries["batch_length"][first:stop]
        take = len(ends) if bytes_max is None else max(1, int(np.searchsorted(ends, begin + bytes_max, side="right")))
        return begin, int(ends[take - 1]) - begin


class SegmentBuilder:
    """Collects batches that have their final offsets; buffers are not joined."""

    def __init__(self, *, topic: str, partition: int, incarnation: int) -> None:
        self._topic, self._partition, self._incarnation = topic, partition, incarnation
        self._buffers: list[Buffer] = []
        self._entries: list[npt.NDArray[Any]] = []
        self._data_length = 0
        self._data_crc = 0
        self._next_offset = -1

    @property
    def data_length(self) -> int:
        return self._data_length

    def add(self, data: Buffer, columns: BatchColumns) -> None:
        """Append whole batches: `data` and its headers from `record_batch.walk`, checked and patched by the caller."""
        count = len(columns.position)
        if count == 0:
            return
        length = total_length((data,))
        if self._data_length + length > SEGMENT_DATA_BYTES_MAX:
            raise ValueTooLarge("segment", self._data_length + length, SEGMENT_DATA_BYTES_MAX)
        entries = np.empty(count, dtype=ENTRY)
        entries["base_offset"] = columns.base_offset
        entries["byte_position"] = columns.position + self._data_length
        entries["batch_length"] = columns.length
        entries["last_offset_delta"] = columns.last_offset_delta
        entries["max_timestamp_ms"] = columns.max_timestamp
        entries["record_count"] = columns.record_count
        self._check_order(entries)
        self._entries.append(entries)
        self._buffers.append(data)
        self._data_crc = crc32c(data, self._data_crc)
        self._data_length += length

    def _check_order(self, entries: npt.NDArray[Any]) -> None:
        bases = entries["base_offset"].astype(np.int64)
        nexts = bases + entries["last_offset_delta"] + 1
        if int(bases[0]) < self._next_offset or bool(np.any(bases[1:] < nexts[:-1])):
            raise InvalidArgument("batches", "offsets must increase: patch base offsets before building a segment")
        self._next_offset = int(nexts[-1])

    def finish(
        self,
        *,
        start_offset: int,
        end_offset: int,
        level: int,
        created_at_ms: int,
        epochs: dict[int, int] | None = None,
        producers: Sequence[ProducerSummary] = (),
        sources: Sequence[str] = (),
    ) -> Segment:
        """Finish the segment for an offset range (both ends included)."""
        # Not np.concatenate, which would convert the fields to the machine's byte order.
        index = b"".join(part.tobytes() for part in self._entries)
        entries = np.frombuffer(index, dtype=ENTRY)
        if start_offset > end_offset:
            raise InvalidArgument("offsets", f"start {start_offset} is after end {end_offset}")
        if len(entries) and (int(entries["base_offset"][0]) < start_offset or self._next_offset - 1 > end_offset):
            raise InvalidArgument("offsets", f"batches reach outside {start_offset} … {end_offset}")
        extension = SegmentExtension(
            topic=self._topic,
            partition=self._partition,
            incarnation=self._incarnation,
            start_offset=start_offset,
            end_offset=end_offset,
            level=level,
            created_at_ms=created_at_ms,
            data_crc32c=self._data_crc,
            index_crc32c=crc32c(index),
            epochs=dict(epochs or {}),
            producers=tuple(producers),
            sources=tuple(sources),
        )
        text = msgspec.json.encode(extension)
        if len(text) > SEGMENT_EXTENSION_BYTES_MAX:
            raise ValueTooLarge("segment extension", len(text), SEGMENT_EXTENSION_BYTES_MAX)
        footer = b"".join(
            (_EXTENSION_PREFIX.pack(EXTENSION_MAGIC, len(text)), text, index, _TAIL.pack(len(entries), MAGIC))
        )
        return Segment(
            buffers=[*self._buffers, footer],
            extension=extension,
            byte_length=self._data_length + len(footer),
            footer_length=len(footer),
            record_count=int(entries["record_count"].sum(dtype=np.int64)),
            max_timestamp_ms=int(entries["max_timestamp_ms"].max()) if len(entries) else -1,
        )


def footer_length(tail: Buffer, object_length: int, source: str) -> int:
    """Length of the footer, from the last bytes of the object; TAIL_BYTES_MIN of them are enough.

    Objects without a batch need more: their footer is the whole object.
    """
    view = memoryview(tail).cast("B")
    if len(view) > object_length:
        raise InvalidArgument("tail", f"{len(view)} bytes of an object of {object_length}")
    if len(view) < _TAIL.size:
        raise TruncatedInput(source, f"{len(view)} bytes are too few for the end of a segment")
    count, magic = _TAIL.unpack_from(view, len(view) - _TAIL.size)
    if magic != MAGIC:
        raise BadMagic(source, f"ends with {magic:#010x}, a segment ends with {MAGIC:#010x}")
    index_length = _TAIL.size + ENTRY.itemsize * count
    if index_length > object_length:
        raise InvalidField(source, f"{count} entries need {index_length} bytes, the object has {object_length}")
    if count == 0:
        return object_length
    if len(view) < TAIL_BYTES_MIN:
        raise TruncatedInput(source, f"{len(view)} bytes do not hold the last of {count} entries")
    last = np.frombuffer(view, dtype=ENTRY, count=1, offset=len(view) - TAIL_BYTES_MIN)[0]
    data_length = int(last["byte_position"]) + int(last["batch_length"])
    if data_length + index_length > object_length:
        raise InvalidField(source, f"{data_length} bytes of data and {index_length} of index in {object_length} bytes")
    return object_length - data_length


def parse_footer(tail: Buffer, object_length: int, source: str) -> SegmentFooter:
    """Read and check the footer from the object's last bytes (at least `footer_length` of them)."""
    length = footer_length(tail, object_length, source)
    view = memoryview(tail).cast("B")
    if len(view) < length:
        raise TruncatedInput(source, f"the footer has {length} bytes, only {len(view)} were read")
    footer = view[len(view) - length :]
    [count, _] = _TAIL.unpack_from(footer, length - _TAIL.size)
    index_at = length - _TAIL.size - ENTRY.itemsize * count
    entries = np.frombuffer(footer, dtype=ENTRY, count=count, offset=index_at)
    data_length = object_length - length
    _check_entries(entries, data_length, source)
    extension = _parse_extension(footer[:index_at], source)
    if extension is not None:
        _check_against_extension(entries, footer[index_at : length - _TAIL.size], extension, source)
    return SegmentFooter(entries, extension, data_length, length)


def _check_entries(entries: npt.NDArray[Any], data_length: int, source: str) -> None:
    if len(entries) == 0:
        if data_length:
            raise InvalidField(source, f"{data_length} bytes of data and no index entry")
        return
    positions = entries["byte_position"].astype(np.int64)
    ends = positions + entries["batch_length"]
    bases = entries["base_offset"].astype(np.int64)
    deltas = entries["last_offset_delta"].astype(np.int64)
    counts = entries["record_count"].astype(np.int64)
    if int(positions[0]) != 0 or bool(np.any(positions[1:] != ends[:-1])) or int(ends[-1]) != data_length:
        raise InvalidField(source, "index entries do not tile the data section")
    if bool(np.any(entries["batch_length"] < BATCH_HEADER_BYTES)):
        raise InvalidField(source, "an index entry is shorter than a batch header")
    if bool(np.any((bases < 0) | (deltas < 0) | (counts < 0) | (counts > deltas + 1))):
        raise InvalidField(source, "an index entry has a negative field or more records than offsets")
    # Compared by subtraction: base + delta could overflow on hostile input.
    if bool(np.any(np.diff(bases) <= deltas[:-1])):
        raise InvalidField(source, "index entries overlap or fall back in offsets")
    if int(bases[-1]) > np.iinfo(np.int64).max - int(deltas[-1]) - 1:
        raise InvalidField(source, "an offset is beyond 64 bits")


def _parse_extension(block: memoryview, source: str) -> SegmentExtension | None:
    if len(block) == 0:
        return None
    if len(block) < _EXTENSION_PREFIX.size:
        raise TruncatedInput(source, f"{len(block)} bytes are too few for a footer extension")
    magic, length = _EXTENSION_PREFIX.unpack_from(block)
    if magic != EXTENSION_MAGIC:
        raise BadMagic(source, f"footer extension begins with {magic!r}, not with {EXTENSION_MAGIC!r}")
    if length != len(block) - _EXTENSION_PREFIX.size or length > SEGMENT_EXTENSION_BYTES_MAX:
        raise InvalidField(source, f"footer extension of {length} bytes in {len(block) - _EXTENSION_PREFIX.size}")
    return json_value(_EXTENSION, block[_EXTENSION_PREFIX.size :], source, "footer extension")


def _check_against_extension(
    entries: npt.NDArray[Any], index: memoryview, extension: SegmentExtension, source: str
) -> None:
    computed = crc32c(index)
    if computed != extension.index_crc32c:
        raise ChecksumMismatch(source, "segment index", extension.index_crc32c, computed)
    if extension.start_offset > extension.end_offset:
        raise InvalidField(source, f"offsets {extension.start_offset} … {extension.end_offset} run backwards")
    if len(entries):
        first, last = int(entries["base_offset"][0]), entries[-1]
        reach = int(last["base_offset"]) + int(last["last_offset_delta"])
        if first < extension.start_offset or reach > extension.end_offset:
            raise InvalidField(
                source, f"batches {first} … {reach} outside {extension.start_offset} … {extension.end_offset}"
            )


def verify_data(data: Sequence[Buffer], footer: SegmentFooter, source: str) -> None:
    """Compare the whole data section with the footer's checksum (plain objects carry none)."""
    if footer.extension is None:
        return
    computed = crc32c_of(data)
    if computed != footer.extension.data_crc32c:
        raise ChecksumMismatch(source, "segment data", footer.extension.data_crc32c, computed)


_EXTENSION: Final = json_decoder(SegmentExtension)
