"""One broker process: stores, broker and HTTP front end, from start to a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llog.broker.broker import Broker, Role
from llog.http.app import build_app
from llog.http.server import HttpServer
from llog.settings import Settings


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    role: Role = "both",
    broker_id: str | None = None,
    host: str | None = None,
    port: int | None = None,
    at_once: asyncio.Event | None = None,
    on_started: Callable[[str, Broker], None] | None = None,
) -> None:
    """Until `stop` is set: accept no more, answer what is under way, flush, let go. With `at_once` set too, what is
    under way is cut off; nothing acknowledged is lost either way. `on_started` is told where it listens."""
    broker = await Broker.open(settings, role=role, broker_id=broker_id)
    try:
        server = HttpServer(build_app(broker), settings, host=host, port=port)
        await server.start()
        try:
            await broker.listens(server.host, server.port)
            if on_started is not None:
                on_started(server.url, broker)
            await stop.wait()
        finally:
            stopping = asyncio.ensure_future(server.stop())
            if at_once is not None:
                hurry = asyncio.ensure_future(at_once.wait())
                await asyncio.wait([stopping, hurry], return_when=asyncio.FIRST_COMPLETED)
                if hurry.done() and not stopping.done():
                    await server.stop(at_once=True)
                hurry.cancel()
            await stopping
    finally:
        await broker.close()
