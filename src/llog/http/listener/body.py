"""Reading a request's body: within a size, within a time, and out of the memory pool.

What must stay true: what is read is never more than was allowed, and, for records, never more than the pool gave; a
client that sends slowly is given up, so that nobody can hold memory by sending a byte now and then; the pool gets back
what it gave, whatever happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from litestar import Request

from llog.broker.produce.producer import REJECTIONS
from llog.errors import InvalidArgument, RequestOverload, RequestRefused, RequestTooLarge, RequestTooSlow
from llog.http.json.decode import BODY, decoded
from llog.http.listener.exchange import EXCHANGE, Exchange
from llog.http.listener.runtime import Runtime, runtime_of
from llog.http.routes.services import Pool
from llog.limits import MIB

# A body that comes slower than this, after the read timeout that it has for free, is given up.
HTTP_READ_BYTES_PER_MS_MIN: Final = 8
# Bodies of requests that carry no records; a consume request that names all the logs it may has about a megabyte.
HTTP_SMALL_BODY_BYTES_MAX: Final = 4 * MIB


T = TypeVar("T")
AnyRequest = Request[Any, Any, Any]
_WENT_AWAY: Final = "the client went away before its request was complete"


class Body:
    """A body as it came, in chunks."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)

    def joined(self) -> bytes:
        """All of it. The chunks are let go: a large body is in memory once."""
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _Share:
    """What one request holds of the pool."""

    def __init__(self, pool: Pool | None, on_refused: Callable[[], None] = lambda: None) -> None:
        self._pool, self._on_refused, self._size = pool, on_refused, 0

    def raise_to(self, size: int) -> None:
        if self._pool is None or size <= self._size:
            return
        if not self._pool.try_take(size - self._size):
            self._on_refused()
            raise RequestOverload("too much is buffered between the sockets and the store: nothing was accepted")
        self._size = size

    def give(self) -> None:
        if self._pool is not None and self._size:
            self._pool.give(self._size)
            self._size = 0


class TakenBody:
    """The body of a request that carries records; its bytes are taken from the pool until the block ends."""

    def __init__(self, runtime: Runtime, request: AnyRequest) -> None:
        self._runtime, self._request = runtime, request
        self._share = _Share(runtime.broker.pool, lambda: runtime.services.metrics.count(REJECTIONS))

    async def __aenter__(self) -> Body:
        settings = self._runtime.services.settings
        try:
            return await _read(self._request, self._share, settings.http_body_max_bytes, settings.http_read_timeout_ms)
        except BaseException:
            self._share.give()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._share.give()


async def decoded_body(request: AnyRequest, kind: type[T], *, default: T | None = None) -> T:
    """The body of any other request; `default` stands for an empty one."""
    runtime = runtime_of(request)
    body = await _read(request, _Share(None), HTTP_SMALL_BODY_BYTES_MAX, runtime.services.settings.http_read_timeout_ms)
    if not body.size and default is not None:
        return default
    text = body.joined()
    return await runtime.off_loop(len(text), lambda: decoded(kind, text))


async def _read(request: AnyRequest, share: _Share, limit_bytes: int, timeout_ms: int) -> Body:
    declared = _declared_length(request)
    limit_name = "LLOG_HTTP_BODY_MAX_BYTES" if limit_bytes != HTTP_SMALL_BODY_BYTES_MAX else "HTTP_SMALL_BODY_BYTES_MAX"
    if declared > limit_bytes:
        raise RequestTooLarge(limit_bytes, limit_name)
    share.raise_to(declared)
    now = asyncio.get_running_loop().time
    started = now()

    def deadline(received_bytes: int) -> float:
        return started + (timeout_ms + received_bytes / HTTP_READ_BYTES_PER_MS_MIN) / 1_000

    exchange: Exchange | None = request.scope.get(EXCHANGE)  # type: ignore[assignment]
    body = Body()
    try:
        if declared and exchange is not None:
            for piece in await exchange.whole(declared, deadline):
                body.add(piece)
            if body.size < declared:
                raise RequestRefused(_WENT_AWAY)
            return body
        more = True
        while more:
            async with asyncio.timeout_at(deadline(body.size)):
                message: Mapping[str, Any] = await request.receive()
            if message["type"] == "http.disconnect":
                raise RequestRefused(_WENT_AWAY)
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if body.size + len(chunk) > limit_bytes:
                raise RequestTooLarge(limit_bytes, limit_name)
            share.raise_to(body.size + len(chunk))
            body.add(chunk)
    except TimeoutError:
        raise RequestTooSlow(round((now() - started) * 1_000)) from None
    return body


def _declared_length(request: AnyRequest) -> int:
    """0 when it is not told. Encodings other than plain text are refused: what they unpack to is not bounded."""
    length = 0
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise InvalidArgument(BODY, "send it as it is: a content-encoding is not accepted")
        if name == b"content-length" and value.isdigit():
            length = int(value[:20])
    return length
