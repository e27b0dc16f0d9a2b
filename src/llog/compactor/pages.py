"""The compactor's status pages over HTTP, on the address `LLOG_COMPACTOR_BIND_HOST` and `LLOG_COMPACTOR_PORT`.

An address that other machines reach needs a read token and a certificate. The pages change nothing, so a write token
is not needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from llog.errors import ExposureRefused
from llog.listener.server import SocketListener
from llog.settings import Settings
from llog.settings.listening import check_certificate, is_loopback
from llog.telemetry.request_log import HttpMetrics
from llog.telemetry.status_pages import StatusPages

COMPACTOR_CONNECTIONS_MAX: Final = 64
COMPACTOR_PAGES_STOP_MS_MAX: Final = 2_000


class _Status:
    def __init__(self, settings: Settings, metrics: HttpMetrics, health: Callable[[], dict[str, Any]]) -> None:
        self.settings, self.metrics, self.health = settings, metrics, health

    def ready(self) -> bool:
        return bool(self.health()["status"] == "ok")


@asynccontextmanager
async def serving(
    settings: Settings, *, health: Callable[[], dict[str, Any]], metrics: HttpMetrics
) -> AsyncIterator[SocketListener]:
    """Serve the pages while the context lasts. `SettingsError` when the address cannot be used or is not protected."""
    check_pages_exposure(settings)
    pages = StatusPages(_Status(settings, metrics, health))
    listener = SocketListener(
        settings,
        pages.connection,
        host=settings.compactor_bind_host,
        port=settings.compactor_port,
        variables="LLOG_COMPACTOR",
        connections_max=COMPACTOR_CONNECTIONS_MAX,
        stop_timeout_ms=COMPACTOR_PAGES_STOP_MS_MAX,
    )
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


def check_pages_exposure(settings: Settings) -> None:
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
