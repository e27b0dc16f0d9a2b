"""The kernel that continues a CRC-32C over a RecordBatch without reading its records. Call it through `body_checksum`.

A batch has the CRC-32C of all its bytes from the attributes on. The checksum of bytes A and B together is the checksum
of A, moved behind as many zero bytes as B has, xor the checksum of B. What 2^k zero bytes do to a register is a table
(`ZEROS[k]`), so a length takes one step for each of its bits that is set. The kernel compares every position with the
end of the buffer before it reads there.
"""

# The type of an int inside a kernel is the one that numba infers.
# mypy: disable-error-code="return-value, arg-type, assignment, call-arg"

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from llog.formats.records.kernel import inlined, kernel

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

NO_BATCH: Final = -1

_PREFIX = 12  # base offset and batch length, which the batch length does not count
_HEADER = 61
_MAGIC_AT = 16
_CRC_AT = 17
_CRC_START = 21
_LENGTH_BITS = 31


def _zeros_tables() -> Words:
    """[k, n, b]: the register that began as b << 8n, after 2^k zero bytes."""
    ones = 0xFFFFFFFF
    tables = np.empty((_LENGTH_BITS, 4, 256), np.uint32)
    for n in range(4):
        for b in range(256):
            tables[0, n, b] = crc32c(b"\0", (b << 8 * n) ^ ones) ^ ones
    for k in range(1, _LENGTH_BITS):
        half, once = tables[k - 1], tables[k - 1]
        tables[k] = half[0, once & 0xFF] ^ half[1, once >> 8 & 0xFF] ^ half[2, once >> 16 & 0xFF] ^ half[3, once >> 24]
    return tables


ZEROS: Final[Words] = _zeros_tables()


@inlined
def _int32(data: Bytes, at: int) -> int:
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@kernel
def behind_batch(data: Bytes, checksum: int, zeros: Words) -> int:
    """The checksum of bytes with this checksum and the batch together; NO_BATCH if `data` is not exactly one batch."""
    if data.size < _HEADER or data[_MAGIC_AT] != 2 or _PREFIX + _int32(data, 8) != data.size:
        return NO_BATCH
    register = np.int64(checksum) ^ 0xFFFFFFFF
    for at in range(_CRC_START):
        register = np.int64(zeros[0, 0, (register ^ data[at]) & 0xFF]) ^ (register >> 8)
    moved = register ^ 0xFFFFFFFF
    left = data.size - _CRC_START
    level = 0
    while left != 0:
        if left & 1:
            moved = np.int64(
                zeros[level, 0, moved & 0xFF]
                ^ zeros[level, 1, (moved >> 8) & 0xFF]
                ^ zeros[level, 2, (moved >> 16) & 0xFF]
                ^ zeros[level, 3, (moved >> 24) & 0xFF]
            )
        left >>= 1
        level += 1
    return moved ^ _int32(data, _CRC_AT)
