"""The HTTP server, in the loop that the broker already runs.

    server = HttpServer(app, settings)
    await server.start()          # listens when this returns; server.port is the real one
    await server.stop()           # accepts no more, finishes what is under way, within LLOG_HTTP_STOP_TIMEOUT_MS

Signals are the process's business, not the server's. What must stay true: an address that others reach is protected or
refused before the socket is bound; `stop` ends in bounded time, whatever clients do.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from llog.errors import SettingsError
from llog.http.listener.pace import paced
from llog.http.routes.app import HttpApp
from llog.settings import Settings
from llog.settings.exposure import check_exposure
from llog.settings.listening import listening_socket

# Connections at once; whoever comes later is told 503. Each costs some kilobytes while it waits.
HTTP_CONNECTIONS_MAX: Final = 10_000
HTTP_KEEP_ALIVE_MS: Final = 75_000


_log: Final = logging.getLogger("llog.http")
# What uvicorn itself takes to notice that it shall stop, and to let go of connections it has cancelled.
_STOP_MARGIN_SECONDS: Final = 2.0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process has its own handlers."""
        yield


class HttpServer:
    def __init__(
        self,
        app: HttpApp,
        settings: Settings,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        self._app, self._settings = app, settings
        self.host = settings.http_bind_host if host is None else host
        self.port = settings.http_port if port is None else port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def scheme(self) -> str:
        return "http" if self._settings.tls_cert_file is None else "https"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    async def start(self) -> None:
        """`ExposureRefused` or `SettingsError` when it cannot listen so."""
        check_exposure(self._settings, host=self.host)
        config = self._config()
        listener = listening_socket(self.host, self.port, of="LLOG_HTTP", backlog=config.backlog)
        self.port = listener.getsockname()[1]
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="llog-http")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            listener.close()
            await self._serving
        _log.info("listening", extra={"llog": {"url": self.url}})

    async def stop(self, *, at_once: bool = False) -> None:
        """Accept no more, answer what is under way (not `at_once`), let go. Idempotent."""
        self._app.begin_stop()
        server, serving = self._server, self._serving
        if server is not None and serving is not None and not serving.done():
            server.force_exit = at_once
            server.should_exit = True
            patience = 0 if at_once else self._settings.http_stop_timeout_ms / 1_000
            await asyncio.wait({serving}, timeout=patience + _STOP_MARGIN_SECONDS)
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving}, timeout=_STOP_MARGIN_SECONDS)
            if serving.done() and not serving.cancelled() and serving.exception() is not None:
                _log.error("the server ended with an error", exc_info=serving.exception())
        self._app.close()

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        # uvicorn counts whole seconds; nothing at all would mean that it waits for ever.
        patience = max(1, -(-settings.http_stop_timeout_ms // 1_000))
        config = uvicorn.Config(
            self._app,
            http=paced(settings.http_read_timeout_ms),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=HTTP_CONNECTIONS_MAX,
            timeout_keep_alive=HTTP_KEEP_ALIVE_MS // 1_000,
            timeout_graceful_shutdown=patience,
            ssl_certfile=settings.tls_cert_file,
            ssl_keyfile=settings.tls_key_file,
        )
        try:
            config.load()
        except (ssl.SSLError, OSError) as error:
            reason = f"certificate or key cannot be used: {error}"
            raise SettingsError("LLOG_TLS_CERT_FILE", str(settings.tls_cert_file), reason) from error
        return config
