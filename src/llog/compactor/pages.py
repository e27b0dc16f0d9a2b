"""Health and metrics of the service over HTTP: `/health`, `/ready`, `/metrics`, `/metrics/prometheus`.

`/health` answers 200 as long as the process runs; what is wrong stands in it. `/ready` answers 503 unless all is well.
Both are open to everybody; metrics ask for the token of readers where one is set (`LLOG_HTTP_READ_TOKEN`), and with a
certificate (`LLOG_TLS_…`) the pages are served encrypted. What must stay true: the pages show no secret and change
nothing; an address that other machines reach is protected, or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol, cast

import uvicorn
from litestar import Litestar, MediaType, Request, Response, get
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.status_codes import HTTP_200_OK, HTTP_503_SERVICE_UNAVAILABLE

from llog.errors import ExposureRefused
from llog.settings import Settings
from llog.settings.exposure import check_certificate, is_loopback
from llog.settings.listening import listening_socket
from llog.telemetry.metrics import CONTENT_TYPE

COMPACTOR_PAGES_BACKLOG: Final = 64
# Requests for pages that are answered at the same time; more get 503.
COMPACTOR_PAGES_AT_ONCE: Final = 64
COMPACTOR_PAGES_STOP_MS_MAX: Final = 2_000


_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/metrics/prometheus"})
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Health = Callable[[], dict[str, Any]]


class Address(NamedTuple):
    host: str
    port: int
    url: str


class ShownMetrics(Protocol):
    """Its pages may be made in another thread."""

    def observe_http(
        self, route: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None: ...

    def snapshot(self) -> dict[str, Any]: ...

    def prometheus(self) -> bytes: ...


def make_app(health: Health, metrics: ShownMetrics, *, token: str | None = None) -> Litestar:
    def check_token(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        given = connection.headers.get("authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise NotAuthorizedException("metrics ask for the token of readers: Authorization: Bearer …")

    @get("/health", sync_to_thread=False)
    def show_health() -> dict[str, Any]:
        return health()

    @get("/ready", sync_to_thread=False)
    def show_ready() -> Response[dict[str, Any]]:
        shown = health()
        return Response(shown, status_code=HTTP_200_OK if shown["status"] == "ok" else HTTP_503_SERVICE_UNAVAILABLE)

    @get("/metrics", sync_to_thread=True, guards=[check_token])
    def show_metrics() -> dict[str, Any]:
        return metrics.snapshot()

    @get("/metrics/prometheus", sync_to_thread=True, guards=[check_token])
    def show_prometheus() -> Response[bytes]:
        # As a header, for a text's media type gets a second charset from Litestar.
        return Response(metrics.prometheus(), media_type=CONTENT_TYPE, headers={"content-type": CONTENT_TYPE})

    return Litestar(
        [show_health, show_ready, show_metrics, show_prometheus],
        exception_handlers={HTTPException: _show_error},
        openapi_config=None,
        logging_config=None,
    )


def _show_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, str]]:
    """In the form of a broker's errors."""
    told = {"error_type": type(error).__name__, "error": error.detail}
    return Response(told, status_code=error.status_code, headers=error.headers, media_type=MediaType.JSON)


class _Counted:
    """The application, with each answer counted under the page that was asked for."""

    def __init__(self, app: Litestar, metrics: ShownMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, size = time.perf_counter(), 0, 0

        async def counted_send(message: Message) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(cast(Any, scope), cast(Any, receive), cast(Any, counted_send))
        finally:
            if scope["type"] == "http":
                route = scope["path"] if scope["path"] in _PATHS else "unmatched"
                self._metrics.observe_http(route, scope["method"], status, time.perf_counter() - began, 0, size)


class _Server(uvicorn.Server):
    """Signals belong to whoever runs the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(settings: Settings, *, health: Health, metrics: ShownMetrics) -> AsyncIterator[Address]:
    """Serve the pages while the context lasts. Raises `SettingsError` where nobody can, or should, listen."""
    check_pages_exposure(settings)
    host = settings.compactor_bind_host
    listening = listening_socket(host, settings.compactor_port, of="LLOG_COMPACTOR", backlog=COMPACTOR_PAGES_BACKLOG)
    config = uvicorn.Config(
        _Counted(make_app(health, metrics, token=settings.http_read_token), metrics),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        ssl_certfile=settings.tls_cert_file,
        ssl_keyfile=settings.tls_key_file,
        backlog=COMPACTOR_PAGES_BACKLOG,
        limit_concurrency=COMPACTOR_PAGES_AT_ONCE,
        timeout_graceful_shutdown=max(1, COMPACTOR_PAGES_STOP_MS_MAX // 1_000),
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]), name="pages")
    try:
        port = listening.getsockname()[1]
        scheme = "http" if settings.tls_cert_file is None else "https"
        yield Address(host, port, f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    finally:
        server.should_exit = True
        await task


def check_pages_exposure(settings: Settings) -> None:
    """Nothing can be changed by these pages, so the token of readers and a certificate are enough."""
    check_certificate(settings)
    if is_loopback(settings.compactor_bind_host) or settings.insecure:
        return
    needed = {
        "LLOG_HTTP_READ_TOKEN": settings.http_read_token,
        "LLOG_TLS_CERT_FILE": settings.tls_cert_file,
        "LLOG_TLS_KEY_FILE": settings.tls_key_file,
    }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise ExposureRefused("LLOG_COMPACTOR_BIND_HOST", settings.compactor_bind_host, missing)
