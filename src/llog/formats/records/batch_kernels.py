"""Kernels over concatenated RecordBatches: find them, read their headers, patch their offsets, check their checksums.

Call them through `record_batch`. A kernel only returns where a batch is wrong; `record_batch.parse_header` applies the
same rules in Python and says what is wrong, and a property test compares the two. A kernel compares every position with
the end of the buffer before it reads there.

Checksums use the CRC-32C instruction of x86-64 with SSE 4.2 (`CRC_AVAILABLE`); on other processors `record_batch` calls
the crc32c library, which needs a call per batch and holds the interpreter lock. The instruction takes 8 bytes and has a
latency of three cycles, but can start every cycle, so three lanes of a block run at once. A table of what a lane of
zeros does to each byte of the register then moves a lane's checksum behind the next lane. Long lanes come first,
shorter ones take the rest.
"""

# The type of an int inside a kernel is the one that numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

import platform
from typing import Any, Final

import crc32c as _library
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from llog.formats.records.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
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

# Faults of a producer's batch, in the order in which they are looked for; `produced` has the meanings.
SOUND = 0
NO_BATCH = 1
BAD_MAGIC = 2
OLD_MAGIC = 3
BAD_LENGTH = 4
BATCH_INCOMPLETE = 5
MORE_BATCHES = 6
BATCH_TOO_LARGE = 7
BAD_CHECKSUM = 8
UNKNOWN_CODEC = 9
BASE_OFFSET_SET = 10
BAD_COUNT = 11
CONTROL_BATCH = 12
HORIZON_SET = 13


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
    """The length of the batch at `at`, or -1 if it breaks a rule."""
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
    """(number of valid batches from the start, position of the first invalid one or -1)."""
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
    """Fill `fields`, a column per batch, for the batches that `count_batches` found valid."""
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


# -- checksums ---------------------------------------------------------------------------------------------------------
CRC_AVAILABLE: Final[bool] = platform.machine() in ("x86_64", "AMD64") and bool(_library.hardware_based)

CRC_LANES: Final = (2688, 640, 192, 64)
"""Lane lengths in bytes, whole cache lines each."""
_WORD = 8
_LINE = 64
_LINE_WORDS = _LINE // _WORD
_CRC_START = 21


def _zeros_table(lane: int) -> list[list[int]]:
    """Row k, entry b: the register that began as b << 8k, after a lane of zeros."""
    zeros, ones = bytes(lane), 0xFFFFFFFF
    return [[_library.crc32c(zeros, (b << 8 * k) ^ ones) ^ ones for b in range(256)] for k in range(4)]


CRC_ZEROS: Final[Words] = np.array([_zeros_table(lane) for lane in CRC_LANES], np.uint32)


@intrinsic
def _crc_word(_context: Any, register: Any, data: Any, at: Any) -> Any:
    """The register after the 8 bytes at position `at` of `data`, which need not be aligned."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value, array, position = arguments
        pointer = builder.gep(context.make_array(data)(context, builder, array).data, [position])
        word = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64), ir.IntType(64)])
        instruction = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=kind)
        return builder.call(instruction, [value, word])

    return types.uint64(types.uint64, data, types.int64), emit


@intrinsic
def _prefetch(_context: Any, data: Any, at: Any) -> Any:
    """Start to load the cache line at position `at`, which may lie past the end: a hint cannot fail."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        array, position = arguments
        pointer = builder.gep(context.make_array(data)(context, builder, array).data, [position])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch.p0i8", fnty=kind)
        builder.call(hint, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), emit


@intrinsic
def _crc_byte(_context: Any, register: Any, byte: Any) -> Any:
    """The register after one byte."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value, last = arguments
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), ir.IntType(8)])
        instruction = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.32.8", fnty=kind)
        return builder.zext(builder.call(instruction, [builder.trunc(value, ir.IntType(32)), last]), ir.IntType(64))

    return types.uint64(types.uint64, types.uint8), emit


@inlined
def _behind_a_lane(register: int, zeros: Words, level: int) -> int:
    return np.uint64(
        zeros[level, 0, register & np.uint64(0xFF)]
        ^ zeros[level, 1, (register >> np.uint64(8)) & np.uint64(0xFF)]
        ^ zeros[level, 2, (register >> np.uint64(16)) & np.uint64(0xFF)]
        ^ zeros[level, 3, (register >> np.uint64(24)) & np.uint64(0xFF)]
    )


@inlined
def _checksum(data: Bytes, at: int, end: int, zeros: Words) -> int:
    register = np.uint64(0xFFFFFFFF)
    for level in range(len(CRC_LANES)):
        lane = CRC_LANES[level]
        while end - at >= 3 * lane:
            second = np.uint64(0)
            third = np.uint64(0)
            for _ in range(lane // _LINE):
                # The processor does not predict three lanes: name what the next block reads.
                _prefetch(data, at + 3 * lane)
                _prefetch(data, at + 4 * lane)
                _prefetch(data, at + 5 * lane)
                for _ in range(_LINE_WORDS):
                    register = _crc_word(register, data, at)
                    second = _crc_word(second, data, at + lane)
                    third = _crc_word(third, data, at + 2 * lane)
                    at += _WORD
            second ^= _behind_a_lane(register, zeros, level)
            register = third ^ _behind_a_lane(second, zeros, level)
            at += 2 * lane
    while end - at >= _WORD:
        register = _crc_word(register, data, at)
        at += _WORD
    while at < end:
        register = _crc_byte(register, data[at])
        at += 1
    return np.int64(register ^ np.uint64(0xFFFFFFFF))


@kernel
def first_mismatch(data: Bytes, fields: Longs, zeros: Words) -> tuple[int, int]:
    """(batch, computed checksum) of the first batch with a wrong checksum, or (-1, 0)."""
    for batch in range(fields.shape[1]):
        at = fields[POSITION, batch]
        computed = _checksum(data, at + _CRC_START, at + fields[LENGTH, batch], zeros)
        if computed != fields[CRC, batch]:
            return batch, computed
    return -1, 0


@kernel
def fill_checksums(data: Bytes, byte_lengths: Longs, zeros: Words) -> int:
    """Write the checksum into each of the adjacent batches; returns the end of the last."""
    at = 0
    for batch in range(byte_lengths.size):
        end = at + byte_lengths[batch]
        checksum = _checksum(data, at + _CRC_START, end, zeros)
        for place in range(4):
            data[at + _CRC_START - 4 + place] = np.uint8((checksum >> (8 * (3 - place))) & 0xFF)
        at = end
    return at


# -- batches of producers ----------------------------------------------------------------------------------------------
_MAGIC_AT = 16
_CODEC = 0x07
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


@inlined
def _outer_fault(data: Bytes, bytes_max: int) -> int:
    """What is wrong with the bytes as one batch, before its checksum is compared."""
    if data.size <= _MAGIC_AT:
        return NO_BATCH
    if data[_MAGIC_AT] < 2:
        return OLD_MAGIC
    if data[_MAGIC_AT] > 2:
        return BAD_MAGIC
    length = _PREFIX + _int32(data, 8)
    if length < _HEADER:
        return BAD_LENGTH
    if length > data.size:
        return BATCH_INCOMPLETE
    if length < data.size:
        return MORE_BATCHES
    return BATCH_TOO_LARGE if length > bytes_max else SOUND


@inlined
def _header_fault(data: Bytes, decoded_bytes_max: int) -> int:
    """What is wrong with the header of a batch that arrived as it was sent."""
    attributes = _int16(data, 21)
    if attributes & _CODEC > 4:
        return UNKNOWN_CODEC
    if _int64(data, 0) != 0:
        return BASE_OFFSET_SET
    count = _int32(data, 57)
    room = data.size - _HEADER if attributes & _CODEC == 0 else decoded_bytes_max
    if count < 1 or _int32(data, 23) != count - 1 or count * _RECORD_MIN > room:
        return BAD_COUNT
    if attributes & _CONTROL != 0:
        return CONTROL_BATCH
    return HORIZON_SET if attributes & _DELETE_HORIZON != 0 else SOUND


@inlined
def _read_produced(data: Bytes, fields: Longs, row: int) -> None:
    fields[row, POSITION] = 0
    fields[row, LENGTH] = data.size
    fields[row, BASE_OFFSET] = _int64(data, 0)
    fields[row, LEADER_EPOCH] = _int32(data, 12)
    fields[row, CRC] = _int32(data, 17) & 0xFFFFFFFF
    fields[row, ATTRIBUTES] = _int16(data, 21)
    fields[row, LAST_OFFSET_DELTA] = _int32(data, 23)
    fields[row, BASE_TIMESTAMP] = _int64(data, 27)
    fields[row, MAX_TIMESTAMP] = _int64(data, 35)
    fields[row, PRODUCER_ID] = _int64(data, 43)
    fields[row, PRODUCER_EPOCH] = _int16(data, 51)
    fields[row, BASE_SEQUENCE] = _int32(data, 53)
    fields[row, RECORD_COUNT] = _int32(data, 57)


@kernel
def check_produced(data: Bytes, bytes_max: int, decoded_bytes_max: int, fields: Longs, row: int, zeros: Words) -> int:
    """The first fault of the bytes of a producer, which must be one batch; its header goes to a row of `fields`."""
    fault = _outer_fault(data, bytes_max)
    if fault != SOUND:
        return fault
    _read_produced(data, fields, row)
    if _checksum(data, _CRC_START, data.size, zeros) != fields[row, CRC]:
        return BAD_CHECKSUM
    return _header_fault(data, decoded_bytes_max)


@kernel
def check_unsummed(data: Bytes, bytes_max: int, decoded_bytes_max: int, fields: Longs, row: int) -> int:
    """`check_produced` for processors without the instruction: the caller compares the checksum."""
    fault = _outer_fault(data, bytes_max)
    if fault != SOUND:
        return fault
    _read_produced(data, fields, row)
    return _header_fault(data, decoded_bytes_max)
