"""CRC-32C of many batches in one call: the processor's own instruction, inside a kernel.

Called once per batch from Python, the library in `crc` spends a third of its time on being called, and holds the
interpreter lock while it does. Here one call checks all batches of a buffer without the lock. Only on x86-64 with
SSE 4.2 (`AVAILABLE`); elsewhere the library does it.

The instruction takes 8 bytes and answers three cycles later, but can start every cycle: so three lanes of a block run
at once. A lane's checksum is then moved behind the next lane by a table that says what a lane of zeros does to each
byte of a register; the tables come from the library itself. Long lanes first, shorter ones for what is left.
"""

# Inside a kernel an int is whatever numba infers.
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

AVAILABLE: Final[bool] = platform.machine() in ("x86_64", "AMD64") and bool(_library.hardware_based)

LANES: Final = (2688, 640, 192, 64)
"""Lane lengths in bytes, whole cache lines each."""
_WORD = 8
_LINE = 64
_LINE_WORDS = _LINE // _WORD
_CRC_START = 21
_POSITION = 0
_LENGTH = 1
_CRC = 4


def _zeros_table(lane: int) -> list[list[int]]:
    """Row k, entry b: the register that began as b << 8k, after a lane of zeros."""
    zeros, ones = bytes(lane), 0xFFFFFFFF
    return [[_library.crc32c(zeros, (b << 8 * k) ^ ones) ^ ones for b in range(256)] for k in range(4)]


ZEROS: Final[Words] = np.array([_zeros_table(lane) for lane in LANES], np.uint32)


@intrinsic
def _crc_word(_context: Any, register: Any, data: Any, at: Any) -> Any:
    """The register after the 8 bytes at position `at` of `data`, wherever that is aligned."""

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
    """Start to load the cache line at position `at`, which may lie behind the end: a hint that cannot fail."""

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
    for level in range(len(LANES)):
        lane = LANES[level]
        while end - at >= 3 * lane:
            second = np.uint64(0)
            third = np.uint64(0)
            for _ in range(lane // _LINE):
                # Lanes that jump are not what the processor expects: tell it what the next block will read.
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
    """(batch, computed checksum) of the first batch that its checksum does not fit, or (-1, 0)."""
    for batch in range(fields.shape[1]):
        at = fields[_POSITION, batch]
        computed = _checksum(data, at + _CRC_START, at + fields[_LENGTH, batch], zeros)
        if computed != fields[_CRC, batch]:
            return batch, computed
    return -1, 0


@kernel
def fill_checksums(data: Bytes, byte_lengths: Longs, zeros: Words) -> int:
    """Write the checksum of each batch into it; the batches lie one behind the other. Where the last one ends."""
    at = 0
    for batch in range(byte_lengths.size):
        end = at + byte_lengths[batch]
        checksum = _checksum(data, at + _CRC_START, end, zeros)
        for place in range(4):
            data[at + _CRC_START - 4 + place] = np.uint8((checksum >> (8 * (3 - place))) & 0xFF)
        at = end
    return at
