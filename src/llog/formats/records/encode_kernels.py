"""Kernels that write records: one batch from Arrow-shaped columns, or many batches of bare payloads.

Both work in two passes. The first checks its input, which may come from outside (row numbers exist; offsets rise and
stay within their data), and returns lengths; the second fills a buffer of exactly that size and checks nothing.

Columns (`measure_records`, `write_records`; call them through `encode`): `rows` lists the rows to write, in order, so
that rows of a large table need no copy. A column is passed as its offsets, its data, its validity bitmap (empty: no row
is null) and the bit of its first row.

Payloads (`measure_plain`, `write_plain`; call them through `plain_batches`): payload i is data[starts[i] : starts[i] +
sizes[i]], and batch k takes the next rows[k] payloads. `batch_kernels.fill_checksums` adds the checksums.
"""

# The type of an int inside a kernel is the one that numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import copy_bytes, inlined, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_BODY_MAX = 2**31 - 1
_HEADER_BYTES = 61
_PREFIX_BYTES = 12
_MAGIC = 2
# A record without its payload and its two numbers: attributes, timestamp delta, key length (null), number of headers.
_PLAIN_FIXED_BYTES = 4


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
def _is_null(validity: Bytes, bit: int) -> bool:
    return validity.size != 0 and (validity[bit >> 3] >> np.uint8(bit & 7)) & 1 == 0


@inlined
def _size(offsets: Ints, data: Bytes, row: int) -> int:
    """Bytes of a byte string with its length; -1 if its offsets are invalid."""
    start = np.int64(offsets[row])
    end = np.int64(offsets[row + 1])
    if start < 0 or end < start or end > data.size:
        return -1
    return _varint_size(end - start) + end - start


@inlined
def _put(output: Bytes, at: int, offsets: Ints, data: Bytes, row: int) -> int:
    start = np.int64(offsets[row])
    length = np.int64(offsets[row + 1]) - start
    at = _put_varint(output, at, length)
    copy_bytes(output, at, data, start, length)
    return at + length


@inlined
def _put_null(output: Bytes, at: int) -> int:
    output[at] = 1
    return at + 1


@kernel
def measure_records(
    rows: Longs,
    timestamps: Longs,
    base_timestamp: int,
    deltas: Longs,
    key_offsets: Ints,
    key_data: Bytes,
    key_validity: Bytes,
    key_first_bit: int,
    value_offsets: Ints,
    value_data: Bytes,
    value_validity: Bytes,
    value_first_bit: int,
    header_lists: Ints,
    header_key_offsets: Ints,
    header_key_data: Bytes,
    header_value_offsets: Ints,
    header_value_data: Bytes,
    header_value_validity: Bytes,
    header_value_first_bit: int,
    lengths: Ints,
) -> tuple[int, int, int]:
    """Fill `lengths` with the length of each record's body: (bytes of all records, oldest, newest timestamp).

    The first is -1 - n if the row of record n does not exist or its columns are invalid.
    """
    total = 0
    oldest = newest = base_timestamp
    header_count = header_key_offsets.size - 1
    for n in range(lengths.size):
        row = rows[n]
        if row < 0 or row >= timestamps.size:
            return -1 - n, 0, 0
        first, stop = np.int64(header_lists[row]), np.int64(header_lists[row + 1])
        if first < 0 or stop < first or stop > header_count:
            return -1 - n, 0, 0
        key = 1 if _is_null(key_validity, key_first_bit + row) else _size(key_offsets, key_data, row)
        value = 1 if _is_null(value_validity, value_first_bit + row) else _size(value_offsets, value_data, row)
        if key < 0 or value < 0:
            return -1 - n, 0, 0
        size = 1 + _varint_size(timestamps[row] - base_timestamp) + _varint_size(deltas[n]) + key + value
        size += _varint_size(stop - first)
        for header in range(first, stop):
            key = _size(header_key_offsets, header_key_data, header)
            value = 1
            if not _is_null(header_value_validity, header_value_first_bit + header):
                value = _size(header_value_offsets, header_value_data, header)
            if key < 0 or value < 0:
                return -1 - n, 0, 0
            size += key + value
        if size > _BODY_MAX:
            return -1 - n, 0, 0
        lengths[n] = size
        oldest = min(oldest, timestamps[row])
        newest = max(newest, timestamps[row])
        total += size + _varint_size(size)
    return total, oldest, newest


@kernel
def write_records(
    output: Bytes,
    at: int,
    rows: Longs,
    timestamps: Longs,
    base_timestamp: int,
    deltas: Longs,
    key_offsets: Ints,
    key_data: Bytes,
    key_validity: Bytes,
    key_first_bit: int,
    value_offsets: Ints,
    value_data: Bytes,
    value_validity: Bytes,
    value_first_bit: int,
    header_lists: Ints,
    header_key_offsets: Ints,
    header_key_data: Bytes,
    header_value_offsets: Ints,
    header_value_data: Bytes,
    header_value_validity: Bytes,
    header_value_first_bit: int,
    lengths: Ints,
) -> int:
    """Write the measured records from position `at` on; returns the position after them."""
    for n in range(lengths.size):
        row = rows[n]
        at = _put_varint(output, at, np.int64(lengths[n]))
        output[at] = 0
        at = _put_varint(output, at + 1, timestamps[row] - base_timestamp)
        at = _put_varint(output, at, deltas[n])
        if _is_null(key_validity, key_first_bit + row):
            at = _put_null(output, at)
        else:
            at = _put(output, at, key_offsets, key_data, row)
        if _is_null(value_validity, value_first_bit + row):
            at = _put_null(output, at)
        else:
            at = _put(output, at, value_offsets, value_data, row)
        first, stop = np.int64(header_lists[row]), np.int64(header_lists[row + 1])
        at = _put_varint(output, at, stop - first)
        for header in range(first, stop):
            at = _put(output, at, header_key_offsets, header_key_data, header)
            if _is_null(header_value_validity, header_value_first_bit + header):
                at = _put_null(output, at)
            else:
                at = _put(output, at, header_value_offsets, header_value_data, header)
    return at


# -- many batches of bare payloads -------------------------------------------------------------------------------------


@inlined
def _put_number(output: Bytes, at: int, value: int, size: int) -> int:
    """Big-endian."""
    for place in range(size):
        output[at + place] = np.uint8((value >> (8 * (size - 1 - place))) & 0xFF)
    return at + size


@inlined
def _body_size(size: int, delta: int) -> int:
    return _PLAIN_FIXED_BYTES + _varint_size(delta) + _varint_size(size) + size


@kernel
def measure_plain(
    data: Bytes, starts: Longs, sizes: Longs, rows: Longs, byte_lengths: Longs, payload_bytes: Longs
) -> int:
    """Fill in the length of each batch and, in two rows of `payload_bytes`, of its longest payload and of all of them.
    Returns the sum of lengths; -1: invalid positions."""
    if starts.size != sizes.size or rows.size != byte_lengths.size or rows.size != payload_bytes.shape[1]:
        return -1
    row = 0
    total = 0
    for batch in range(rows.size):
        if rows[batch] < 0 or rows[batch] > sizes.size - row:
            return -1
        length = _HEADER_BYTES
        longest = 0
        together = 0
        for delta in range(rows[batch]):
            size = sizes[row]
            if size < 0 or starts[row] < 0 or size > data.size - starts[row]:
                return -1
            row += 1
            body = _body_size(size, delta)
            length += _varint_size(body) + body
            longest = max(longest, size)
            together += size
        byte_lengths[batch] = length
        payload_bytes[0, batch] = longest
        payload_bytes[1, batch] = together
        total += length
    return total if row == sizes.size else -1


@kernel
def write_plain(
    output: Bytes,
    data: Bytes,
    starts: Longs,
    sizes: Longs,
    rows: Longs,
    byte_lengths: Longs,
    producers: Longs,
    timestamp_ms: int,
    attributes: int,
) -> int:
    """Write all batches, base offset 0, without checksums; `producers` has id, epoch and first sequence of each."""
    at = 0
    row = 0
    for batch in range(rows.size):
        count = rows[batch]
        at = _put_number(output, at, 0, 8)
        at = _put_number(output, at, byte_lengths[batch] - _PREFIX_BYTES, 4)
        at = _put_number(output, at, -1, 4)
        at = _put_number(output, at, _MAGIC, 1)
        at = _put_number(output, at, 0, 4)
        at = _put_number(output, at, attributes, 2)
        at = _put_number(output, at, count - 1, 4)
        at = _put_number(output, at, timestamp_ms, 8)
        at = _put_number(output, at, timestamp_ms, 8)
        at = _put_number(output, at, producers[batch, 0], 8)
        at = _put_number(output, at, producers[batch, 1], 2)
        at = _put_number(output, at, producers[batch, 2], 4)
        at = _put_number(output, at, count, 4)
        for delta in range(count):
            size = sizes[row]
            at = _put_varint(output, at, _body_size(size, delta))
            output[at] = 0
            output[at + 1] = 0
            at = _put_varint(output, at + 2, delta)
            output[at] = 1
            at = _put_varint(output, at + 1, size)
            copy_bytes(output, at, data, starts[row], size)
            at += size
            row += 1
            output[at] = 0
            at += 1
    return at
