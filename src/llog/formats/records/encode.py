"""Rows or record columns to one RecordBatch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.buffers import crc32c
from llog.formats.records.compression import compress
from llog.formats.records.record_batch import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OFFSET_MAX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    Codec,
    TimestampType,
)
from llog.formats.records.record_columns import (
    BinaryColumn,
    Bytes,
    Header,
    Ints,
    Longs,
    RecordColumns,
    columns_from_rows,
    frozen,
)
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

# Payload sizes with a cached record size; computing a size takes longer than a lookup.
PLAIN_RECORD_SIZES_CACHED: Final = 4_096


def encode_records(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header] | None] | None = None,
    timestamps_ms: int | Sequence[int] | Longs,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> memoryview:
    """One batch of these records, base offset 0. `timestamps_ms` is one for all or one per record."""
    return encode_columns(
        columns_from_rows(values, keys=keys, headers=headers, timestamps_ms=timestamps_ms),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def encode_columns(
    columns: RecordColumns,
    *,
    rows: Longs | None = None,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> memoryview:
    """One batch of these `rows` in this order (None: all of them), checksum filled in.

    Without `last_offset_delta` the rows get consecutive offsets from `base_offset` on. With it, rows keep their own
    offsets, which must lie within that range (a batch that lost records keeps its range).
    """
    rows = np.arange(len(columns), dtype=np.int64) if rows is None else rows
    if len(rows) == 0:
        raise InvalidArgument("records", "a batch needs at least one")
    deltas, last_delta = _deltas(columns, rows, base_offset, last_offset_delta)
    base_timestamp = int(columns.timestamps_ms[rows[0]])
    section_at = HEADER_BYTES if codec is Codec.NONE else 0
    output, newest = _write_records(columns, rows, deltas, base_timestamp, section_at)
    if codec is not Codec.NONE:
        packed = np.frombuffer(compress(codec, output.data), np.uint8)
        output = np.empty(HEADER_BYTES + len(packed), np.uint8)
        output[HEADER_BYTES:] = packed
    if len(output) > RECORD_BATCH_BYTES_MAX:
        raise ValueTooLarge("records", len(output), RECORD_BATCH_BYTES_MAX)
    attributes = int(codec)
    attributes |= LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    fields = [
        base_offset, len(output) - PREFIX_BYTES, partition_leader_epoch, MAGIC, 0, attributes, last_delta,
        base_timestamp, newest, producer_id, producer_epoch, base_sequence, len(rows),
    ]  # fmt: skip
    view = output.data
    HEADER.pack_into(view, 0, *fields)
    fields[4] = crc32c(view[CRC_START:])
    HEADER.pack_into(view, 0, *fields)
    return view


def _deltas(columns: RecordColumns, rows: Longs, base_offset: int, last_offset_delta: int | None) -> tuple[Longs, int]:
    if last_offset_delta is None:
        last_offset_delta = len(rows) - 1
        deltas = np.arange(len(rows), dtype=np.int64)
    else:
        deltas = columns.offsets[rows] - base_offset
        rising = bool(np.all(deltas[1:] > deltas[:-1]))
        if not rising or int(deltas[0]) < 0 or int(deltas[-1]) > last_offset_delta:
            raise InvalidArgument("offsets", f"must increase within {base_offset} … {base_offset + last_offset_delta}")
    if not 0 <= base_offset < OFFSET_MAX - last_offset_delta or not 0 <= last_offset_delta < 2**31:
        raise InvalidArgument("base_offset", f"{base_offset} … {base_offset + last_offset_delta} are not offsets")
    return deltas, last_offset_delta


def _write_records(
    columns: RecordColumns, rows: Longs, deltas: Longs, base_timestamp: int, at: int
) -> tuple[Bytes, int]:
    """(buffer with `at` free bytes followed by the records; the newest timestamp)."""
    from llog.formats.records import encode_kernels as kernels

    lengths = np.empty(len(rows), np.int32)
    inputs = (rows, columns.timestamps_ms, base_timestamp, deltas, *_byte_columns(columns), lengths)
    total, oldest, newest = kernels.measure_records(*inputs)
    _check_measured(total)
    if newest - oldest > OFFSET_MAX:
        raise InvalidArgument("timestamps_ms", "lie more than 64 bits apart")
    limit = RECORD_BATCH_BYTES_MAX if at else RECORD_BATCH_DECODED_BYTES_MAX
    if at + total > limit:
        raise ValueTooLarge("records", at + total, limit)
    output = np.empty(at + total, np.uint8)
    kernels.write_records(output, at, *inputs)
    return output, newest


# -- record size: the uncompressed batch of one record alone, which `max.message.bytes` limits -------------------------


def record_bytes(columns: RecordColumns) -> Longs:
    """Size of each record."""
    from llog.formats.records import encode_kernels as kernels

    count = len(columns)
    rows, deltas, lengths = np.arange(count, dtype=np.int64), np.zeros(count, np.int64), np.empty(count, np.int32)
    timestamps = frozen(np.zeros(count, np.int64))
    total, _, _ = kernels.measure_records(rows, timestamps, 0, deltas, *_byte_columns(columns), lengths)
    _check_measured(total)
    sizes = HEADER_BYTES + 1 + lengths.astype(np.int64)
    for bits in (6, 13, 20, 27):  # from these lengths on the zigzag varint of the length has another byte
        sizes += lengths >= 1 << bits
    return sizes


def largest_record_bytes(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header]] | None = None,
) -> int:
    """Size of the largest record."""
    if keys is None and headers is None:
        return plain_record_bytes(max((0 if value is None else len(value) for value in values), default=0))
    return int(record_bytes(columns_from_rows(values, keys=keys, headers=headers, timestamps_ms=0)).max())


@lru_cache(maxsize=PLAIN_RECORD_SIZES_CACHED)
def plain_record_bytes(payload_bytes: int) -> int:
    """Size of a record without key and headers."""
    # The fixed bytes: attributes, timestamp and offset delta (0), key length (null), number of headers (0).
    body_bytes = 5 + _varint_bytes(payload_bytes) + payload_bytes
    return HEADER_BYTES + _varint_bytes(body_bytes) + body_bytes


def _varint_bytes(number: int) -> int:
    """Length of a number that is not negative, as a zigzag varint."""
    return ((number << 1).bit_length() + 6) // 7 or 1


def _check_measured(total: int) -> None:
    if total < 0:
        reason = "its row does not exist, or the columns' offsets contradict each other"
        raise InvalidArgument("records", f"record {-1 - total}: {reason}")


def _byte_columns(
    columns: RecordColumns,
) -> tuple[Ints, Bytes, Bytes, int, Ints, Bytes, Bytes, int, Ints, Ints, Bytes, Ints, Bytes, Bytes, int]:
    """Keys, values and headers as arguments of the kernels."""
    headers = columns.headers
    return (
        *_byte_column(columns.keys),
        *_byte_column(columns.values),
        headers.offsets,
        *_byte_column(headers.keys)[:2],
        *_byte_column(headers.values),
    )


def _byte_column(column: BinaryColumn) -> tuple[Ints, Bytes, Bytes, int]:
    return column.offsets, column.data, column.validity, column.first_bit
