"""One connection of a client to a broker: requests out, answers in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from llog.errors import LlogError, LoadTestError
from llog.loadtest.client.wire import Outcome, Request, Wire

CONNECT_TIMEOUT_S: Final = 5.0
ASK_TIMEOUT_S: Final = 15.0
"""Of requests that are not part of the load."""
ANSWER_BYTES_MAX: Final = 64 << 20

OnAnswer = Callable[["Connection", Request, Outcome], None]
OnLost = Callable[["Connection", list[Request], str], None]


class Connection(asyncio.Protocol):
    """`on_lost` gets the requests without an answer, oldest first, once."""

    def __init__(self, wire: Wire, broker: int, on_answer: OnAnswer, on_lost: OnLost) -> None:
        self.broker = broker
        self.unanswered: deque[Request] = deque()
        self._wire = wire
        self._on_answer, self._on_lost = on_answer, on_lost
        self._asked: asyncio.Future[bytes] | None = None
        self._data = bytearray()
        self._span: tuple[int, int] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, wire: Wire, host: str, port: int, broker: int, on_answer: OnAnswer, on_lost: OnLost
    ) -> Connection:
        """Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(lambda: cls(wire, broker, on_answer, on_lost), host, port)
        return connection

    def send(self, request: Request) -> None:
        assert self._transport is not None
        self.unanswered.append(request)
        self._transport.write(request.data)

    async def ask(self, request: bytes) -> bytes:
        """While no request of the load is unanswered. Raises OSError or TimeoutError."""
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await self._asked
        finally:
            self._asked = None

    def fail(self, reason: str) -> None:
        """Close it, and hand its requests back."""
        if self._transport is None:
            return
        self._transport.abort()
        self._transport = None
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(ConnectionError(reason))
        requests = list(self.unanswered)
        self.unanswered.clear()
        self._on_lost(self, requests, reason)

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(f"connection lost: {error}" if error else "connection lost")

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            while self._transport is not None and self._take_answer():
                pass
        except LlogError as error:
            self.fail(str(error))

    def _take_answer(self) -> bool:
        if self._span is None:
            self._span = self._wire.measure(self._data)
            if self._span is None:
                return False
        begin, end = self._span
        if end > ANSWER_BYTES_MAX:
            raise LoadTestError(f"an answer of {end} bytes")
        if len(self._data) < end:
            return False
        if self._asked is not None:
            if not self._asked.done():
                self._asked.set_result(bytes(self._data[begin:end]))
            request, outcome = None, None
        elif self.unanswered:
            request, outcome = self.unanswered.popleft(), self._wire.outcome(self._data, begin, end)
        else:
            raise LoadTestError("an answer without a request")
        del self._data[:end]
        self._span = None
        if request is not None and outcome is not None:
            self._on_answer(self, request, outcome)
        return True
