"""Kernels over the headers of concatenated RecordBatches: find them, read their headers, patch their offsets.

`record_batch` is the way in and says what is wrong where a kernel only says where; its `parse_header` keeps the same
rules in Python, and a property test holds the two together. What must stay true: no byte is read at a position that
was not compared with the end of the buffer first.
"""

# Inside a kernel an int is whatever numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llog.formats.records.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_PREFIX = 12  # base offset and batch length, which the batch length does not count
_HEADER = 61
_RECORD_MIN = 7
_OFFSET_MAX = 2**63 - 1

# The rows of a matrix of header fields, one column per batch.
POSITION = 0
LENGTH = 1
BASE_OFFSET = 2
LEADER_EPOCH = 3
CRC = 4
ATTRIBUTES = 5
LAST_OFFSET_DELTA = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
BASE_SEQUENCE = 11
RECORD_COUNT = 12


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
def read_headers(data: Bytes, fields: Longs) -> None:
    """Fill `fields`, a column per batch, for as many batches as `count_batches` found sound."""
    at = 0
    for i in range(fields.shape[1]):
        length = _PREFIX + _int32(data, at + 8)
        fields[POSITION, i] = at
        fields[LENGTH, i] = length
        fields[BASE_OFFSET, i] = _int64(data, at)
        fields[LEADER_EPOCH, i] = _int32(data, at + 12)
        fields[CRC, i] = _int32(data, at + 17) & 0xFFFFFFFF
        fields[ATTRIBUTES, i] = _int16(data, at + 21)
        fields[LAST_OFFSET_DELTA, i] = _int32(data, at + 23)
        fields[BASE_TIMESTAMP, i] = _int64(data, at + 27)
        fields[MAX_TIMESTAMP, i] = _int64(data, at + 35)
        fields[PRODUCER_ID, i] = _int64(data, at + 43)
        fields[PRODUCER_EPOCH, i] = _int16(data, at + 51)
        fields[BASE_SEQUENCE, i] = _int32(data, at + 53)
        fields[RECORD_COUNT, i] = _int32(data, at + 57)
        at += length


@kernel
def patch(data: Bytes, fields: Longs, start_offset: int, leader_epoch: int) -> None:
    """Write consecutive base offsets and the leader epoch into the batches and into their fields."""
    offset = start_offset
    for i in range(fields.shape[1]):
        at = fields[POSITION, i]
        for j in range(8):
            data[at + j] = np.uint8((offset >> (56 - 8 * j)) & 0xFF)
        for j in range(4):
            data[at + 12 + j] = np.uint8((leader_epoch >> (24 - 8 * j)) & 0xFF)
        fields[BASE_OFFSET, i] = offset
        fields[LEADER_EPOCH, i] = leader_epoch
        offset += fields[LAST_OFFSET_DELTA, i] + 1
