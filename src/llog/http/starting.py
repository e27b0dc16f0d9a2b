"""A broker whose stores are away while it starts: it waits for them, and says so.

Why it exists: brokers and stores are started together, and a store may come later, or be away for a while. A broker
that ended would be started again and again; one that only waited would look as if it hung. So it listens already:
`/health` and `/ready` tell what it waits for, everything else is answered with "try again".

What must stay true: it waits only for what may pass; what will never work (a wrong setting, another cluster's store)
ends it with words. It listens at the same address before and after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from llog.errors import StoreError
from llog.http.json.replies import ENCODER, RETRY_AFTER
from llog.http.json.schemas import ErrorAnswer
from llog.http.listener.runtime import Runtime
from llog.http.listener.server import HttpServer
from llog.http.routes.app import STATUS_ROUTES, HttpApp
from llog.http.routes.request_log import Receive, Scope, Send
from llog.limits import STORE_PROBE_MS
from llog.settings import Settings
from llog.telemetry.metrics import BrokerMetrics

# A broker that could not open its stores for so long listens already, to say what it waits for.
STARTING_SILENCE_MS: Final = 3_000


_log: Final = logging.getLogger("llog.broker")
_OPEN_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/metrics/prometheus"})
T = TypeVar("T")


class _Waiting:
    """What a process that starts can tell of itself."""

    def __init__(self, settings: Settings, broker_id: str | None) -> None:
        self.settings, self.metrics = settings, BrokerMetrics()
        self._broker_id = settings.client_identifier if broker_id is None else broker_id
        self.reason = "its stores are being opened"

    def health(self) -> Mapping[str, object]:
        return {"status": "starting", "broker_id": self._broker_id, "reasons": [self.reason]}

    def ready(self) -> bool:
        return False


class _StartingApp(HttpApp):
    def __init__(self, waiting: _Waiting) -> None:
        super().__init__(Runtime(waiting), STATUS_ROUTES)
        self._waiting = waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await super().__call__(scope, receive, send)
            return
        words = f"the broker is starting: {self._waiting.reason}; nothing was accepted"
        body = ENCODER.encode(ErrorAnswer("RequestOverload", words, "", ""))
        headers = {"content-type": "application/json", "content-length": str(len(body)), **RETRY_AFTER}
        listed = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 503, "headers": listed})
        await send({"type": "http.response.body", "body": body})


async def open_patiently(
    opening: Callable[[], Awaitable[T]],
    settings: Settings,
    stop: asyncio.Event,
    *,
    broker_id: str | None = None,
    host: str | None = None,
    port: int | None = None,
) -> tuple[T | None, int | None]:
    """What `opening` gives, once the stores are there, and the port to listen on. None when it was stopped meanwhile.
    Raises what waiting does not help against."""
    waiting = _Waiting(settings, broker_id)
    attempt = asyncio.ensure_future(_until_open(opening, waiting))
    stopping = asyncio.ensure_future(stop.wait())
    server: HttpServer | None = None
    try:
        await asyncio.wait(
            {attempt, stopping}, timeout=STARTING_SILENCE_MS / 1_000, return_when=asyncio.FIRST_COMPLETED
        )
        if not attempt.done() and not stopping.done():
            server = HttpServer(_StartingApp(waiting), settings, host=host, port=port)
            await server.start()
            port = server.port
            await asyncio.wait({attempt, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            return await attempt, port
        return None, port
    finally:
        stopping.cancel()
        if not attempt.done():
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        if server is not None:
            await server.stop()


async def _until_open(opening: Callable[[], Awaitable[T]], waiting: _Waiting) -> T:
    told = ""
    while True:
        try:
            return await opening()
        except StoreError as error:
            if not error.retriable:
                raise
            waiting.reason = f"it waits for a store: {error}"
            if type(error).__name__ != told:
                told = type(error).__name__
                _log.warning("waiting for a store", extra={"llog": {"error_type": told, "error": str(error)}})
        await asyncio.sleep(STORE_PROBE_MS / 1_000)
