"""RecordBatches that clients of the Kafka API send: one batch per partition and request, checked as Kafka checks it.

A request names many partitions with small batches, so a batch costs two kernel calls: one for header and checksum, one
that walks its records. The walk checks everything that readers rely on, finds the oldest and the newest timestamp and
the first null key, and adds up the bytes of the values. Compressed records are walked only where a caller needs that
(`walk_inflated`): readers bound and check what they decompress.

`stamp` changes the timestamp fields of a header in place, with a new checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llog.errors import InvalidArgument
from llog.formats.buffers import Buffer, crc32c
from llog.formats.records.compression import decompress
from llog.formats.records.record_batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Codec,
)
from llog.formats.records.record_columns import Bytes, Longs
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX

Words = npt.NDArray[np.uint32]

NO_TIMESTAMP_MS: Final = -1
NO_RECORD: Final = -1

_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = CRC_START - _CRC.size
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_CODEC_AT: Final = CRC_START + 1
# The rows of `BatchColumns.fields`, which are columns here.
_LENGTH: Final = 1
_CRC_FIELD: Final = 4
_ATTRIBUTES_FIELD: Final = 5
_BASE_TIMESTAMP: Final = 7
_MAX_TIMESTAMP_FIELD: Final = 8
_RECORD_COUNT: Final = 12
_FIELDS: Final = 13


class BatchFault(IntEnum):
    """Why a batch is not accepted, in the order in which faults are looked for. The kernels use the same numbers."""

    NONE = 0
    NO_BATCH = 1
    BAD_MAGIC = 2
    OLD_MAGIC = 3
    BAD_LENGTH = 4
    INCOMPLETE = 5
    MORE_BATCHES = 6
    TOO_LARGE = 7
    BAD_CHECKSUM = 8
    UNKNOWN_CODEC = 9
    BASE_OFFSET_SET = 10
    BAD_COUNT = 11
    CONTROL_BATCH = 12
    HORIZON_SET = 13
    BAD_RECORD = 14
    """`bad_record` is the number of the record."""


class ProducedBatch(NamedTuple):
    """One batch as it was checked. After a fault only the fields before it mean something."""

    fault: BatchFault
    byte_length: int
    # The next eight are those of a header, in its order.
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int = 0
    bad_record: int = NO_RECORD
    oldest_ms: int = NO_TIMESTAMP_MS
    """Of the records; of a compressed batch, the header's base timestamp."""
    newest_ms: int = NO_TIMESTAMP_MS
    """Of the records; of a compressed batch, the header's max timestamp."""
    null_key: int = NO_RECORD
    """The first record without a key; unknown of a compressed batch."""
    value_bytes: int = 0
    """Of the records' values; of a compressed batch that was not decompressed, the bytes behind its header."""

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def check_batches(batches: Sequence[tuple[Buffer | None, int]]) -> list[ProducedBatch]:
    """Check the records of each partition of a request, with the topic's limit of a batch. Few steps per batch."""
    from llog.formats.records import batch_kernels, decode_kernels

    check: Callable[..., int] = batch_kernels.check_produced if batch_kernels.CRC_AVAILABLE else _check_slowly
    walk, zeros = decode_kernels.walk_produced, batch_kernels.CRC_ZEROS
    fields = np.empty((len(batches), _FIELDS), np.int64)
    summary = np.empty((len(batches), decode_kernels.SUMMARY), np.int64)
    faults: list[int] = []
    for row, (records, bytes_max) in enumerate(batches):
        if records is None:
            faults.append(BatchFault.NO_BATCH)
            continue
        data = np.frombuffer(memoryview(records).toreadonly(), np.uint8)
        limit = bytes_max if bytes_max < RECORD_BATCH_BYTES_MAX else RECORD_BATCH_BYTES_MAX
        fault = check(data, limit, RECORD_BATCH_DECODED_BYTES_MAX, fields, row, zeros)
        if not fault and not data[_CODEC_AT] & CODEC_MASK and walk(data, HEADER_BYTES, fields, summary, row):
            fault = BatchFault.BAD_RECORD
        faults.append(fault)
    return [
        ProducedBatch(BatchFault.NONE, header[_LENGTH], *header[_ATTRIBUTES_FIELD:], *walked)
        if not fault and not header[_ATTRIBUTES_FIELD] & CODEC_MASK
        else _unusual(fault, records, header, walked)
        for fault, (records, _), header, walked in zip(faults, batches, fields.tolist(), summary.tolist(), strict=True)
    ]


def _check_slowly(data: Bytes, bytes_max: int, decoded_bytes_max: int, fields: Longs, row: int, _zeros: Words) -> int:
    """`check_produced` where the processor has no instruction for checksums."""
    from llog.formats.records import batch_kernels

    fault = batch_kernels.check_unsummed(data, bytes_max, decoded_bytes_max, fields, row)
    whole = fault == BatchFault.NONE or fault > BatchFault.BAD_CHECKSUM
    return BatchFault.BAD_CHECKSUM if whole and crc32c(data.data[CRC_START:]) != fields[row, _CRC_FIELD] else fault


def _unusual(fault: int, records: Buffer | None, header: list[int], walked: list[int]) -> ProducedBatch:
    """A batch with a fault, or a compressed one."""
    if fault and fault != BatchFault.BAD_RECORD:
        return ProducedBatch(BatchFault(fault), 0 if records is None else memoryview(records).nbytes)
    if header[_ATTRIBUTES_FIELD] & CODEC_MASK:
        packed_bytes = header[_LENGTH] - HEADER_BYTES
        walked = [NO_RECORD, header[_BASE_TIMESTAMP], header[_MAX_TIMESTAMP_FIELD], NO_RECORD, packed_bytes]
    return ProducedBatch(BatchFault(fault), header[_LENGTH], *header[_ATTRIBUTES_FIELD:], *walked)


def walk_inflated(records: Buffer, batch: ProducedBatch) -> ProducedBatch:
    """A compressed batch with its records checked too. Raises `FormatError` if it cannot be decompressed."""
    from llog.formats.records import decode_kernels

    packed = memoryview(records).toreadonly()[HEADER_BYTES:]
    inflated = decompress(batch.codec, packed, "batch", bytes_max=RECORD_BATCH_DECODED_BYTES_MAX)
    data = np.frombuffer(inflated.toreadonly(), np.uint8)
    fields, summary = np.zeros((1, _FIELDS), np.int64), np.empty((1, decode_kernels.SUMMARY), np.int64)
    fields[0, _BASE_TIMESTAMP], fields[0, _RECORD_COUNT] = batch.base_timestamp, batch.record_count
    walked = decode_kernels.walk_produced(data, 0, fields, summary, 0)
    bad_record, oldest_ms, newest_ms, null_key, value_bytes = summary[0].tolist()
    return batch._replace(
        fault=BatchFault.BAD_RECORD if walked else BatchFault.NONE,
        bad_record=bad_record,
        oldest_ms=oldest_ms,
        newest_ms=newest_ms,
        null_key=null_key,
        value_bytes=value_bytes,
    )


def stamp(batch: Buffer, max_timestamp_ms: int, *, log_append_time: bool) -> None:
    """Set the timestamp type and the newest timestamp of one batch in place, and its checksum anew if that changes
    it."""
    view = memoryview(batch)
    [before_ms], [before] = (
        _MAX_TIMESTAMP.unpack_from(view, _MAX_TIMESTAMP_AT),
        _ATTRIBUTES.unpack_from(view, CRC_START),
    )
    attributes = before | LOG_APPEND_TIME if log_append_time else before & ~LOG_APPEND_TIME
    if (before, before_ms) == (attributes, max_timestamp_ms):
        return
    if view.readonly:
        raise InvalidArgument("batch", "read-only: a header is changed in place")
    _ATTRIBUTES.pack_into(view, CRC_START, attributes)
    _MAX_TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, max_timestamp_ms)
    _CRC.pack_into(view, _CRC_AT, crc32c(view[CRC_START:]))
