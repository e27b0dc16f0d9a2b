"""For every HTTP request: its id, its duration, its line in the log, its place in the metrics.

A line has what it takes to follow one request through a cluster: id, route, status, sizes, and for a produce how long
it queued, uploaded and committed. No header, query or body is ever logged, so no token or record is; an id that the
client sent is used only when it is short and plain.
"""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from llog.listener.http1 import Exchange, Reply
from llog.settings import Settings

REQUEST_ID_CHARS_MAX: Final = 64
ERROR_CHARS_MAX: Final = 500
"""Of the reason in the line of a failed request."""
ALL: Final = "all"
ERRORS: Final = "errors"
SLOW: Final = "slow"
NONE: Final = "none"

STAGES: Final = ("queue_ms", "upload_ms", "commit_ms")

UNMATCHED: Final = "unmatched"
"""The route of requests that match none."""
STATUS_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/metrics/prometheus"})
"""Monitors ask for these every few seconds, so their lines are logged at debug level."""
_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % REQUEST_ID_CHARS_MAX)
_log: Final = logging.getLogger("llog.http")
_LINE: Final = logging.LogRecord(_log.name, logging.INFO, __file__, 0, "request", None, None)


class HttpMetrics(Protocol):
    def observe_http(
        self, route: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """One answered request. `route` is the template of the path, not the path."""

    # The pages; they may be made in another thread.
    def snapshot(self) -> Any: ...

    def prometheus(self) -> bytes: ...


class RequestRecord:
    """One request while it is served; routes add to it."""

    __slots__ = (
        "batches",
        "error",
        "error_type",
        "exchange",
        "on_finished",
        "principal",
        "request_id",
        "response_bytes",
        "route",
        "started",
        "status",
        "subject",
        "timings",
        "wait_ms",
    )

    def __init__(self, exchange: Exchange, started: float) -> None:
        self.exchange, self.started = exchange, started
        self.request_id = request_id_of(exchange)
        self.route, self.error_type, self.error = UNMATCHED, "", ""
        self.principal = ""
        """Whose request it is, where authorization is on."""
        self.subject = ""
        """What the request would change, for its audit line."""
        self.wait_ms: float = 0
        """How long the client asked to wait for records, which does not make a request slow."""
        self.status = self.response_bytes = self.batches = 0
        self.timings: tuple[float, float, float] | None = None
        """Milliseconds that a produce queued, uploaded and committed."""
        self.on_finished: Callable[[], None] | None = None
        """Called when the client has taken its answer, or is gone."""

    def note_failures(self, error_type: str, error: str, failed: int, count: int) -> None:
        """`failed` of the request's `count` partitions failed, the first of them in this way."""
        self.error_type = error_type
        self.error = error if count == 1 else f"{failed} of {count} failed, the first with: {error}"

    async def answer(self, reply: Reply) -> None:
        self.status, self.response_bytes = reply.status, len(reply.body)
        await self.exchange.answer(reply, self.request_id)


class RequestLog:
    def __init__(
        self,
        metrics: HttpMetrics,
        now: Callable[[], float] = time.perf_counter,
        *,
        lines: str = ALL,
        slow_ms: int = 0,
    ) -> None:
        self._metrics, self._now = metrics, now
        self._lines, self._slow_ms = lines, slow_ms

    @classmethod
    def of(cls, metrics: HttpMetrics, settings: Settings) -> RequestLog:
        return cls(metrics, lines=settings.log_requests, slow_ms=settings.log_slow_ms)

    def begin(self, exchange: Exchange) -> RequestRecord:
        return RequestRecord(exchange, self._now())

    def finish(self, record: RequestRecord) -> None:
        """Count and log the request; call it when its answer was taken, or its client is gone."""
        if record.on_finished is not None:
            record.on_finished()
        seconds, exchange, route = self._now() - record.started, record.exchange, record.route
        sizes = (exchange.received_bytes, record.response_bytes)
        self._metrics.observe_http(route, exchange.method, record.status, seconds, *sizes)
        if not self._is_logged(record, seconds):
            return
        level = logging.DEBUG if route in STATUS_PATHS and record.status < 500 else logging.INFO
        if _log.isEnabledFor(level):
            _log.handle(request_line(_log.name, level, fields_of(record, seconds)))

    def _is_logged(self, record: RequestRecord, seconds: float) -> bool:
        if self._lines == ALL:
            return True
        failed = record.status >= 400 or bool(record.error_type)
        if self._lines == SLOW:
            return failed or seconds * 1_000 - record.wait_ms >= self._slow_ms
        return failed and self._lines == ERRORS


def request_line(name: str, level: int, fields: dict[str, object]) -> logging.LogRecord:
    """The record that `Logger.log` would make, without looking up the caller: a broker writes one per request."""
    line = _LINE.__class__.__new__(_LINE.__class__)
    created = time.time()
    line.__dict__ = _LINE.__dict__ | {
        "name": name,
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "created": created,
        "msecs": created % 1 * 1_000,
        "llog": fields,
    }
    return line


def stage_fields(timings: tuple[float, float, float]) -> dict[str, object]:
    """Of a produce, over any protocol: the milliseconds that it queued, uploaded and committed."""
    return {name: round(value, 3) for name, value in zip(STAGES, timings, strict=True)}


def request_id_of(exchange: Exchange) -> str:
    for name, value in exchange.headers:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return str(value, "ascii")
    return f"{random.getrandbits(64):016x}"  # distinguishes requests; it is no secret


def fields_of(record: RequestRecord, seconds: float) -> dict[str, object]:
    exchange = record.exchange
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "method": exchange.method,
        "route": record.route,
        "status": record.status,
        "duration_ms": round(seconds * 1_000, 3),
        "request_bytes": exchange.received_bytes,
        "response_bytes": record.response_bytes,
    }
    if exchange.client:
        fields["client"] = exchange.client[0]
    if record.batches:
        fields["batches"] = record.batches
    if 0 < record.wait_ms < math.inf:  # a tail waits for as long as its client stays
        fields["max_wait_ms"] = record.wait_ms
    if record.timings is not None:
        fields |= stage_fields(record.timings)
    if record.error_type:
        fields["error_type"] = record.error_type
        fields["error"] = record.error[:ERROR_CHARS_MAX]
    return fields
