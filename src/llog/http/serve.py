"""One broker process: stores, broker and HTTP front end, from start to a graceful stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from llog.broker.broker import Broker, Role
from llog.http.json import warm_up
from llog.http.routes.app import build_app
from llog.http.server import HttpServer
from llog.http.starting import open_patiently
from llog.settings import Settings

_log: Final = logging.getLogger("llog.broker")


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    role: Role = "both",
    broker_id: str | None = None,
    host: str | None = None,
    port: int | None = None,
    at_once: asyncio.Event | None = None,
    warmed: asyncio.Future[None] | None = None,
    patient: bool = False,
    on_started: Callable[[str, Broker], None] | None = None,
) -> None:
    """Serve until `stop` is set and LLOG_HTTP_DRAIN_MS are over; then accept no more, answer requests in flight, flush
    and close the stores.

    When `at_once` is set too, requests in flight are aborted; nothing acknowledged is lost either way. `on_started`
    gets the URL and the broker. With `warmed`, the caller loads the compiled kernels (`warm_up`): the broker listens at
    once and requests wait for that future. With `patient`, it waits for stores that do not answer, and reports so on
    its status pages (`starting`).
    """
    opening = partial(_opened, settings, role, broker_id, warm=warmed is None)
    broker: Broker | None
    if patient:
        broker, port = await open_patiently(opening, settings, stop, broker_id=broker_id, host=host, port=port)
        if broker is None:
            return
    else:
        broker = await opening()
    try:
        app = build_app(broker)
        if warmed is not None:
            app.hold(warmed)
        server = HttpServer(app, settings, host=host, port=port)
        await server.start()
        try:
            await broker.listens(server.host, server.port)
            if on_started is not None:
                on_started(server.url, broker)
            fields = {"broker_id": broker.broker_id, "role": broker.role, "url": server.url, **settings.store_urls()}
            _log.info("broker started", extra={"llog": fields})
            await stop.wait()
            _log.info("broker stops", extra={"llog": {"broker_id": broker.broker_id}})
            app.begin_drain()
            await _drain(settings.http_drain_ms / 1_000, at_once)
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
        await broker.close(at_once=at_once)
        served_ms = broker.context.now_ms() - broker.started_at_ms
        _log.info("broker stopped", extra={"llog": {"broker_id": broker.broker_id, "served_ms": served_ms}})


async def _drain(seconds: float, at_once: asyncio.Event | None) -> None:
    """Wait for `seconds`, or until `at_once` is set."""
    if seconds:
        with suppress(TimeoutError):
            await asyncio.wait_for((at_once or asyncio.Event()).wait(), seconds)


async def _opened(settings: Settings, role: Role, broker_id: str | None, *, warm: bool) -> Broker:
    """Loads the kernels too: compiling them at the very first start takes seconds, during which the status pages of
    `open_patiently` answer."""
    broker = await Broker.open(settings, role=role, broker_id=broker_id, warm=warm)
    try:
        if warm:
            await asyncio.to_thread(warm_up)
    except BaseException:
        await broker.close()
        raise
    return broker
