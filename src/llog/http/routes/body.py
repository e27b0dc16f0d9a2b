"""Reading a request's body: within a size, within a time, and out of the memory pool.

Never more bytes are read than the limit allows and, for records, than the pool gave. A client that sends slowly is
given up, so that memory cannot be held by sending a byte now and then. The pool gets back what it gave, whatever
happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import REJECTIONS
from llog.errors import InvalidArgument, RequestOverload, RequestRefused, RequestTooLarge, RequestTooSlow
from llog.http.json.decode import BODY, decoded
from llog.http.routes.runtime import AnyRequest, Runtime, record_of, runtime_of
from llog.limits import MIB
from llog.listener.http1 import Exchange

HTTP_READ_BYTES_PER_MS_MIN: Final = 8
"""A body that comes slower than this, beyond the read timeout, is given up."""
HTTP_SMALL_BODY_BYTES_MAX: Final = 4 * MIB
"""Bodies without records; a consume request that names as many logs as it may has about a megabyte."""

T = TypeVar("T")


class Body:
    """A body in the pieces it came in."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece)

    def joined(self) -> bytes:
        """The whole body. The pieces are released, so that a large body is in memory once."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _PoolShare:
    """What one request holds of the pool."""

    def __init__(self, pool: MemoryPool | None = None, on_refused: Callable[[], None] = lambda: None) -> None:
        self._pool, self._on_refused, self._size = pool, on_refused, 0

    def raise_to(self, size: int) -> None:
        if self._pool is None or size <= self._size:
            return
        if not self._pool.try_take(size - self._size):
            self._on_refused()
            raise RequestOverload(
                "the broker's buffer (LLOG_BATCH_MAX_BUFFER_BYTES) is full: nothing was accepted, try again"
            )
        self._size = size

    def give(self) -> None:
        if self._pool is not None and self._size:
            self._pool.give(self._size)
            self._size = 0


class TakenBody:
    """The body of a request that carries records; its bytes are taken from the pool until the block ends."""

    def __init__(self, runtime: Runtime, exchange: Exchange) -> None:
        services = runtime.services
        self._exchange, self._settings = exchange, services.settings
        self._share = _PoolShare(services.pool, lambda: services.metrics.count(REJECTIONS))

    async def __aenter__(self) -> Body:
        limit_bytes, timeout_ms = self._settings.http_body_max_bytes, self._settings.http_read_timeout_ms
        try:
            return await _read(self._exchange, self._share, limit_bytes, "LLOG_HTTP_BODY_MAX_BYTES", timeout_ms)
        except BaseException:
            self._share.give()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._share.give()


async def decoded_body(request: AnyRequest, kind: type[T], *, default: T | None = None) -> T:
    """The decoded body of a request without records; `default` stands for an empty one."""
    return await decoded_small_body(runtime_of(request), record_of(request).exchange, kind, default=default)


async def decoded_small_body(runtime: Runtime, exchange: Exchange, kind: type[T], *, default: T | None = None) -> T:
    timeout_ms = runtime.services.settings.http_read_timeout_ms
    body = await _read(exchange, _PoolShare(), HTTP_SMALL_BODY_BYTES_MAX, "HTTP_SMALL_BODY_BYTES_MAX", timeout_ms)
    if not body.size and default is not None:
        return default
    text = body.joined()
    return await runtime.off_loop(len(text), lambda: decoded(kind, text))


async def _read(exchange: Exchange, share: _PoolShare, limit_bytes: int, limit_name: str, timeout_ms: int) -> Body:
    declared = _declared_length(exchange)
    if declared > limit_bytes:
        raise RequestTooLarge(limit_bytes, limit_name)
    share.raise_to(declared)
    now = asyncio.get_running_loop().time
    started = now()

    def deadline(received_bytes: int) -> float:
        return started + (timeout_ms + received_bytes / HTTP_READ_BYTES_PER_MS_MIN) / 1_000

    body = Body()
    try:
        if declared:
            for piece in await exchange.read_body(declared, deadline):
                body.add(piece)
        else:
            while piece := await exchange.receive(deadline(body.size)) or b"":
                if body.size + len(piece) > limit_bytes:
                    raise RequestTooLarge(limit_bytes, limit_name)
                share.raise_to(body.size + len(piece))
                body.add(piece)
    except TimeoutError:
        raise RequestTooSlow(round((now() - started) * 1_000)) from None
    if not exchange.is_complete:
        raise RequestRefused("the request ended before its body was complete")
    return body


def _declared_length(exchange: Exchange) -> int:
    """0 when the request does not state it. A content-encoding is refused: what it unpacks to is not bounded."""
    length = 0
    for name, value in exchange.headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise InvalidArgument(BODY, "a content-encoding is not accepted: send the body uncompressed")
        if name == b"content-length" and value.isdigit():
            length = int(value[:20])
    return length
