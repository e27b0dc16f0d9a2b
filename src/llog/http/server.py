"""The HTTP front end on its address, in the loop that the broker already runs.

    server = HttpServer(app, settings)
    await server.start()          # listens when this returns; server.port is the real one
    await server.stop()           # accepts no more, answers requests in flight, within LLOG_HTTP_STOP_TIMEOUT_MS

An address that other machines reach is protected, or refused before the socket is bound.
"""

from __future__ import annotations

from llog.http.routes.app import HttpApp
from llog.listener.server import SocketListener
from llog.settings import Settings
from llog.settings.listening import check_exposure


class HttpServer(SocketListener):
    def __init__(self, app: HttpApp, settings: Settings, *, host: str | None = None, port: int | None = None) -> None:
        host = settings.http_bind_host if host is None else host
        port = settings.http_port if port is None else port
        super().__init__(settings, app.connection, host=host, port=port, variables="LLOG_HTTP")
        self._app = app

    async def start(self) -> None:
        """`ExposureRefused` or `SettingsError` when it cannot listen there."""
        check_exposure(self._settings, host=self.host)
        await super().start()

    async def stop(self, *, at_once: bool = False) -> None:
        self._app.begin_stop()
        await super().stop(at_once=at_once)
        self._app.close()
