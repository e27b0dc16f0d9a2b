"""CRC-32C (Castagnoli), the checksum of RecordBatches and of our own formats.

Hardware instructions where the processor has them. Any contiguous buffer is read in place: slice a memoryview, not
the bytes.
"""

from __future__ import annotations

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """The checksum of `buffer`, continued from `value` (the checksum of the bytes before it)."""
    return int(_crc32c(buffer, value))
