"""One connection, guarded against clients that are slow on purpose or by nature.

uvicorn's own connection waits for ever for the head of a request. Here a head must be complete in time and of bounded
size, and what is left of a body that was refused is read only for a while. (Bodies are `body`'s business, answers
`pace`'s.) What must stay true: a timer is armed while something is owed by the client, and never while we are the
ones who work.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llog.http.listener.exchange import Exchange
from llog.limits import KIB

# Request line and headers together.
HTTP_HEAD_BYTES_MAX: Final = 64 * KIB
# How long the rest of a body that was refused is read and thrown away, so that its sender gets to see the answer.
HTTP_DISCARD_MS_MAX: Final = 2_000


_HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class GuardedConnection(HttpToolsProtocol):
    head_timeout_ms: ClassVar[int] = 30_000

    _owed: asyncio.TimerHandle | None = None
    """Runs while the client owes us a head, or the rest of a body that we do not want."""
    _message_complete: bool = True
    _head_complete: bool = False
    _head_bytes: int = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(self.head_timeout_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._head_complete:
            if not self._message_complete and self._owed is None:
                self._expect(self.head_timeout_ms)  # most heads come whole, and need no timer
            self._head_bytes += len(data)
            if self._head_bytes > HTTP_HEAD_BYTES_MAX and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._message_complete = self._head_complete = False
        self._head_bytes = 0
        if self._owed is not None:
            self._expect(self.head_timeout_ms)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._expect(None)
        super().on_headers_complete()
        Exchange.adopt(self.cycle)

    def on_body(self, body: bytes) -> None:
        if not self.cycle.response_complete:
            cast(Exchange, self.cycle).add(body)

    def on_message_complete(self) -> None:
        self._message_complete = True
        self._expect(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._message_complete:
            self._expect(HTTP_DISCARD_MS_MAX)

    def _expect(self, timeout_ms: int | None) -> None:
        if self._owed is not None:
            self._owed.cancel()
        elif timeout_ms is None:
            return
        self._owed = None if timeout_ms is None else self.loop.call_later(timeout_ms / 1_000, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
