"""Standard input for an event loop: read by a thread, piece by piece, with an end that Ctrl-C can bring early.

Why a thread: a file is not something an event loop can wait for, and a terminal may say nothing for hours. It is a
daemon that reads the descriptor itself: Python's buffered reader has a lock, and would hold up the end of the process.
What must stay true: no more than CLI_INPUT_PIECES_MAX pieces wait; who reads slowly is waited for.
"""

from __future__ import annotations

import asyncio
import io
import os
import threading
from concurrent.futures import CancelledError
from typing import Any, BinaryIO, Final

from llog.limits import KIB

# `llog produce`: how much of its input is read at a time, how many pieces wait, and how long one line may be.
CLI_INPUT_PIECE_BYTES: Final = 256 * KIB
CLI_INPUT_PIECES_MAX: Final = 4


class Input:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue(CLI_INPUT_PIECES_MAX)
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._next: asyncio.Future[bytes | OSError] | None = None
        threading.Thread(target=self._read_all, name="llog-stdin", daemon=True).start()

    def stop(self) -> None:
        """As if the input ended here."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def piece(self, wait_s: float | None = None) -> bytes | None:
        """What comes next; empty at the end; None when nothing came in time."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._pieces.get())
        either: set[asyncio.Future[Any]] = {self._next, self._stopped}
        await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            return b""
        if not self._next.done():
            return None
        found, self._next = self._next.result(), None
        if isinstance(found, OSError):
            raise found
        return found

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    # -- in the thread -----------------------------------------------------------------------------------------------
    def _read_all(self) -> None:
        piece: bytes | OSError = b" "
        while isinstance(piece, bytes) and piece:
            try:
                piece = self._read()
            except OSError as error:
                piece = error
            except ValueError:  # the stream was closed: whoever read it has ended
                return
            handing = self._pieces.put(piece)
            try:
                asyncio.run_coroutine_threadsafe(handing, self._loop).result()
            except (RuntimeError, CancelledError):
                handing.close()  # nobody is there any more
                return

    def _read(self) -> bytes:
        try:
            descriptor = self._stream.fileno()
        except io.UnsupportedOperation:
            return self._stream.read(CLI_INPUT_PIECE_BYTES)
        return os.read(descriptor, CLI_INPUT_PIECE_BYTES)
