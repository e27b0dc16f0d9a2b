"""Rows or record columns to one RecordBatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.records.compression import compress
from llog.formats.records.crc import crc32c
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
)
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


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
    """One batch of all rows, checksum filled in.

    Without `last_offset_delta` the rows get the offsets from `base_offset` on, one each, whatever their own are. With
    it (a batch that lost records keeps its range) their own offsets stay, and must lie within that range.
    """
    if len(columns) == 0:
        raise InvalidArgument("records", "a batch needs at least one")
    deltas, last_delta = _deltas(columns, base_offset, last_offset_delta)
    base_timestamp = int(columns.timestamps_ms[0])
    section_at = HEADER_BYTES if codec is Codec.NONE else 0
    output, newest = _write_records(columns, deltas, base_timestamp, section_at)
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
        base_timestamp, newest, producer_id, producer_epoch, base_sequence, len(columns),
    ]  # fmt: skip
    view = output.data
    HEADER.pack_into(view, 0, *fields)
    fields[4] = crc32c(view[CRC_START:])
    HEADER.pack_into(view, 0, *fields)
    return view


def _deltas(columns: RecordColumns, base_offset: int, last_offset_delta: int | None) -> tuple[Longs, int]:
    rows = len(columns)
    if last_offset_delta is None:
        last_offset_delta = rows - 1
        deltas = np.arange(rows, dtype=np.int64)
    else:
        deltas = columns.offsets - base_offset
        rising = bool(np.all(columns.offsets[1:] > columns.offsets[:-1]))
        if not rising or int(deltas[0]) < 0 or int(deltas[-1]) > last_offset_delta:
            raise InvalidArgument("offsets", f"must rise within {base_offset} … {base_offset + last_offset_delta}")
    if not 0 <= base_offset < OFFSET_MAX - last_offset_delta or not 0 <= last_offset_delta < 2**31:
        raise InvalidArgument("base_offset", f"{base_offset} … {base_offset + last_offset_delta} are not offsets")
    return deltas, last_offset_delta


def _write_records(columns: RecordColumns, deltas: Longs, base_timestamp: int, at: int) -> tuple[Bytes, int]:
    """(the records section behind `at` free bytes, in a buffer of exactly that size; the newest timestamp)."""
    from llog.formats.records import record_encode_kernels as kernels

    rows = (
        columns.timestamps_ms,
        base_timestamp,
        deltas,
        *_input(columns.keys),
        *_input(columns.values),
        columns.headers.offsets,
        *_input(columns.headers.keys)[:2],
        *_input(columns.headers.values),
        np.empty(len(columns), np.int32),
    )
    total, oldest, newest = kernels.measure_records(*rows)
    if total < 0:
        raise InvalidArgument("records", f"row {-1 - total}: the columns' offsets contradict each other")
    if newest - oldest > OFFSET_MAX:
        raise InvalidArgument("timestamps_ms", "lie more than 64 bits apart")
    limit = RECORD_BATCH_BYTES_MAX if at else RECORD_BATCH_DECODED_BYTES_MAX
    if at + total > limit:
        raise ValueTooLarge("records", at + total, limit)
    output = np.empty(at + total, np.uint8)
    kernels.write_records(output, at, *rows)
    return output, newest


def _input(column: BinaryColumn) -> tuple[Ints, Bytes, Bytes, int]:
    return column.offsets, column.data, column.validity, column.first_bit
