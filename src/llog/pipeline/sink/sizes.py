"""How many bytes rows take as records: what a topic's `max.message.bytes` is compared with. Nothing here waits.

A record is judged by the batch that holds it alone and uncompressed, as everywhere (`llog.http.json.record_size` says
the same of one that comes by HTTP; a test compares both with what the encoder writes).

What must stay true: no Python per row, and next to no work where no row comes near the limit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from llog.errors import RecordTooLarge
from llog.formats.records.record_batch import HEADER_BYTES
from llog.formats.records.record_columns import BinaryColumn, HeaderColumn, RecordColumns
from llog.log.keys import Log

Longs = npt.NDArray[np.int64]

# Attributes, and the deltas of time and offset, which are 0.
_FIXED_BYTES: Final = 3
# From these numbers on a zigzag varint has another byte.
_VARINT_STEPS: Final = np.array([1 << bits for bits in (6, 13, 20, 27, 34)], np.int64)
# Around key and value, at most: what is fixed, three lengths and a count.
_AROUND_BYTES_MAX: Final = HEADER_BYTES + _FIXED_BYTES + 4 * 6


def check_sizes(log: Log, columns: RecordColumns, limit_bytes: int) -> None:
    """Raises `RecordTooLarge`, with the size of the largest."""
    if _at_most(columns) <= limit_bytes:
        return
    largest = largest_record_bytes(columns)
    if largest > limit_bytes:
        raise RecordTooLarge(log.topic, log.partition, largest, limit_bytes)


def largest_record_bytes(columns: RecordColumns) -> int:
    return int(record_bytes(columns).max()) if len(columns) else 0


def record_bytes(columns: RecordColumns) -> Longs:
    """Of each record."""
    content = _sized(columns.keys) + _sized(columns.values) + _headers_bytes(columns.headers)
    return HEADER_BYTES + _with_length(_FIXED_BYTES + content)


def _at_most(columns: RecordColumns) -> int:
    """No record is larger: the longest key and the longest value, with all headers there are."""
    if len(columns) == 0:
        return 0
    headers = int(_with_length(_lengths(columns.headers.keys)).sum() + _sized(columns.headers.values).sum())
    return _AROUND_BYTES_MAX + int(_lengths(columns.keys).max() + _lengths(columns.values).max()) + headers


def _headers_bytes(headers: HeaderColumn) -> Longs:
    each = _with_length(_lengths(headers.keys)) + _sized(headers.values)
    before: Longs = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
    first, end = headers.offsets[:-1], headers.offsets[1:]
    return _varint_bytes(end.astype(np.int64) - first) + before[end] - before[first]


def _sized(column: BinaryColumn) -> Longs:
    sizes = _with_length(_lengths(column))
    return np.where(column.null_flags(), 1, sizes) if len(column.validity) else sizes  # null is the length -1


def _lengths(column: BinaryColumn) -> Longs:
    return column.offsets[1:].astype(np.int64) - column.offsets[:-1]


def _with_length(sizes: Longs) -> Longs:
    return _varint_bytes(sizes) + sizes


def _varint_bytes(numbers: Longs) -> Longs:
    return 1 + np.searchsorted(_VARINT_STEPS, numbers, side="right").astype(np.int64)
