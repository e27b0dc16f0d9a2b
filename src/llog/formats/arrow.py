"""Record columns to Arrow and back, sharing memory where both have the same shape.

The table has the columns of Spark's Kafka source, all nullable: key, value, topic, partition, offset, timestamp,
timestampType, headers. Only this module of the formats imports pyarrow.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llog.errors import InvalidArgument
from llog.formats.records.record_columns import (
    NOTHING,
    BinaryColumn,
    HeaderColumn,
    Longs,
    RecordColumns,
    frozen,
    no_headers,
    null_column,
)

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
_MICROSECONDS_PER_MS: Final = 1_000
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // _MICROSECONDS_PER_MS


def to_arrow(columns: RecordColumns, *, topic: str | None = None, partition: int | None = None) -> pa.RecordBatch:
    """The columns as a table of `SCHEMA`. Keys, values and headers are shared, not copied."""
    rows = len(columns)
    arrays = [
        _to_binary(columns.keys, pa.binary()),
        _to_binary(columns.values, pa.binary()),
        pa.nulls(rows, pa.string()) if topic is None else pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.nulls(rows, pa.int32()) if partition is None else pa.repeat(pa.scalar(partition, pa.int32()), rows),
        _to_fixed(columns.offsets, pa.int64()),
        _to_fixed(_microseconds(columns.timestamps_ms), pa.timestamp("us", tz="UTC")),
        _to_fixed(columns.timestamp_types.astype(np.int32), pa.int32()),
        _to_headers(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _microseconds(timestamps_ms: Longs) -> Longs:
    """A timestamp beyond the range of microseconds (a producer sent nanoseconds) becomes the largest one, as in Spark,
    so that the other records can be read."""
    return np.clip(timestamps_ms, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX) * _MICROSECONDS_PER_MS


def _to_fixed(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)


def _to_binary(column: BinaryColumn, kind: pa.DataType) -> pa.Array:
    validity = None
    if len(column.validity):
        # Arrow uses one offset for all buffers of an array, so a bitmap that begins elsewhere is moved.
        bits = column.validity if column.first_bit == 0 else np.packbits(~column.null_flags(), bitorder="little")
        validity = pa.py_buffer(bits)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _to_headers(column: HeaderColumn) -> pa.Array:
    children = [_to_binary(column.keys, pa.string()), _to_binary(column.values, pa.binary())]
    items = pa.StructArray.from_arrays(children, fields=list(HEADERS_TYPE.value_type))
    buffers = [None, pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(HEADERS_TYPE, len(column), buffers, null_count=0, children=[items])


def from_arrow(batch: pa.RecordBatch, *, timestamp_ms: int) -> RecordColumns:
    """Columns from a table with `value` and, optionally, `key`, `headers`, `timestamp` and `offset`.

    Rows without a timestamp get `timestamp_ms`; without offsets they count from 0. Other columns are ignored.
    """
    names = batch.schema.names
    if "value" not in names:
        raise InvalidArgument("table", "has no column value")
    rows = batch.num_rows
    return RecordColumns(
        offsets=_from_longs(batch, "offset") if "offset" in names else frozen(np.arange(rows, dtype=np.int64)),
        timestamps_ms=_from_timestamps(batch, timestamp_ms),
        timestamp_types=frozen(np.zeros(rows, np.int8)),
        keys=_from_binary(_cast(batch, "key", pa.binary())) if "key" in names else null_column(rows),
        values=_from_binary(_cast(batch, "value", pa.binary())),
        headers=_from_headers(_cast(batch, "headers", HEADERS_TYPE)) if "headers" in names else no_headers(rows),
    )


def _cast(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    array = batch.column(name)
    try:
        return array if array.type == kind else array.cast(kind)
    except pa.ArrowException as error:
        raise InvalidArgument(name, f"{array.type} cannot be read as {kind}: {error}") from None


def _from_longs(batch: pa.RecordBatch, name: str) -> Longs:
    array = _cast(batch, name, pa.int64())
    if array.null_count:
        raise InvalidArgument(name, f"{array.null_count} rows have none")
    return frozen(np.array(array.to_numpy(), np.int64))


def _from_timestamps(batch: pa.RecordBatch, default_ms: int) -> Longs:
    rows = batch.num_rows
    if "timestamp" not in batch.schema.names:
        return frozen(np.full(rows, default_ms, np.int64))
    array = batch.column("timestamp")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
    try:
        array = pc.fill_null(array.cast(pa.int64()), default_ms)
    except pa.ArrowException as error:
        raise InvalidArgument("timestamp", f"{array.type} is no timestamp: {error}") from None
    return frozen(np.array(array.to_numpy(), np.int64))


def _from_binary(array: pa.Array) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    rows, first = len(array), array.offset
    if rows == 0:
        return BinaryColumn(frozen(np.zeros(1, np.int32)), NOTHING)
    return BinaryColumn(
        offsets=frozen(np.frombuffer(offsets, np.int32, rows + 1, first * 4)),
        data=NOTHING if data is None or data.size == 0 else frozen(np.frombuffer(data, np.uint8)),
        validity=NOTHING if array.null_count == 0 else frozen(np.frombuffer(validity, np.uint8)),
        first_bit=0 if array.null_count == 0 else first,
    )


def _from_headers(array: pa.Array) -> HeaderColumn:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    # flatten() skips the values of null lists and returns null for the fields of a null struct.
    keys, values = array.flatten().flatten()
    if keys.null_count:
        raise InvalidArgument("headers", "a header has no key")
    return HeaderColumn(frozen(offsets), _from_binary(keys), _from_binary(values))
