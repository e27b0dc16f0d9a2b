"""A connection that carries one request at a time: the answer is received into memory that the next one reuses.

An answer of many megabytes is read by the kernel straight to its place; a stream reader would copy it twice, which the
consumer would then measure.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

from llog.errors import InvalidField
from llog.formats.buffers import Buffer
from llog.limits import KIB, MIB

CONNECT_TIMEOUT_S: Final = 5.0
FIRST_BYTES: Final = 64 * KIB
ANSWER_BYTES_MAX: Final = 512 * MIB
HEAD_BYTES_MAX: Final = 16 * KIB
"""Of an HTTP answer."""

_SIZE: Final = struct.Struct(">i")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.IGNORECASE)

Measure = Callable[[memoryview], tuple[int, int] | None]
"""From the first bytes of an answer to where its body begins and where it ends; None: more bytes are needed."""


def measure_frame(data: memoryview) -> tuple[int, int] | None:
    """Kafka: the size, then as many bytes. The size must not be negative."""
    if len(data) < _SIZE.size:
        return None
    [size] = _SIZE.unpack_from(data)
    if size < 0:
        raise InvalidField("answer", f"a frame of {size} bytes")
    return _SIZE.size, _SIZE.size + size


def measure_http(data: memoryview) -> tuple[int, int] | None:
    """A head, then a body of content-length bytes; brokers send no other answers to load tests."""
    head = bytes(data[:HEAD_BYTES_MAX])
    end = head.find(b"\r\n\r\n") + 4
    if end < 4:
        if len(head) == HEAD_BYTES_MAX:
            raise InvalidField("answer", f"a head of more than {HEAD_BYTES_MAX} bytes")
        return None
    found = _LENGTH.search(head, 0, end)
    if found is None:
        raise InvalidField("answer", "a head without content-length")
    return end, end + int(found[1])


class Connection(asyncio.BufferedProtocol):
    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._buffer = bytearray(FIRST_BYTES)
        self._filled = 0
        self._span: tuple[int, int] | None = None
        self._answer: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._lost: Exception | None = None

    @classmethod
    async def open(cls, host: str, port: int, measure: Measure) -> Connection:
        """Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(lambda: cls(measure), host, port)
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    async def ask(self, request: Sequence[Buffer], timeout_s: float) -> tuple[memoryview, int]:
        """Send a request; its answer with all before the body, and where the body begins. The view is valid until the
        next request. Raises OSError, TimeoutError or FormatError, and is closed then."""
        if self._lost is not None or self._transport is None:
            raise ConnectionError("the connection is closed") from self._lost
        self._filled, self._span = 0, None
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._transport.writelines(request)
            async with asyncio.timeout(timeout_s):
                await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None
        assert self._span is not None
        return memoryview(self._buffer)[: self._span[1]], self._span[0]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # -- asyncio.BufferedProtocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("the broker closed the connection"))

    def get_buffer(self, _sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._answer is None:
            self._fail(InvalidField("answer", f"{count} bytes that answer no request"))
            return
        try:
            self._receive()
        except InvalidField as error:
            self._fail(error)

    def eof_received(self) -> bool:
        return False

    def _receive(self) -> None:
        if self._span is None:
            self._span = self._measure(memoryview(self._buffer)[: self._filled])
            if self._span is None:
                return
            if self._span[1] > ANSWER_BYTES_MAX:
                raise InvalidField("answer", f"{self._span[1]} bytes, more than {ANSWER_BYTES_MAX}")
            if self._span[1] >= len(self._buffer):  # uvloop asks for more room than the answer takes
                # The event loop may still hold the old memory, so it is replaced, not resized.
                larger = bytearray(max(self._span[1] + 1, 2 * len(self._buffer)))
                larger[: self._filled] = self._buffer[: self._filled]
                self._buffer = larger
        if self._filled > self._span[1]:
            raise InvalidField("answer", f"{self._filled - self._span[1]} bytes follow it")
        if self._filled == self._span[1] and self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._lost is None:
            self._lost = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()
