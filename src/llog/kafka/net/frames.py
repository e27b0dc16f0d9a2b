"""The frames of one connection: a size of 4 bytes, then as many bytes.

The socket is read into one scratch buffer that all connections of a listener share, because a read and the handling of
what was read happen in one turn of the loop. A frame that lies there completely is copied out once. Any other frame gets
a buffer of its own, into which the kernel writes the rest: a large frame is hardly copied at all. Either way a frame's
memory belongs to it alone, so views of its records stay valid as long as they exist, and may be written to.

Before memory is set aside for a frame, the caller admits its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from llog.errors import InvalidField
from llog.limits import KIB, MIB

FRAME_BYTES_MAX: Final = 100 * MIB
"""Kafka's default, `socket.request.max.bytes`."""
SCRATCH_BYTES: Final = 64 * KIB
LARGE_START_BYTES: Final = 4 * KIB
"""Read at first behind a large frame: the next one is likely large too, and should not arrive in the scratch buffer."""

_SIZE: Final = struct.Struct(">i")
Frame = bytearray | memoryview


def scratch_buffer() -> memoryview:
    return memoryview(bytearray(SCRATCH_BYTES))


class FrameReader:
    """`buffer` → the socket's bytes → `received`, then `next` until it returns None, then `keep`."""

    __slots__ = ("_admit", "_at", "_filled", "_large", "_limit_bytes", "_own", "_rest", "_scratch")

    def __init__(self, scratch: memoryview, admit: Callable[[int], bool], limit_bytes: int = FRAME_BYTES_MAX) -> None:
        """`admit(size)` is called once before a frame gets memory, and again whenever `next` is called after it
        returned False. It is not called for frames beyond the limit, which raise."""
        self._scratch, self._admit, self._limit_bytes = scratch, admit, limit_bytes
        self._rest: bytes | memoryview = b""
        """Bytes that were read and not cut into frames, from `_at` on."""
        self._at = 0
        self._own: memoryview | None = None
        """The frame that is arriving."""
        self._filled = 0
        self._large = False

    @property
    def missing_bytes(self) -> int:
        """Of the frame that is arriving; 0 if none is."""
        return 0 if self._own is None else len(self._own) - self._filled

    @property
    def kept_bytes(self) -> int:
        """Bytes that were read and wait to be cut into frames."""
        return len(self._rest) - self._at

    def buffer(self) -> memoryview:
        """Where the socket's next bytes go."""
        if self._own is not None and self._filled < len(self._own):
            return self._own[self._filled :]
        return self._scratch[:LARGE_START_BYTES] if self._large else self._scratch

    def received(self, byte_length: int) -> None:
        if self._own is not None and self._filled < len(self._own):
            self._filled += byte_length
        elif self.kept_bytes:
            self._rest, self._at = bytes(self._rest[self._at :]) + self._scratch[:byte_length], 0
        else:
            self._rest, self._at = self._scratch[:byte_length], 0

    def next(self) -> Frame | None:
        """The next frame; None: it has not arrived, or was not admitted. `InvalidField` for a size that no frame has."""
        if self._own is not None:
            if self._filled < len(self._own):
                return None
            own, self._own, self._large = self._own, None, len(self._own) > SCRATCH_BYTES
            return own
        rest, at = self._rest, self._at
        left = len(rest) - at - _SIZE.size
        if left < 0:
            return None
        [size] = _SIZE.unpack_from(rest, at)
        if not 0 < size <= self._limit_bytes:
            raise InvalidField("frame", f"its size is {size}, not 1 to {self._limit_bytes} bytes")
        if not self._admit(size):
            return None
        begin = at + _SIZE.size
        if size <= left:
            self._at = begin + size
            self._large = False
            return bytearray(rest[begin : begin + size])
        own = memoryview(np.empty(size, np.uint8))  # a bytearray would be filled with zeros first
        own[:left] = rest[begin:]
        self._own, self._filled, self._rest, self._at = own, left, b"", 0
        return None

    def keep(self) -> None:
        """Copy what is left of the scratch buffer; before another connection reads into it."""
        if isinstance(self._rest, memoryview):
            self._rest, self._at = bytes(self._rest[self._at :]), 0
