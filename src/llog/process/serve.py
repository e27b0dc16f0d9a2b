"""A broker process: stores, broker, HTTP and Kafka front ends, from start to a graceful stop.

Order of a start: the stores are opened, the broker gets its node id, the front ends listen, and the broker registers
their addresses. Order of a stop: the registration says that the broker drains, for `LLOG_HTTP_DRAIN_MS` clients are
sent elsewhere while the front ends go on serving, then these accept no more and answer requests in flight, and the
broker flushes and leaves the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from llog.broker.broker import Broker, Role
from llog.http.json import warm_up
from llog.http.routes.app import HttpApp, build_app
from llog.process.front_ends import FrontEnds
from llog.process.starting import open_patiently
from llog.settings import Settings
from llog.settings.listening import SharedPorts

_log: Final = logging.getLogger("llog.broker")


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    role: Role = "both",
    broker_id: str | None = None,
    host: str | None = None,
    port: int | None = None,
    shared: SharedPorts | None = None,
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
    its status pages (`starting`). `shared` are the ports of a worker that other workers listen at too.
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
        front_ends = FrontEnds(app, broker, settings, host=host, port=port, shared=shared)
        await front_ends.start()
        try:
            await broker.listens(front_ends.http.host, front_ends.http.port, kafka=front_ends.kafka_address)
            url = front_ends.http.url
            if on_started is not None:
                on_started(url, broker)
            fields = {"broker_id": broker.broker_id, "role": broker.role, "node_id": broker.cluster.node_id, "url": url}
            fields |= {"kafka": front_ends.kafka_url} if front_ends.kafka_url else {}
            _log.info("broker started", extra={"llog": {**fields, **settings.store_urls()}})
            await stop.wait()
            _log.info("broker stops", extra={"llog": {"broker_id": broker.broker_id}})
            await _drain(app, broker, settings.http_drain_ms / 1_000, at_once)
        finally:
            stopping = asyncio.ensure_future(front_ends.stop())
            if at_once is not None:
                hurry = asyncio.ensure_future(at_once.wait())
                await asyncio.wait([stopping, hurry], return_when=asyncio.FIRST_COMPLETED)
                if hurry.done() and not stopping.done():
                    await front_ends.stop(at_once=True)
                hurry.cancel()
            await stopping
    finally:
        await broker.close(at_once=at_once)
        served_ms = broker.context.now_ms() - broker.started_at_ms
        _log.info("broker stopped", extra={"llog": {"broker_id": broker.broker_id, "served_ms": served_ms}})


async def _drain(app: HttpApp, broker: Broker, seconds: float, at_once: asyncio.Event | None) -> None:
    """Send clients elsewhere: tell the cluster, and serve on for `seconds`, or until `at_once` is set."""
    app.begin_drain()
    waiting: list[asyncio.Future[Any]] = [
        asyncio.gather(broker.drain(), asyncio.sleep(seconds)),
        asyncio.ensure_future((at_once or asyncio.Event()).wait()),
    ]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _opened(settings: Settings, role: Role, broker_id: str | None, *, warm: bool) -> Broker:
    """Loads the kernels too: compiling them at the very first start takes seconds, during which the status pages of
    `open_patiently` answer."""
    broker = await Broker.open(settings, role=role, broker_id=broker_id, warm=warm)
    try:
        if warm:
            await asyncio.to_thread(warm_up)
        await broker.join()
    except BaseException:
        await broker.close()
        raise
    return broker
