"""`bytes-batch-v1`: bare payloads of one log, the simplest encoding.

    "LLB1" · u32 record count · count × u32 cumulative end position · payloads · u32 CRC-32C of all before it

There is no key, header or timestamp. Positions count from the first payload byte and never decrease; the last one is
the length of all payloads. A reader finds record i without touching the others.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llog.errors import BadMagic, ChecksumMismatch, InvalidArgument, InvalidField, TruncatedInput, ValueTooLarge
from llog.formats.buffers import Buffer, crc32c, crc32c_of

ENCODING: Final = "bytes-batch-v1"
MAGIC: Final = b"LLB1"
_PREFIX: Final = struct.Struct(">4sI")
_CRC: Final = struct.Struct(">I")
_POSITION: Final = np.dtype(">u4")
BYTES_MIN: Final = _PREFIX.size + _CRC.size
_U32_MAX: Final = 0xFFFF_FFFF


class BytesBatch(NamedTuple):
    """A checked batch: views of positions and payloads in the input buffer."""

    ends: npt.NDArray[Any]
    payloads: memoryview

    def record_count(self) -> int:
        return len(self.ends)

    def payload(self, index: int) -> memoryview:
        """Record `index` without copying; raises IndexError outside 0 … record_count - 1."""
        if not 0 <= index < len(self.ends):
            raise IndexError(f"record {index} of a batch of {len(self.ends)}")
        start = int(self.ends[index - 1]) if index else 0
        return self.payloads[start : int(self.ends[index])]

    def to_list(self) -> list[bytes]:
        positions = [0, *self.ends.tolist()]
        data = self.payloads
        return [bytes(data[a:b]) for a, b in itertools.pairwise(positions)]


def encode_bytes_batch(payloads: Sequence[Buffer]) -> list[Buffer]:
    """The batch as buffers. Payloads are joined in one copy, because thousands of tiny buffers would cost more."""
    if not payloads:
        raise InvalidArgument("payloads", "a batch holds at least one record")
    body = b"".join(payloads)
    if len(body) > _U32_MAX:
        raise ValueTooLarge("payloads", len(body), _U32_MAX)
    lengths = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
    ends = np.cumsum(lengths)
    if int(ends[-1]) != len(body):
        raise InvalidArgument("payloads", "every payload must be a buffer of bytes")
    front = _PREFIX.pack(MAGIC, len(payloads)) + ends.astype(_POSITION).tobytes()
    return [front, body, _CRC.pack(crc32c_of((front, body)))]


def decode_bytes_batch(data: Buffer, source: str) -> BytesBatch:
    """Check magic, lengths, positions and checksum; nothing is copied."""
    view = memoryview(data).cast("B")
    if len(view) < BYTES_MIN:
        raise TruncatedInput(source, f"{len(view)} bytes are too few for a {ENCODING} batch")
    magic, count = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise BadMagic(source, f"begins with {magic!r}, a {ENCODING} batch begins with {MAGIC!r}")
    payloads_at = _PREFIX.size + _POSITION.itemsize * count
    payloads_end = len(view) - _CRC.size
    if payloads_at > payloads_end:
        raise TruncatedInput(
            source, f"{count} records need {payloads_at} bytes of positions, the batch has {payloads_end}"
        )
    [stored] = _CRC.unpack_from(view, payloads_end)
    computed = crc32c(view[:payloads_end])
    if stored != computed:
        raise ChecksumMismatch(source, f"{ENCODING} batch", stored, computed)
    ends = np.frombuffer(view, dtype=_POSITION, count=count, offset=_PREFIX.size)
    payloads = view[payloads_at:payloads_end]
    if (int(ends[-1]) if count else 0) != len(payloads):
        raise InvalidField(source, f"the last position is not the end of the payloads, {len(payloads)}")
    if count > 1 and bool(np.any(ends[1:] < ends[:-1])):
        raise InvalidField(source, "a position is lower than the one before it")
    return BytesBatch(ends, payloads)
