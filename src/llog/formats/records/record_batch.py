"""Kafka's RecordBatch, version 2: headers, checksums and offsets, without decoding records.

    i64 base offset · i32 batch length · i32 partition leader epoch · i8 magic 2 · u32 CRC-32C ·
    i16 attributes · i32 last offset delta · i64 base timestamp · i64 max timestamp ·
    i64 producer id · i16 producer epoch · i32 base sequence · i32 record count · records

The checksum covers the bytes from the attributes on, so base offset and leader epoch can be patched in place: a batch
is uploaded before its offsets are known. Fields have Kafka's names; timestamps are milliseconds; `length` is the whole
batch with its header.

Which batches are valid (`BatchRule`):
- PRODUCED: batches from producers, as shared blobs hold them. At least one record, one offset per record (last offset
  delta = count - 1); the base offset is ignored.
- COMPACTED: batches in segments. Offsets are final (not negative, within 64 bits); records may have been removed, so
  the last offset delta is at least count - 1 and a batch may be empty.
Both need magic 2, a known codec, a length within the buffer and the limit, and a record count that fits the bytes (or,
compressed, the limit of the decompressed size). `walk` uses 104 bytes per batch, at most twice the size of its input.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llog.errors import BadMagic, ChecksumMismatch, InvalidArgument, InvalidField, TruncatedInput, UnsupportedFormat
from llog.formats.buffers import Buffer, crc32c
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
assert HEADER.size == HEADER_BYTES
PREFIX_BYTES: Final = 12
"""Base offset and batch length, which the batch length does not count."""
CRC_START: Final = 21
"""The checksum covers the batch from here to its end."""
RECORD_BYTES_MIN: Final = 7
MAGIC: Final = 2
OFFSET_MAX: Final = 2**63 - 1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# The rows of `BatchColumns.fields`; the kernels use the same numbers.
_POSITION: Final = 0
_LENGTH: Final = 1
_BASE_OFFSET: Final = 2
_LEADER_EPOCH: Final = 3
_CRC: Final = 4
_ATTRIBUTES: Final = 5
_LAST_OFFSET_DELTA: Final = 6
_BASE_TIMESTAMP: Final = 7
_MAX_TIMESTAMP: Final = 8
_PRODUCER_ID: Final = 9
_PRODUCER_EPOCH: Final = 10
_BASE_SEQUENCE: Final = 11
_RECORD_COUNT: Final = 12
_FIELDS: Final = 13


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchRule(Enum):
    """Which batches are valid; see the docstring of the module."""

    PRODUCED = "produced"
    COMPACTED = "compacted"


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def length(self) -> int:
        return PREFIX_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """The base timestamp is the time from which tombstones may be dropped; deltas still count from it."""
        return bool(self.attributes & DELETE_HORIZON)


def parse_header(buffer: Buffer, position: int, source: str, *, rule: BatchRule = BatchRule.PRODUCED) -> BatchHeader:
    """The checked header of the batch at `position`; records and checksum are not checked."""
    rest = memoryview(buffer).nbytes - position
    if position < 0:
        raise InvalidArgument("position", f"{position} is negative")
    where = f"batch at byte {position}"
    if rest < HEADER_BYTES:
        raise TruncatedInput(source, f"{where}: {max(rest, 0)} bytes left, a header has {HEADER_BYTES}")
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        # Kafka 0.10 and older wrote 0 and 1; clients of the current protocol do not.
        kind = UnsupportedFormat if header.magic in (0, 1) else BadMagic
        raise kind(source, f"{where}: magic {header.magic}; only {MAGIC} is supported")
    if not HEADER_BYTES <= header.length <= RECORD_BATCH_BYTES_MAX:
        raise InvalidField(
            source, f"{where}: length {header.length} is not within {HEADER_BYTES} … {RECORD_BATCH_BYTES_MAX}"
        )
    if header.length > rest:
        raise TruncatedInput(source, f"{where}: length {header.length}, {rest} bytes left")
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise UnsupportedFormat(source, f"{where}: compression codec {header.attributes & CODEC_MASK}")
    _check_counts(header, where, source, rule)
    return header


def _check_counts(header: BatchHeader, where: str, source: str, rule: BatchRule) -> None:
    count, last_delta = header.record_count, header.last_offset_delta
    room = header.length - HEADER_BYTES if header.codec is Codec.NONE else RECORD_BATCH_DECODED_BYTES_MAX
    if count < 0 or count * RECORD_BYTES_MIN > room:
        raise InvalidField(source, f"{where}: {count} records in {room} bytes")
    if rule is BatchRule.PRODUCED:
        if count == 0 or last_delta != count - 1:
            raise InvalidField(source, f"{where}: {count} records, last offset delta {last_delta}")
        return
    if last_delta < max(count - 1, 0):
        raise InvalidField(source, f"{where}: {count} records, last offset delta {last_delta}")
    if not 0 <= header.base_offset < OFFSET_MAX - last_delta:
        raise InvalidField(source, f"{where}: base offset {header.base_offset}, last offset delta {last_delta}")


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumns:
    """The headers of the batches of one buffer, a column per field."""

    fields: Longs
    """A row per field, a column per batch."""

    def __len__(self) -> int:
        return int(self.fields.shape[1])

    def _row(self, number: int) -> Longs:
        row: Longs = self.fields[number]
        return row

    @property
    def position(self) -> Longs:
        """Where each batch begins in the buffer."""
        return self._row(_POSITION)

    @property
    def length(self) -> Longs:
        return self._row(_LENGTH)

    @property
    def base_offset(self) -> Longs:
        return self._row(_BASE_OFFSET)

    @property
    def last_offset_delta(self) -> Longs:
        return self._row(_LAST_OFFSET_DELTA)

    @property
    def partition_leader_epoch(self) -> Longs:
        return self._row(_LEADER_EPOCH)

    @property
    def crc(self) -> Longs:
        return self._row(_CRC)

    @property
    def attributes(self) -> Longs:
        return self._row(_ATTRIBUTES)

    @property
    def base_timestamp(self) -> Longs:
        return self._row(_BASE_TIMESTAMP)

    @property
    def max_timestamp(self) -> Longs:
        return self._row(_MAX_TIMESTAMP)

    @property
    def producer_id(self) -> Longs:
        return self._row(_PRODUCER_ID)

    @property
    def producer_epoch(self) -> Longs:
        return self._row(_PRODUCER_EPOCH)

    @property
    def base_sequence(self) -> Longs:
        return self._row(_BASE_SEQUENCE)

    @property
    def record_count(self) -> Longs:
        return self._row(_RECORD_COUNT)

    @property
    def last_offset(self) -> Longs:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Longs:
        return self.attributes & CODEC_MASK

    def _has(self, flag: int) -> Flags:
        flags: Flags = (self.attributes & flag) != 0
        return flags

    @property
    def is_log_append_time(self) -> Flags:
        return self._has(LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> Flags:
        return self._has(TRANSACTIONAL)

    @property
    def is_control(self) -> Flags:
        return self._has(CONTROL)

    @property
    def has_delete_horizon(self) -> Flags:
        return self._has(DELETE_HORIZON)

    @property
    def offset_count(self) -> int:
        """Number of offsets that the batches cover; more than records if some were compacted away."""
        return int(self.last_offset_delta.sum()) + len(self)

    def header(self, index: int) -> BatchHeader:
        _, length, base_offset, epoch, *rest = self.fields[:, index].tolist()
        return BatchHeader(base_offset, length - PREFIX_BYTES, epoch, MAGIC, *rest)


def walk(buffer: Buffer, source: str, *, rule: BatchRule = BatchRule.PRODUCED) -> BatchColumns:
    """The headers of all batches in `buffer`, which must be whole adjacent batches; checksums are not compared."""
    from llog.formats.records import batch_kernels

    data = np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)
    dense = rule is BatchRule.PRODUCED
    count, bad = batch_kernels.count_batches(data, dense, RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX)
    if bad >= 0:
        parse_header(buffer, bad, source, rule=rule)
        raise InvalidField(source, f"batch at byte {bad}: not a RecordBatch")
    fields = np.empty((_FIELDS, count), np.int64)
    batch_kernels.read_headers(data, fields)
    return BatchColumns(fields)


def verify_crcs(buffer: Buffer, batches: BatchColumns, source: str) -> None:
    """Compare every walked batch with its checksum; the error names the first that differs."""
    from llog.formats.records import batch_kernels

    view = memoryview(buffer).cast("B").toreadonly()
    _check_walked(view, batches)
    if batch_kernels.CRC_AVAILABLE:
        bad, computed = batch_kernels.first_mismatch(
            np.frombuffer(view, np.uint8), batches.fields, batch_kernels.CRC_ZEROS
        )
    else:
        bad, computed = first_mismatch(view, batches)
    if bad >= 0:
        where = f"batch at byte {int(batches.position[bad])}"
        raise ChecksumMismatch(source, where, int(batches.crc[bad]), computed)


def first_mismatch(view: memoryview, batches: BatchColumns) -> tuple[int, int]:
    """The checksum kernel for processors without its instruction: (batch, computed), or (-1, 0)."""
    begins, ends = batches.position + CRC_START, batches.position + batches.length
    rows = zip(begins.tolist(), ends.tolist(), batches.crc.tolist(), strict=True)
    for batch, (begin, end, stored) in enumerate(rows):
        computed = crc32c(view[begin:end])
        if computed != stored:
            return batch, computed
    return -1, 0


def _check_walked(view: memoryview, batches: BatchColumns) -> None:
    """The kernels trust positions, so the batches must lie inside this buffer."""
    if len(batches) and int(batches.position[-1] + batches.length[-1]) > view.nbytes:
        raise InvalidArgument("buffer", "is shorter than the buffer that was walked")


def set_leader_epoch(buffer: bytearray, batches: BatchColumns, leader_epoch: int) -> BatchColumns:
    """Give the batches the leader epoch, in place. Returns the changed headers."""
    _check_walked(memoryview(buffer), batches)
    data, epoch = np.frombuffer(buffer, np.uint8), leader_epoch.to_bytes(4, "big", signed=True)
    for number, byte in enumerate(epoch):
        data[batches.position + PREFIX_BYTES + number] = byte
    fields = batches.fields.copy()
    fields[_LEADER_EPOCH] = leader_epoch
    return BatchColumns(fields)


def patch_offsets(buffer: Buffer, batches: BatchColumns, start_offset: int, leader_epoch: int) -> BatchColumns:
    """Give the batches consecutive offsets from `start_offset` and the leader epoch, in place.

    `buffer` must be writable; each batch takes last offset delta + 1 offsets. Returns the changed headers.
    """
    from llog.formats.records import batch_kernels

    view = memoryview(buffer)
    if view.readonly:
        raise InvalidArgument("buffer", "read-only: offsets are patched in place")
    if not 0 <= start_offset <= OFFSET_MAX - batches.offset_count:
        raise InvalidArgument("start_offset", f"{start_offset} + {batches.offset_count} offsets exceed 64 bits")
    if not -1 <= leader_epoch < 2**31:
        raise InvalidArgument("leader_epoch", f"{leader_epoch} is not an epoch")
    _check_walked(view, batches)
    fields = batches.fields.copy()
    batch_kernels.patch(np.frombuffer(view, np.uint8), fields, start_offset, leader_epoch)
    return BatchColumns(fields)
