"""A listener: it accepts connections of one protocol, with TLS where a certificate is set, and stops gracefully.

    listener = SocketListener(settings, make_connection, host="127.0.0.1", port=0, variables="LLOG_HTTP")
    await listener.start()        # listens when this returns; listener.port is the real one
    await listener.stop()         # accepts no more, answers requests in flight, within the stop timeout

The caller checks exposure (`llog.settings.listening`) before `start` and handles signals. `stop` ends in bounded time,
whatever clients do.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from llog.errors import SettingsError
from llog.listener.connection import Connection, ConnectionSet
from llog.settings import Settings
from llog.settings.listening import listening_socket

ACCEPT_BACKLOG: Final = 2_048
"""Connections that the kernel keeps until they are accepted."""
CONNECTIONS_MAX: Final = 10_000
"""Connections at once; each costs some kilobytes while it is idle. Requests on more are refused."""
STOP_MARGIN_MS: Final = 2_000
"""Time for connections to close after they were aborted."""
TLS_SHUTDOWN_MS_MAX: Final = 1_000

_log: Final = logging.getLogger("llog.listener")


class SocketListener:
    def __init__(
        self,
        settings: Settings,
        make_connection: Callable[[ConnectionSet], Connection],
        *,
        host: str,
        port: int,
        variables: str,
        scheme: str = "http",
        connections_max: int = CONNECTIONS_MAX,
        stop_timeout_ms: int | None = None,
        reuse_port: bool = False,
    ) -> None:
        """`variables` is the prefix of the two settings that errors name: `LLOG_HTTP` for `LLOG_HTTP_PORT`. With
        `reuse_port` several processes listen at the port."""
        self._settings, self._make_connection, self._variables = settings, make_connection, variables
        self.host, self.port, self._reuse_port = host, port, reuse_port
        self._scheme = scheme if settings.tls_cert_file is None else f"{scheme}s"
        self._peers = ConnectionSet(connections_max)
        self._stop_timeout_ms = settings.http_stop_timeout_ms if stop_timeout_ms is None else stop_timeout_ms
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    async def start(self) -> None:
        """`SettingsError` when the address or the certificate cannot be used."""
        loop = asyncio.get_running_loop()
        tls = tls_context(self._settings)
        listening = listening_socket(
            self.host, self.port, of=self._variables, backlog=ACCEPT_BACKLOG, reuse_port=self._reuse_port
        )
        try:
            self.port = listening.getsockname()[1]
            self._server = await loop.create_server(
                partial(self._make_connection, self._peers),
                sock=listening,
                ssl=tls,
                backlog=ACCEPT_BACKLOG,
                ssl_handshake_timeout=None if tls is None else self._settings.http_read_timeout_ms / 1_000,
                ssl_shutdown_timeout=None if tls is None else TLS_SHUTDOWN_MS_MAX / 1_000,
            )
        except BaseException:
            listening.close()
            raise
        _log.info("listening", extra={"llog": {"url": self.url}})

    async def stop(self, *, at_once: bool = False) -> None:
        """Accept no more, answer requests in flight (not `at_once`), close every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._peers.begin_stop()
        if not at_once and await self._ended(self._stop_timeout_ms):
            return
        self._peers.abort()
        if not await self._ended(STOP_MARGIN_MS):
            left = {"connections": len(self._peers.connections), "requests": len(self._peers.tasks)}
            _log.error("the listener stopped, but requests still run", extra={"llog": left})

    async def _ended(self, timeout_ms: int) -> bool:
        try:
            await asyncio.wait_for(self._peers.ended(), timeout_ms / 1_000)
        except TimeoutError:
            return False
        return True


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None without a certificate. `SettingsError` when certificate and key do not work together."""
    if settings.tls_cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (ssl.SSLError, OSError) as error:
        reason = f"certificate or key cannot be used: {error}"
        raise SettingsError("LLOG_TLS_CERT_FILE", str(settings.tls_cert_file), reason) from error
    if settings.tls_client_auth != "none":
        try:
            context.load_verify_locations(settings.tls_client_ca_file)
        except (ssl.SSLError, OSError) as error:
            reason = f"the authorities cannot be used: {error}"
            raise SettingsError("LLOG_TLS_CLIENT_CA_FILE", str(settings.tls_client_ca_file), reason) from error
        context.verify_mode = ssl.CERT_REQUIRED if settings.tls_client_auth == "required" else ssl.CERT_OPTIONAL
    return context
