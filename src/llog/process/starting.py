"""Starting while stores do not answer: the broker waits for them and reports it.

Brokers and stores are often started together. A broker that exited would be started again and again; a broker that
waited in silence would look as if it hung. So it already listens: `/health` and `/ready` say what it waits for, every
other path answers 503 with Retry-After. It waits only for errors that may pass; others (a wrong setting, the store of
another cluster) end the start. It listens at the same address before and after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from llog.errors import StoreError
from llog.limits import STORE_PROBE_MS
from llog.listener.http1 import RETRY_AFTER, Reply
from llog.listener.server import SocketListener
from llog.settings import Settings
from llog.settings.listening import check_exposure
from llog.telemetry.metrics import BrokerMetrics
from llog.telemetry.request_log import RequestRecord
from llog.telemetry.status_pages import StatusPages, refused

STARTING_SILENCE_MS: Final = 3_000
"""A broker that could not open its stores for this long begins to listen and says what it waits for."""

_log: Final = logging.getLogger("llog.broker")
T = TypeVar("T")


class _Starting:
    """The status of a broker that is starting."""

    def __init__(self, settings: Settings, broker_id: str | None) -> None:
        self.settings, self.metrics = settings, BrokerMetrics()
        self._broker_id = settings.client_identifier if broker_id is None else broker_id
        self.reason = "its stores are being opened"

    def health(self) -> Mapping[str, object]:
        return {"status": "starting", "broker_id": self._broker_id, "reasons": [self.reason]}

    def ready(self) -> bool:
        return False

    def try_again(self, record: RequestRecord) -> Reply:
        reason = f"the broker is starting: {self.reason}; nothing was accepted, try again"
        return refused(record, 503, "RequestOverload", reason, RETRY_AFTER)


async def open_patiently(
    opening: Callable[[], Awaitable[T]],
    settings: Settings,
    stop: asyncio.Event,
    *,
    broker_id: str | None = None,
    host: str | None = None,
    port: int | None = None,
) -> tuple[T | None, int | None]:
    """The result of `opening` once the stores answer, and the port to listen on; None when `stop` was set first.
    Raises errors that do not pass."""
    starting = _Starting(settings, broker_id)
    attempt = asyncio.ensure_future(_until_open(opening, starting))
    stopping = asyncio.ensure_future(stop.wait())
    listener: SocketListener | None = None
    try:
        await asyncio.wait(
            {attempt, stopping}, timeout=STARTING_SILENCE_MS / 1_000, return_when=asyncio.FIRST_COMPLETED
        )
        if not attempt.done() and not stopping.done():
            listener = _listener(starting, host, port)
            await listener.start()
            port = listener.port
            await asyncio.wait({attempt, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            return await attempt, port
        return None, port
    finally:
        stopping.cancel()
        if not attempt.done():
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        if listener is not None:
            await listener.stop()


def _listener(starting: _Starting, host: str | None, port: int | None) -> SocketListener:
    settings = starting.settings
    host = settings.http_bind_host if host is None else host
    check_exposure(settings, host=host)
    pages = StatusPages(starting, starting.try_again)
    port = settings.http_port if port is None else port
    return SocketListener(settings, pages.connection, host=host, port=port, variables="LLOG_HTTP")


async def _until_open(opening: Callable[[], Awaitable[T]], starting: _Starting) -> T:
    logged = ""
    while True:
        try:
            return await opening()
        except StoreError as error:
            if not error.retriable:
                raise
            starting.reason = f"it waits for a store: {error}"
            if type(error).__name__ != logged:
                logged = type(error).__name__
                _log.warning("waiting for a store", extra={"llog": {"error_type": logged, "error": str(error)}})
        await asyncio.sleep(STORE_PROBE_MS / 1_000)
