"""Around every request: its id, its time, its line in the log, its place in the metrics.

Outermost, so that requests nobody has a route for are told too. A line has what it takes to follow one request through
a cluster: id, route, status, sizes, and for a produce how long it queued, uploaded and committed. What must stay true:
no header, query or body is ever logged, so no token or record is; an id from outside is taken over only when it is
short and plain.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from llog.broker.produce.producer import Timings
from llog.http.listener.exchange import EXCHANGE, Exchange
from llog.http.routes.services import HttpMetrics
from llog.limits import HTTP_SEND_PIECE_BYTES

HTTP_REQUEST_ID_CHARS_MAX: Final = 64


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

RECORD: Final = "llog.request"
UNMATCHED: Final = "unmatched"
_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % HTTP_REQUEST_ID_CHARS_MAX)
# Asked for every few seconds by those who watch: their lines would drown the others.
_QUIET: Final = frozenset({"/health", "/ready", "/metrics", "/metrics/prometheus"})
_log: Final = logging.getLogger("llog.http")
_LINE: Final = logging.LogRecord(_log.name, logging.INFO, __file__, 0, "request", None, None)


class RequestRecord:
    """What is known of one request while it runs; routes add to it."""

    __slots__ = (
        "batches",
        "error_type",
        "on_finished",
        "request_bytes",
        "request_id",
        "response_bytes",
        "started",
        "status",
        "timings",
    )

    def __init__(self, request_id: str, started: float) -> None:
        self.request_id, self.started = request_id, started
        self.status = self.request_bytes = self.response_bytes = self.batches = 0
        self.timings: Timings | None = None
        self.error_type = ""
        self.on_finished: Callable[[], None] | None = None
        """Called when the client has taken its answer, or is gone."""


class RequestLog:
    """The application with a record of each request around it."""

    def __init__(self, app: App, metrics: HttpMetrics, now: Callable[[], float] = time.perf_counter) -> None:
        self._app, self._metrics, self._now = app, metrics, now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id_of(scope), self._now())
        scope[RECORD] = record
        exchange: Exchange | None = scope.get(EXCHANGE)
        id_header = (b"x-request-id", record.request_id.encode())

        async def counted_receive() -> Message:
            message = await receive()
            record.request_bytes += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            else:
                record.response_bytes += len(message.get("body", b""))
            await _send_in_pieces(send, message)

        try:
            await self._app(scope, counted_receive if exchange is None else receive, counted_send)
        finally:
            if exchange is not None:
                record.request_bytes = exchange.received_bytes
                exchange.let_go()
            if record.on_finished is not None:
                record.on_finished()
            self._finish(scope, record)

    def _finish(self, scope: Scope, record: RequestRecord) -> None:
        seconds = self._now() - record.started
        route = route_of(scope)
        sizes = (record.request_bytes, record.response_bytes)
        self._metrics.observe_http(route, scope["method"], record.status, seconds, *sizes)
        level = logging.DEBUG if route in _QUIET and record.status < 500 else logging.INFO
        if _log.isEnabledFor(level):
            _log.handle(_line(level, line_of(scope, record, route, seconds)))


def _line(level: int, fields: dict[str, object]) -> logging.LogRecord:
    """What `Logger.log` makes, but for looking up who called it, and for all that is the same each time."""
    line = _LINE.__class__.__new__(_LINE.__class__)
    created = time.time()
    line.__dict__ = _LINE.__dict__ | {
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "created": created,
        "msecs": created % 1 * 1_000,
        "llog": fields,
    }
    return line


async def _send_in_pieces(send: Send, message: Message) -> None:
    """A large body piece by piece: a connection waits with the next until the client took the last, while one that is
    given everything at once keeps it, and nobody waits. So when this ends, the client has all but the last bytes."""
    body: bytes = message.get("body", b"")
    if len(body) <= HTTP_SEND_PIECE_BYTES:
        await send(message)
        return
    view = memoryview(body)
    for begin in range(0, len(view), HTTP_SEND_PIECE_BYTES):
        await send({**message, "body": view[begin : begin + HTTP_SEND_PIECE_BYTES], "more_body": True})
    await send({**message, "body": b"", "more_body": message.get("more_body", False)})


def route_of(scope: Scope) -> str:
    """The template of the path, never the path: it becomes a label."""
    template: str = scope.get("path_template", "") if "route_handler" in scope else ""
    return template or UNMATCHED


def request_id_of(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{random.getrandbits(64):016x}"  # to tell requests apart, not to keep a secret


def line_of(scope: Scope, record: RequestRecord, route: str, seconds: float) -> dict[str, object]:
    line: dict[str, object] = {
        "request_id": record.request_id,
        "method": scope["method"],
        "route": route,
        "status": record.status,
        "duration_ms": round(seconds * 1_000, 3),
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
    }
    if scope.get("client"):
        line["client"] = scope["client"][0]
    if record.batches:
        line["batches"] = record.batches
    if record.timings is not None:
        queue_ms, upload_ms, commit_ms = record.timings
        line["queue_ms"], line["upload_ms"], line["commit_ms"] = (
            round(queue_ms, 3),
            round(upload_ms, 3),
            round(commit_ms, 3),
        )
    if record.error_type:
        line["error_type"] = record.error_type
    return line
