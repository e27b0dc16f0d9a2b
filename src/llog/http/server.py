"""The HTTP front end on its address, in the loop that the broker already runs.

    server = HttpServer(app, settings)
    await server.start()          # listens when this returns; server.port is the real one
    await server.stop()           # accepts no more, answers requests in flight, within LLOG_HTTP_STOP_TIMEOUT_MS

An address that other machines reach is protected, or refused before the socket is bound.
"""

from __future__ import annotations

import asyncio

from llog.http.routes.app import HttpApp
from llog.listener.server import SocketListener
from llog.settings import Settings
from llog.settings.listening import check_exposure


class HttpServer(SocketListener):
    def __init__(
        self,
        app: HttpApp,
        settings: Settings,
        *,
        host: str | None = None,
        port: int | None = None,
        shared_port: int | None = None,
    ) -> None:
        """`shared_port`: a second port, at which other processes listen too."""
        host = settings.http_bind_host if host is None else host
        port = settings.http_port if port is None else port
        super().__init__(settings, app.connection, host=host, port=port, variables="LLOG_HTTP")
        self._app = app
        self._shared: SocketListener | None = None
        if shared_port is not None:
            self._shared = SocketListener(
                settings, app.connection, host=host, port=shared_port, variables="LLOG_HTTP", reuse_port=True
            )

    async def start(self) -> None:
        """`ExposureRefused` or `SettingsError` when it cannot listen there."""
        check_exposure(self._settings, host=self.host)
        await super().start()
        if self._shared is not None:
            await self._shared.start()

    async def stop(self, *, at_once: bool = False) -> None:
        self._app.begin_stop()
        stopping = [super().stop(at_once=at_once)]
        stopping += [] if self._shared is None else [self._shared.stop(at_once=at_once)]
        await asyncio.gather(*stopping)
        self._app.close()
