"""HTTP/1.1 on httptools: requests in, answers out, one `Exchange` for each.

A handler gets an `Exchange` when a request's head is complete, reads the body from it and answers:

    async def handler(exchange: Exchange) -> None:
        pieces = await exchange.read_body(length, deadline, make_room)
        await exchange.answer(Reply(200, b"{}"))

Limits: a head has a size, a number of headers and a deadline; a body waits in memory up to `READ_AHEAD_BYTES_MAX`, or
up to the length that its reader has room for, and the socket is not read beyond that; the rest of a body that was
refused is discarded for `DISCARD_MS_MAX`; an idle connection is closed after `KEEP_ALIVE_MS`. Requests on one
connection are answered in order, one at a time; while one waits, the socket is not read, and at most `PIPELINED_MAX`
wait. A deadline runs only while the client owes us something. Bytes that are not HTTP/1.1 get a 400 after the answers
to the requests before them.
"""

from __future__ import annotations

import asyncio
import http
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from email.utils import formatdate
from typing import Any, Final, NamedTuple

import httptools
import msgspec

from llog.limits import KIB
from llog.listener.connection import Connection, ConnectionSet, address

HEAD_BYTES_MAX: Final = 64 * KIB
"""Request line and headers together."""
HEADERS_MAX: Final = 200
PIPELINED_MAX: Final = 1_000
"""Requests of one connection that wait for the answer to an earlier one."""
KEEP_ALIVE_MS: Final = 75_000
DISCARD_MS_MAX: Final = 2_000
"""How long the rest of a refused body is read and thrown away, so that its sender can read the answer."""
READ_AHEAD_BYTES_MAX: Final = 64 * KIB
"""Bytes of a body that wait for a reader which has not said how many it has room for."""
BODY_PART_BYTES: Final = 256 * KIB
"""The first part of a body of known length, and all of most bodies, so that their reader wakes once. Each further part
doubles what has arrived."""
SEND_PIECE_BYTES: Final = 256 * KIB
"""A large answer is written in pieces of this size; each waits until the transport accepts more."""

JSON: Final = "application/json"
Headers = list[tuple[bytes, bytes]]
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in http.HTTPStatus
} | {499: b"HTTP/1.1 499 Client Closed Request\r\n"}
_BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})
_BODILESS: Final = frozenset({204, 304})
_log: Final = logging.getLogger("llog.http")
ENCODER: Final = msgspec.json.Encoder()
RETRY_AFTER: Final[Mapping[str, str]] = {"retry-after": "1"}


class Reply(NamedTuple):
    """A whole answer. `headers` must hold no line ends."""

    status: int
    body: bytes | memoryview
    media_type: str = JSON
    headers: Mapping[str, str] = {}


class ErrorAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every answer that is an error."""

    error_type: str
    error: str
    request_id: str
    field: str = ""
    """Path of the field that is wrong in the request."""


def json_reply(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, ENCODER.encode(content), JSON, headers or {})


class Exchange:
    """One request and its answer."""

    def __init__(
        self, connection: HttpConnection, method: str, path: bytes, query: bytes, headers: Headers, version: str
    ) -> None:
        self.method, self.path, self.query, self.headers, self.version = method, path, query, headers, version
        self._connection, self.client = connection, connection.client
        self.keep_alive = True
        self.received_bytes = 0
        """Of the body, whether or not they were read."""
        self.disconnected = self.answered = False
        self._pieces: deque[bytes] = deque()
        self._buffered_bytes = self._wanted_bytes = 0
        self._complete = self._cut_off = self._end_read = self._started = self._continue = self._chunked = False
        self._left_bytes: int | None = None
        """Of an answer that stated its length."""
        self._waiter: asyncio.Future[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; `name` is in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def scheme(self) -> str:
        return "https" if self._connection.transport.get_extra_info("ssl_object") else "http"

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's, as TLS has verified it."""
        tls = self._connection.transport.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert()

    @property
    def server(self) -> tuple[str, int] | None:
        return address(self._connection.transport.get_extra_info("sockname"))

    # -- the request's body --------------------------------------------------------------------------------------------
    async def read_body(
        self, size: int, deadline: Callable[[int], float], make_room: Callable[[int], None]
    ) -> list[bytes]:
        """The pieces of a body of `size` bytes: fewer when the client went away.

        `make_room(n)` is called before the first n bytes are read: for a first part of the body, and for twice as much
        whenever that part has arrived, so that a client gets room for what it sends and not for what it announces. It
        raises to refuse the rest. `TimeoutError` when the loop's clock passes `deadline(bytes received)`.
        """
        loop = asyncio.get_running_loop()
        self._wanted_bytes = min(size, BODY_PART_BYTES)
        make_room(self._wanted_bytes)
        self._ask_for_body()
        while not (self._complete or self._is_over):
            if self._wanted_bytes <= self.received_bytes < size:
                self._wanted_bytes = min(size, 2 * self.received_bytes)
                make_room(self._wanted_bytes)
            due = deadline(self.received_bytes)
            if loop.time() >= due:
                raise TimeoutError
            await self._wait(loop, due)
        pieces = list(self._pieces)
        self._pieces.clear()
        self._buffered_bytes, self._end_read = 0, True
        return pieces

    async def receive(self, due: float | None = None) -> bytes | None:
        """The next piece of the body, b"" at its end; then, and after the answer, it waits until the client is gone
        and returns None. `TimeoutError` when the loop's clock passes `due`."""
        loop = asyncio.get_running_loop()
        self._ask_for_body()
        while not self._is_over:
            if self._pieces:
                piece = self._pieces.popleft()
                self._buffered_bytes -= len(piece)
                return piece
            if self._complete and not self._end_read:
                self._end_read = True
                return b""
            if due is not None and loop.time() >= due:
                raise TimeoutError
            await self._wait(loop, due)
        return None

    @property
    def _is_over(self) -> bool:
        return self.disconnected or self.answered or self._cut_off

    async def _wait(self, loop: asyncio.AbstractEventLoop, due: float | None) -> None:
        self._connection.update_reading()
        self._waiter = waiter = loop.create_future()
        timer = None if due is None else loop.call_at(due, self.wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _ask_for_body(self) -> None:
        if self._continue and not self.disconnected:
            self._continue = False
            self._connection.transport.write(_CONTINUE)

    # -- the connection's calls ----------------------------------------------------------------------------------------
    def expect_continue(self) -> None:
        self._continue = True

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._buffered_bytes += len(piece)
        self.received_bytes += len(piece)
        if self.received_bytes >= self._wanted_bytes:
            self.wake()

    def complete(self) -> None:
        self._complete = True
        self.wake()

    @property
    def is_full(self) -> bool:
        """More of the body waits in memory than its reader has room for."""
        return self._buffered_bytes > max(READ_AHEAD_BYTES_MAX, self._wanted_bytes)

    def cut_off(self) -> None:
        """The rest of the body cannot be parsed."""
        self._cut_off = True
        self.wake()

    def disconnect(self) -> None:
        """The client is gone."""
        self.disconnected = True
        self.wake()

    @property
    def is_complete(self) -> bool:
        """The whole body has arrived."""
        return self._complete

    @property
    def started(self) -> bool:
        """The answer has begun."""
        return self._started

    # -- the answer ----------------------------------------------------------------------------------------------------
    async def answer(self, reply: Reply, request_id: str = "") -> None:
        """Write a whole answer; a small one is one write. Returns when the transport has all of it but the last piece,
        or the client is gone."""
        size = len(reply.body)
        lines = [f"content-type: {reply.media_type}\r\n"] if reply.media_type else []
        lines += [f"{name}: {value}\r\n" for name, value in reply.headers.items()]
        if request_id:
            lines.append(f"x-request-id: {request_id}\r\n")
        lines.append(f"content-length: {size}\r\n")
        head = self._head(reply.status, "".join(lines).encode("latin-1"))
        self._started = True
        await self._write(head, reply.body)
        self._finish()

    async def start(self, status: int, headers: Headers, body: bytes | memoryview, *, more: bool) -> None:
        """Begin an answer with any headers, and write the first bytes of its body. An answer of unknown length is
        chunked."""
        assert not self._started, "a second answer"
        lines = []
        for name, value in headers:
            if b"\n" in value or b"\r" in value:
                raise ValueError(f"header {name!r} of the answer holds a line end")
            if name.lower() == b"content-length":
                self._left_bytes = int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        if self._left_bytes is None and status not in _BODILESS:
            if not more:
                self._left_bytes = len(body)
                lines.append(b"content-length: %d\r\n" % len(body))
            elif self.version == "1.0":
                self.keep_alive = False
            else:
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        self._started = True
        await self._send(self._head(status, b"".join(lines)), body, more=more)

    async def send(self, body: bytes | memoryview, *, more: bool) -> None:
        """More of a body that `start` began."""
        await self._send(b"", body, more=more)

    async def _send(self, head: bytes, body: bytes | memoryview, *, more: bool) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
        if self._chunked:
            end = b"" if more else b"0\r\n\r\n"
            body = b"".join([b"%x\r\n" % len(body), body, b"\r\n", end]) if len(body) else end
        await self._write(head, body)
        if not more:
            if self._left_bytes and self.method != "HEAD":
                raise ValueError(f"the answer's body differs from its content-length by {self._left_bytes} bytes")
            self._finish()

    def _head(self, status: int, lines: bytes) -> bytes:
        if not self._connection.is_kept_after(self):
            self.keep_alive = False
        closing = b"" if self.keep_alive else b"connection: close\r\n"
        return b"".join([_STATUS_LINES[status], date_line(), lines, closing, b"\r\n"])

    async def _write(self, head: bytes, body: bytes | memoryview) -> None:
        connection, transport = self._connection, self._connection.transport
        await connection.drain()
        if self.disconnected or transport.is_closing():
            return
        if self.method == "HEAD":
            body = b""
        if len(body) <= SEND_PIECE_BYTES:
            data = b"".join((head, body)) if head else body
            if len(data):
                transport.write(data)
            return
        if head:
            transport.write(head)
        view = memoryview(body)
        for begin in range(0, len(view), SEND_PIECE_BYTES):
            transport.write(view[begin : begin + SEND_PIECE_BYTES])
            await connection.drain()
            if self.disconnected or transport.is_closing():
                return

    def _finish(self) -> None:
        self.answered = True
        self._pieces.clear()
        self._buffered_bytes = 0
        self.wake()
        self._connection.answered(self)


Handler = Callable[[Exchange], Coroutine[Any, Any, None]]


class _HeadTooLarge(Exception):
    pass


class _TooManyPipelined(Exception):
    pass


class _UpgradeRefused(Exception):
    """The parser would skip the body of a request that asks for an upgrade."""


class HttpConnection(Connection, asyncio.Protocol):
    """Parses the requests of one client and runs the handler for each, in order."""

    def __init__(self, peers: ConnectionSet, handler: Handler, head_timeout_ms: int) -> None:
        super().__init__(peers)
        self._handler, self._head_timeout_ms = handler, head_timeout_ms
        self._parser: Any = httptools.HttpRequestParser(self)
        # Data behind a request that asks to close is ignored; by default the parser would refuse it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._url, self._headers = b"", Headers()
        self._expects_continue = False
        self._in_head = self._in_message = False
        self._head_bytes = self._parsed_bytes = self._messages = 0
        self._receiving: Exchange | None = None
        """Whose body the parser reads; None when it is complete or is discarded."""
        self._serving: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._refusal: Reply | None = None
        """What the client gets after the answers in flight, instead of further requests."""

    # -- the transport's calls -----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.expect_within(self._head_timeout_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for exchange in (self._serving, *self._queue):
            if exchange is not None:
                exchange.disconnect()
        self._queue.clear()
        self._receiving = self._parser = None

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.transport.is_closing():
            return
        starts_idle, messages = not self._in_message, self._messages
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Upgrades are not offered: the request is answered as it is, and what follows is not ours to parse.
            self._refuse(None)
        except httptools.HttpParserError as error:
            self._refuse(_refusal_of(error))
        else:
            if self._in_head:
                began = self._messages - messages
                # A head that began behind another message in `data` is counted from the next bytes on.
                self._head_bytes += len(data) if began == 0 or (starts_idle and began == 1) else 0
                if self._head_bytes > HEAD_BYTES_MAX:
                    self._refuse(_refused(431, "HeadTooLarge", f"the head is larger than {HEAD_BYTES_MAX} bytes"))
                elif starts_idle and self._serving is None:
                    self.expect_within(self._head_timeout_ms)
        if self._receiving is not None or self._queue:
            self.update_reading()

    # -- the parser's calls --------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._messages += 1
        self._head_bytes = self._parsed_bytes = 0
        self._url, self._headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._parsed_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._parsed_bytes += len(name) + len(value)
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))
        if len(self._headers) > HEADERS_MAX or self._parsed_bytes > HEAD_BYTES_MAX:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._parser.should_upgrade() and any(name in _BODY_HEADERS for name, _ in self._headers):
            raise _UpgradeRefused
        target = httptools.parse_url(self._url)
        version = self._parser.get_http_version()
        method = self._parser.get_method().decode("ascii")
        exchange = Exchange(self, method, target.path or b"/", target.query or b"", self._headers, version)
        exchange.keep_alive = version != "1.0" and self._parser.should_keep_alive()
        if self._expects_continue:
            exchange.expect_continue()
        self._receiving = exchange
        if self._serving is None:
            self.expect_within(None)
            self._serve(exchange)
        elif len(self._queue) < PIPELINED_MAX:
            self._queue.append(exchange)
        else:
            self._receiving = None
            raise _TooManyPipelined

    def on_body(self, body: bytes) -> None:
        if self._receiving is not None:
            self._receiving.add(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._receiving is not None:
            self._receiving.complete()
            self._receiving = None
        elif self._serving is None:
            self.expect_within(KEEP_ALIVE_MS)  # the rest of a refused body has come

    # -- serving -------------------------------------------------------------------------------------------------------
    def _serve(self, exchange: Exchange) -> None:
        self._serving = exchange
        self.peers.run(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            if self.admitted:
                await self._handler(exchange)
            else:
                exchange.keep_alive = False
                reason = f"{self.peers.connections_max} connections are open: try again, or use another broker"
                await exchange.answer(_refused(503, "RequestOverload", reason, RETRY_AFTER))
        except Exception as error:
            _log.error("a request handler failed", exc_info=error)
            if not exchange.started:
                exchange.keep_alive = False
                await exchange.answer(_refused(500, "InternalError", "the request failed; the broker logged why"))
        finally:
            if not exchange.answered:
                self.transport.abort()  # half an answer must not look like a whole one
                self._serving = None

    def answered(self, exchange: Exchange) -> None:
        """The next request's turn, or the connection's end."""
        if self._serving is not exchange:
            return
        self._serving = None
        discards = self._receiving is exchange
        if discards:
            self._receiving = None
        if self.transport.is_closing():
            return
        if not exchange.keep_alive:
            self.transport.close()
        elif self._queue:
            self._serve(self._queue.popleft())
        elif self._refusal is not None:
            self._end(self._refusal)
        else:
            self.expect_within(
                DISCARD_MS_MAX if discards else self._head_timeout_ms if self._in_head else KEEP_ALIVE_MS
            )
        self.update_reading()

    def is_kept_after(self, exchange: Exchange) -> bool:
        """The connection stays open behind this exchange's answer."""
        if not exchange.keep_alive:
            return False
        return bool(self._queue) or not (self.peers.stopping or (self._refusal is not None and not self._refusal.body))

    def update_reading(self) -> None:
        """Read while requests can be served at once and bodies have room."""
        full = self._receiving is not None and self._receiving.is_full
        self.read(not (self._queue or full or self._refusal is not None))

    def begin_stop(self) -> None:
        if self._serving is None and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, refusal: Reply | None) -> None:
        """Parse no more; end with `refusal` (None: with nothing) behind the answers in flight."""
        if self._receiving is not None:
            self._receiving.cut_off()  # its handler answers that the body is incomplete
            self._receiving = refusal = None
        self._refusal = Reply(400, b"") if refusal is None else refusal
        if self._serving is None:
            self._end(self._refusal)

    def _end(self, refusal: Reply) -> None:
        if refusal.body:
            fields = {"client": None if self.client is None else self.client[0], "status": refusal.status}
            _log.info("refused bytes that are not a request", extra={"llog": fields})
            lines = f"content-type: {refusal.media_type}\r\ncontent-length: {len(refusal.body)}\r\n".encode()
            head = b"".join([_STATUS_LINES[refusal.status], date_line(), lines, b"connection: close\r\n\r\n"])
            self.transport.write(head + refusal.body)
        self.transport.close()


def _refused(status: int, error_type: str, reason: str, headers: Mapping[str, str] | None = None) -> Reply:
    return json_reply(ErrorAnswer(error_type, reason, ""), status, headers)


def _refusal_of(error: httptools.HttpParserError) -> Reply:
    cause = error.__context__ or error
    if isinstance(cause, _HeadTooLarge):
        reason = f"the head has more than {HEADERS_MAX} headers or {HEAD_BYTES_MAX} bytes"
        return _refused(431, "HeadTooLarge", reason)
    if isinstance(cause, _TooManyPipelined):
        reason = f"more than {PIPELINED_MAX} requests wait on this connection: read their answers first"
        return _refused(429, "RequestOverload", reason)
    if isinstance(cause, _UpgradeRefused):
        return _refused(400, "RequestRefused", "upgrades are not offered: send the request without an Upgrade header")
    if isinstance(cause, httptools.HttpParserError):
        return _refused(400, "RequestRefused", f"not an HTTP/1.1 request: {cause}")
    _log.error("a parser callback failed", exc_info=cause)
    return _refused(500, "InternalError", "the request failed; the broker logged why")


_date: tuple[int, bytes] = (0, b"")


def date_line() -> bytes:
    """The `date` header, made once a second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, f"date: {formatdate(now, usegmt=True)}\r\n".encode())
    return _date[1]
