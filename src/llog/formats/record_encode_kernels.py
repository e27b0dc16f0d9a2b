"""Kernels that write the records of one batch from Arrow-shaped columns.

Two passes: `measure_records` checks the columns and finds each record's length, `write_records` fills a buffer of
exactly the sum. The columns may come from outside, so the first pass also checks that their offsets rise and stay
within their data: the second trusts it. `records` is the way in.
"""

# Inside a kernel an int is whatever numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Input = tuple[Ints, Bytes, Bytes, int]
"""Offsets, data, validity bitmap (no bytes: nothing is null) and the bit of its first row."""

_BODY_MAX = 2**31 - 1


@inlined
def _varint_size(value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    if 0 <= raw < 0x80:
        return 1
    size = 1
    raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
    while raw != 0:
        size += 1
        raw >>= 7
    return size


@inlined
def _put_varint(output: Bytes, at: int, value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    if 0 <= raw < 0x80:
        output[at] = np.uint8(raw)
        return at + 1
    output[at] = np.uint8((raw & 0x7F) | 0x80)
    at += 1
    raw = (raw >> 7) & 0x1FFFFFFFFFFFFFF
    while raw >= 0x80:
        output[at] = np.uint8((raw & 0x7F) | 0x80)
        at += 1
        raw >>= 7
    output[at] = np.uint8(raw)
    return at + 1


@inlined
def _copy(target: Bytes, data: Bytes) -> None:
    # Plain positions from 0, which cannot be negative: the compiler turns this loop into wide moves.
    for i in range(target.size):
        target[i] = data[i]


@inlined
def _is_null(column: Input, row: int) -> bool:
    _, _, validity, first_bit = column
    bit = first_bit + row
    return validity.size != 0 and (validity[bit >> 3] >> np.uint8(bit & 7)) & 1 == 0


@inlined
def _cell_size(column: Input, row: int) -> int:
    """How many bytes a nullable byte string takes with its length; -1 when its offsets are unsound."""
    offsets, data, _, _ = column
    if _is_null(column, row):
        return 1
    start = np.int64(offsets[row])
    end = np.int64(offsets[row + 1])
    if start < 0 or end < start or end > data.size:
        return -1
    return _varint_size(end - start) + end - start


@inlined
def _put_cell(output: Bytes, at: int, column: Input, row: int) -> int:
    if _is_null(column, row):
        output[at] = 1
        return at + 1
    offsets, data, _, _ = column
    start = np.int64(offsets[row])
    length = np.int64(offsets[row + 1]) - start
    at = _put_varint(output, at, length)
    _copy(output[at : at + length], data[start : start + length])
    return at + length


@kernel
def measure_records(
    timestamps: Longs,
    base_timestamp: int,
    deltas: Longs,
    keys: Input,
    values: Input,
    header_lists: Ints,
    header_keys: Input,
    header_values: Input,
    lengths: Ints,
) -> int:
    """Fill `lengths` with the length of each record's body; the sum with the varints, or -1 - row of a bad record."""
    total = 0
    header_count = header_keys[0].size - 1
    for row in range(lengths.size):
        first, stop = np.int64(header_lists[row]), np.int64(header_lists[row + 1])
        if first < 0 or stop < first or stop > header_count:
            return -1 - row
        key = _cell_size(keys, row)
        value = _cell_size(values, row)
        if key < 0 or value < 0:
            return -1 - row
        size = 1 + _varint_size(timestamps[row] - base_timestamp) + _varint_size(deltas[row]) + key + value
        size += _varint_size(stop - first)
        for header in range(first, stop):
            key = _cell_size(header_keys, header)
            value = _cell_size(header_values, header)
            if key < 0 or value < 0 or _is_null(header_keys, header):
                return -1 - row
            size += key + value
        if size > _BODY_MAX:
            return -1 - row
        lengths[row] = size
        total += size + _varint_size(size)
    return total


@kernel
def write_records(
    output: Bytes,
    at: int,
    timestamps: Longs,
    base_timestamp: int,
    deltas: Longs,
    keys: Input,
    values: Input,
    header_lists: Ints,
    header_keys: Input,
    header_values: Input,
    lengths: Ints,
) -> int:
    """Write the measured records from position `at` on; returns the position behind them."""
    for row in range(lengths.size):
        at = _put_varint(output, at, np.int64(lengths[row]))
        output[at] = 0
        at = _put_varint(output, at + 1, timestamps[row] - base_timestamp)
        at = _put_varint(output, at, deltas[row])
        at = _put_cell(output, at, keys, row)
        at = _put_cell(output, at, values, row)
        first, stop = np.int64(header_lists[row]), np.int64(header_lists[row + 1])
        at = _put_varint(output, at, stop - first)
        for header in range(first, stop):
            at = _put_cell(output, at, header_keys, header)
            at = _put_cell(output, at, header_values, header)
    return at
