"""One request and its answer on a connection, with fewer copies and fewer steps than uvicorn's own.

uvicorn joins the pieces of a body as they come, copies the whole for whoever asks, and wakes him for every piece; and
it looks at an answer's headers one by one, and writes head and body separately. Here pieces are handed over as they
came, whoever wants all of them is woken once, and a small answer is one write.

What must stay true: what waits here is bounded by uvicorn's mark, or by the body's size if its reader has room for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

EXCHANGE: Final = "llog.exchange"
"""In a request's scope: its exchange. Absent where another server runs the application."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange(RequestResponseCycle):
    _pieces: deque[bytes]
    _waiting_bytes: int
    _wanted_bytes: int
    _end_told: bool
    received_bytes: int
    """So far, whether or not anybody has asked for them."""

    @classmethod
    def adopt(cls, cycle: RequestResponseCycle) -> Exchange:
        """uvicorn makes them by its own name for the class, so one becomes ours after it was made and before it is
        run."""
        cycle.__class__ = cls
        exchange = cast(Exchange, cycle)
        exchange._pieces, exchange._waiting_bytes, exchange._wanted_bytes = deque(), 0, 0
        exchange.received_bytes, exchange._end_told = 0, False
        cast(dict[str, Any], exchange.scope)[EXCHANGE] = exchange
        return exchange

    # -- the request --------------------------------------------------------------------------------------------------
    async def whole(self, size: int, deadline: Callable[[int], float]) -> list[bytes]:
        """The pieces of a body of so many bytes, for which the reader has room; all of them, unless the client went
        away. `TimeoutError` when the clock has passed the `deadline` for what has come so far."""
        loop = asyncio.get_running_loop()
        self._wanted_bytes = size
        self._continue()
        while self.more_body and not self.disconnected and not self.response_complete:
            look_at = deadline(self.received_bytes)
            if loop.time() >= look_at:
                raise TimeoutError
            self.flow.resume_reading()
            self.message_event.clear()
            look = loop.call_at(look_at, self.message_event.set)
            try:
                await self.message_event.wait()
            finally:
                look.cancel()
        pieces, self._waiting_bytes, self._end_told = list(self._pieces), 0, True
        self._pieces.clear()
        return pieces

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._waiting_bytes += len(piece)
        self.received_bytes += len(piece)
        if self._waiting_bytes > max(HIGH_WATER_LIMIT, self._wanted_bytes):
            self.flow.pause_reading()
        if self.received_bytes >= self._wanted_bytes:
            self.message_event.set()

    async def receive(self) -> Any:
        self._continue()
        while not self.disconnected and not self.response_complete:
            if self._pieces:
                piece = self._pieces.popleft()
                self._waiting_bytes -= len(piece)
                return self._message(piece)
            if not self.more_body and not self._end_told:
                return self._message(b"")
            self.flow.resume_reading()
            self.message_event.clear()
            await self.message_event.wait()
        return {"type": "http.disconnect"}

    def _continue(self) -> None:
        """For a client that wants to be asked for its body."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(_CONTINUE)
            self.waiting_for_100_continue = False

    def _message(self, piece: bytes) -> dict[str, object]:
        self._end_told = not self._pieces and not self.more_body
        return {"type": "http.request", "body": piece, "more_body": not self._end_told}

    def let_go(self) -> None:
        """Of what nobody asked for, and of the scope, which names us: a circle would keep both until it is swept up."""
        self._pieces.clear()
        self._waiting_bytes = 0
        cast(dict[str, Any], self.scope).pop(EXCHANGE, None)

    # -- the answer ---------------------------------------------------------------------------------------------------
    async def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """The whole of it, in one write. `headers` are lines, each with its end, and tell the body's length."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        assert not self.response_started, "a second answer"
        others = b"".join([b"%b: %b\r\n" % header for header in self.default_headers])
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        self.transport.write(b"".join([STATUS_LINE[status], others, headers, closing, b"\r\n", body]))
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue, self.chunked_encoding, self.expected_content_length = False, False, 0
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
