"""Kernels that write many RecordBatches of bare payloads at once.

The payloads of all batches lie somewhere in `data`: `starts` and `sizes` say where each begins and how long it is, and
`rows` how many of them each batch takes. `measure_plain` checks them and finds how long each batch gets, `write_plain`
fills a buffer of exactly the sum, all but the checksums (`crc_kernel.fill_checksums`), and trusts what was checked.
`plain_batch` is the way in.
"""

# Inside a kernel an int is whatever numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import copy_bytes, inlined, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_HEADER_BYTES = 61
_PREFIX_BYTES = 12
_MAGIC = 2
# A record but for its payload and its two numbers: attributes, timestamp delta, key length (null), number of headers.
_FIXED_BYTES = 4


@inlined
def _varint_size(value: int) -> int:
    """Of a number from 0 on, as the zigzag varint that records hold."""
    size = 1
    raw = value << 1
    while raw > 0x7F:
        size += 1
        raw >>= 7
    return size


@inlined
def _put_varint(output: Bytes, at: int, value: int) -> int:
    raw = value << 1
    while raw > 0x7F:
        output[at] = np.uint8(raw & 0x7F | 0x80)
        at += 1
        raw >>= 7
    output[at] = np.uint8(raw)
    return at + 1


@inlined
def _put_number(output: Bytes, at: int, value: int, size: int) -> int:
    """Most significant byte first."""
    for place in range(size):
        output[at + place] = np.uint8((value >> (8 * (size - 1 - place))) & 0xFF)
    return at + size


@inlined
def _body_size(size: int, delta: int) -> int:
    return _FIXED_BYTES + _varint_size(delta) + _varint_size(size) + size


@kernel
def measure_plain(data: Bytes, starts: Longs, sizes: Longs, rows: Longs, byte_lengths: Longs, largest: Longs) -> int:
    """Fill in how long each batch gets, and its longest payload: the sum of the lengths, -1 for unsound positions."""
    if starts.size != sizes.size or rows.size != byte_lengths.size or rows.size != largest.size:
        return -1
    row = 0
    total = 0
    for batch in range(rows.size):
        if rows[batch] < 0 or rows[batch] > sizes.size - row:
            return -1
        length = _HEADER_BYTES
        longest = 0
        for delta in range(rows[batch]):
            size = sizes[row]
            if size < 0 or starts[row] < 0 or size > data.size - starts[row]:
                return -1
            row += 1
            body = _body_size(size, delta)
            length += _varint_size(body) + body
            longest = max(longest, size)
        byte_lengths[batch] = length
        largest[batch] = longest
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
    """All batches, base offset 0 and without checksums; `producers` has id, epoch and first sequence of each."""
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
