"""The status pages of every process: `/health`, `/ready`, `/metrics`, `/metrics/prometheus`.

`/health` answers 200 for as long as the process runs, and says what is wrong; `/ready` answers 503 unless requests
should be sent here. Both are open to everybody; the metrics ask for the read token where one is set. The pages show no
secret and change nothing. The metrics pages are made in a thread: with many series they take tens of milliseconds, and
no request may wait for that.

A broker serves them among its routes; `StatusPages` serves them alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from llog.errors import LlogError, RequestUnauthenticated
from llog.listener.connection import ConnectionSet
from llog.listener.http1 import ENCODER, RETRY_AFTER, ErrorAnswer, Exchange, HttpConnection, Reply, json_reply
from llog.listener.tokens import Access, Tokens
from llog.settings import Settings
from llog.telemetry.metrics import CONTENT_TYPE
from llog.telemetry.request_log import STATUS_PATHS, HttpMetrics, RequestLog, RequestRecord

AUTHENTICATE: Final[Mapping[str, str]] = {"www-authenticate": 'Bearer realm="llog"'}
_log: Final = logging.getLogger("llog.http")


class StatusServices(Protocol):
    """What every process can say about itself."""

    @property
    def settings(self) -> Settings: ...

    @property
    def metrics(self) -> HttpMetrics: ...

    def health(self) -> Mapping[str, object]:
        """The body of `/health`, with `status` and, where it is not ok, `reasons`. Holds no secret."""

    def ready(self) -> bool: ...


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    status: str
    reasons: list[str] = []


async def status_page(path: str, services: StatusServices, *, stopping: bool = False) -> Reply:
    """The page at one of `STATUS_PATHS`."""
    if path == "/health":
        return json_reply(services.health())
    if path == "/ready":
        return _ready(services, stopping)
    if path == "/metrics":
        return await asyncio.to_thread(lambda: json_reply(services.metrics.snapshot()))
    return Reply(200, await asyncio.to_thread(services.metrics.prometheus), CONTENT_TYPE)


def _ready(services: StatusServices, stopping: bool) -> Reply:
    health = services.health()
    is_ready = services.ready() and not stopping
    listed = health.get("reasons", ())
    reasons = [str(reason) for reason in listed] if isinstance(listed, Sequence) else []
    if stopping:
        reasons.append("stopping")
    answer = Ready(is_ready, str(health.get("status", "ok")), reasons)
    return json_reply(answer, 200 if is_ready else 503, None if is_ready else RETRY_AFTER)


def state_page(path: str, services: StatusServices, *, stopping: bool = False) -> Reply:
    """`/health` or `/ready` for those who may not know more: the state, without reasons and names."""
    state: dict[str, object] = {"status": str(services.health().get("status", "ok"))}
    if path == "/health":
        return json_reply(state)
    page = _ready(services, stopping)
    return page._replace(body=ENCODER.encode({"ready": page.status == 200, **state}))


class StatusPages:
    """The pages alone, for a process without other routes. `other` answers every other path."""

    def __init__(self, services: StatusServices, other: Callable[[RequestRecord], Reply] | None = None) -> None:
        self._services, self._other = services, other or _not_found
        self._tokens, self._log = Tokens(services.settings), RequestLog.of(services.metrics, services.settings)

    def connection(self, peers: ConnectionSet) -> HttpConnection:
        """For `SocketListener`."""
        return HttpConnection(peers, self, self._services.settings.http_read_timeout_ms)

    async def __call__(self, exchange: Exchange) -> None:
        record = self._log.begin(exchange)
        try:
            await record.answer(await self._reply(record))
        finally:
            self._log.finish(record)

    async def _reply(self, record: RequestRecord) -> Reply:
        path = record.exchange.path.decode("ascii")
        if path not in STATUS_PATHS:
            return self._other(record)
        record.route = path
        if record.exchange.method not in ("GET", "HEAD"):
            return refused(record, 405, "MethodNotAllowedException", "this page has the method GET alone")
        try:
            access = Access.READ if path.startswith("/metrics") else Access.OPEN
            self._tokens.check(access, self._tokens.sent(record.exchange.header(b"authorization")))
            return await status_page(path, self._services)
        except LlogError as error:
            status = 401 if isinstance(error, RequestUnauthenticated) else 403
            return refused(record, status, type(error).__name__, str(error), AUTHENTICATE if status == 401 else None)
        except Exception as error:
            fields = {"request_id": record.request_id, "error_type": type(error).__name__}
            _log.error("request failed", exc_info=error, extra={"llog": fields})
            return refused(record, 500, "InternalError", "the page failed; the process logged why")


def refused(
    record: RequestRecord, status: int, error_type: str, reason: str, headers: Mapping[str, str] | None = None
) -> Reply:
    record.error_type, record.error = error_type, reason
    return json_reply(ErrorAnswer(error_type, reason, record.request_id), status, headers)


def _not_found(record: RequestRecord) -> Reply:
    return refused(record, 404, "NotFoundException", f"this process serves {', '.join(sorted(STATUS_PATHS))} alone")
