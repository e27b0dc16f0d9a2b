"""The frames of one connection: a size of 4 bytes, then as many bytes.

The socket is read into a scratch buffer that all connections of a listener share, because a read and the handling of
what was read happen in one turn of the loop. A frame that lies there completely is copied out once. Any other frame
gets a buffer of its own, into which the kernel writes the rest: a large frame is hardly copied at all. Either way a
frame's memory belongs to it alone, so views of its records stay valid as long as they exist, and may be written to.

Before memory is set aside for a frame or more of it is read, the caller admits it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from llog.errors import InvalidField
from llog.limits import KIB

SCRATCH_BYTES: Final = 64 * KIB
LITTLE_BYTES: Final = 4 * KIB
"""Read at first behind a large frame: the next one is likely large too, and should not arrive in the scratch buffer."""
FRAME_BYTES_MIN: Final = 8
"""API key, version and correlation id."""

_SIZE: Final = struct.Struct(">i")
_START: Final = struct.Struct(">ih")
"""Size and API key."""
Frame = bytearray | memoryview
Admit = Callable[[int, int, int], int]


def scratch_buffer() -> memoryview:
    return memoryview(bytearray(SCRATCH_BYTES))


class FrameReader:
    """`buffer` → the socket's bytes → `received`, then `next` until it returns None, then `keep`."""

    __slots__ = ("_admit", "_admitted_bytes", "_at", "_filled", "_large", "_own", "_rest", "_scratch", "is_hungry")

    def __init__(self, scratch: memoryview, admit: Admit) -> None:
        """`admit(size, API key, bytes that have arrived)` returns how many bytes of the frame there is room for: all
        of them if all have arrived; 0: none now, so that `next` asks again when it is called again."""
        self._scratch, self._admit = scratch, admit
        self._rest: bytes | memoryview = b""
        """Bytes that were read and not cut into frames, from `_at` on."""
        self._at = 0
        self._own: memoryview | None = None
        """The frame that is arriving."""
        self._filled = self._admitted_bytes = 0
        self._large = False
        self.is_hungry = True
        """`next` returned None because bytes are missing, not because they were not admitted."""

    @property
    def missing_bytes(self) -> int:
        """Of the frame that is arriving; 0 if none is."""
        return 0 if self._own is None else len(self._own) - self._filled

    def buffer(self, *, little: bool = False) -> memoryview:
        """Where the socket's next bytes go. `little`: no more than a little beyond the frame that is arriving."""
        if self._own is not None:
            return self._own[self._filled : self._admitted_bytes]
        return self._scratch[:LITTLE_BYTES] if little or self._large else self._scratch

    def received(self, byte_length: int) -> None:
        if self._own is not None:
            self._filled += byte_length
        elif self._at < len(self._rest):
            self._rest, self._at = bytes(self._rest[self._at :]) + self._scratch[:byte_length], 0
        else:
            self._rest, self._at = self._scratch[:byte_length], 0

    def next(self) -> Frame | None:
        """The next frame; None: it has not arrived, or was not admitted. `InvalidField` for a size that no request
        has."""
        self.is_hungry = True
        if self._own is not None:
            return self._next_own(self._own)
        rest, at = self._rest, self._at
        left = len(rest) - at - _SIZE.size
        if left < 2:
            return None
        size, key = _START.unpack_from(rest, at)
        if size < FRAME_BYTES_MIN:
            raise InvalidField("frame", f"its size is {size}, less than {FRAME_BYTES_MIN} bytes")
        admitted_bytes = self._admit(size, key, min(left, size))
        if not admitted_bytes:
            self.is_hungry = False
            return None
        begin = at + _SIZE.size
        if size <= left:
            self._at, self._large = begin + size, False
            return bytearray(rest[begin : self._at])
        own = np.empty(size, np.uint8).data  # a bytearray would be filled with zeros first
        own[:left] = rest[begin:]
        self._own, self._filled, self._admitted_bytes = own, left, admitted_bytes
        self._rest, self._at = b"", 0
        return None

    def _next_own(self, own: memoryview) -> Frame | None:
        size = len(own)
        if self._filled == size:
            self._own, self._large = None, size > SCRATCH_BYTES
            return own
        if self._filled == self._admitted_bytes:
            [key] = struct.unpack_from(">h", own)
            self._admitted_bytes = self._admit(size, key, self._filled) or self._filled
            self.is_hungry = self._filled < self._admitted_bytes
        return None

    def keep(self) -> None:
        """Copy what is left of the scratch buffer, before another connection reads into it."""
        if isinstance(self._rest, memoryview):
            self._rest, self._at = bytes(self._rest[self._at :]), 0
