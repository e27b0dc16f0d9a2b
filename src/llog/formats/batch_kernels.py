"""Kernels over the headers of concatenated RecordBatches: find them, copy their headers out, patch their offsets.

`record_batch` is the way in and says what is wrong where a kernel only says where; its `parse_header` keeps the same
rules in Python, and a property test holds the two together. What must stay true: no byte is read at a position that
was not compared with the end of the buffer first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_PREFIX = 12  # base offset and batch length, which the batch length does not count
_HEADER = 61
_RECORD_MIN = 7
_OFFSET_MAX = 2**63 - 1


@inlined
def _int16(data: Bytes, at: int) -> int:
    value = (np.int64(data[at]) << 8) | np.int64(data[at + 1])
    return (value ^ 0x8000) - 0x8000


@inlined
def _int32(data: Bytes, at: int) -> int:
    value = (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )
    return (value ^ 0x80000000) - 0x80000000


@inlined
def _int64(data: Bytes, at: int) -> int:
    return (_int32(data, at) << 32) | (_int32(data, at + 4) & 0xFFFFFFFF)


@inlined
def _span(data: Bytes, at: int, end: int, dense: bool, bytes_max: int, decoded_bytes_max: int) -> int:
    """The length of the batch at `at`, or -1 when it breaks a rule."""
    if end - at < _HEADER:
        return -1
    length = _PREFIX + _int32(data, at + 8)
    if length < _HEADER or length > bytes_max or length > end - at:
        return -1
    if data[at + 16] != 2:
        return -1
    codec = _int16(data, at + 21) & 7
    if codec > 4:
        return -1
    count = _int32(data, at + 57)
    if count < 0 or count * _RECORD_MIN > (length - _HEADER if codec == 0 else decoded_bytes_max):
        return -1
    last_delta = _int32(data, at + 23)
    if dense:
        if count == 0 or last_delta != count - 1:
            return -1
    else:
        base = _int64(data, at)
        if last_delta < 0 or last_delta < count - 1 or base < 0 or base > _OFFSET_MAX - 1 - last_delta:
            return -1
    return length


@kernel
def count_batches(data: Bytes, dense: bool, bytes_max: int, decoded_bytes_max: int) -> tuple[int, int]:
    """(how many sound batches stand in a row, where the first unsound one begins or -1)."""
    at = 0
    end = data.size
    count = 0
    while at < end:
        length = _span(data, at, end, dense, bytes_max, decoded_bytes_max)
        if length < 0:
            return count, at
        at += length
        count += 1
    return count, -1


@kernel
def copy_headers(data: Bytes, positions: Longs, headers: Bytes) -> None:
    """Fill `positions` and the rows of `headers` for as many batches as `count_batches` found sound."""
    at = 0
    for i in range(positions.size):
        positions[i] = at
        for j in range(_HEADER):
            headers[i * _HEADER + j] = data[at + j]
        at += _PREFIX + _int32(data, at + 8)


@kernel
def patch(data: Bytes, positions: Longs, headers: Bytes, start_offset: int, leader_epoch: int) -> None:
    """Write consecutive base offsets and the leader epoch into the batches and into their copied headers."""
    offset = start_offset
    for i in range(positions.size):
        at = positions[i]
        row = i * _HEADER
        for j in range(8):
            byte = np.uint8((offset >> (56 - 8 * j)) & 0xFF)
            data[at + j] = byte
            headers[row + j] = byte
        for j in range(4):
            byte = np.uint8((leader_epoch >> (24 - 8 * j)) & 0xFF)
            data[at + 12 + j] = byte
            headers[row + 12 + j] = byte
        offset += _int32(headers, row + 23) + 1
