"""Answers on their way to one client, in order, in pieces that the transport can take.

An answer is handed to the transport piece by piece, each when it accepts more: TLS copies what it is given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from llog.kafka.codec import Buffer
from llog.limits import KIB, MIB

SEND_PIECE_BYTES: Final = 4 * MIB
SEND_TLS_PIECE_BYTES: Final = 256 * KIB


class AnswerQueue:
    __slots__ = ("_buffers", "_piece_bytes", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        is_tls = transport.get_extra_info("ssl_object") is not None
        self._piece_bytes = SEND_TLS_PIECE_BYTES if is_tls else SEND_PIECE_BYTES
        self._buffers: deque[Buffer] = deque()

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def add(self, buffers: list[Buffer], byte_length: int) -> None:
        """Write an answer now if it is one piece, or leave it to `write_piece`."""
        if not self._buffers and byte_length <= self._piece_bytes:
            self._transport.writelines(buffers)
        else:
            self._buffers.extend(buffers)

    def write_piece(self) -> None:
        piece: list[Buffer] = []
        room = self._piece_bytes
        while self._buffers and room:
            view = memoryview(self._buffers.popleft()).cast("B")
            if len(view) > room:
                self._buffers.appendleft(view[room:])
                view = view[:room]
            piece.append(view)
            room -= len(view)
        self._transport.writelines(piece)

    def clear(self) -> None:
        self._buffers.clear()
