"""The application: which routes there are, and what stands around them.

A broker without a role has no route for it, so that asking there is a 404 like any unknown path. Routes are made of the
log's own functions and of the services the broker brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, cast

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ControllerRouterHandler

from llog.errors import LlogError
from llog.http.listener.hot_routes import HotRoutes
from llog.http.listener.runtime import RUNTIME, Runtime
from llog.http.routes import consume, errors, health, partitions, produce, tail, topics
from llog.http.routes import positions as offsets
from llog.http.routes.auth import Tokens, guard
from llog.http.routes.openapi import openapi_config
from llog.http.routes.options import options_routes
from llog.http.routes.request_log import Receive, RequestLog, Scope, Send
from llog.http.routes.services import BrokerServices, StatusServices

STATUS_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    health.health,
    health.ready,
    health.metrics,
    health.prometheus,
)
TOPIC_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    topics.create,
    topics.list_all,
    topics.describe,
    topics.alter,
    topics.grow,
    topics.remove,
    partitions.fence,
    partitions.unfence,
    partitions.offsets,
    partitions.delete_records,
)
READ_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (
    consume.consume,
    tail.tail,
    offsets.commit_offsets,
    offsets.fetch_offsets,
)
WRITE_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (produce.produce,)
HOT: Final[tuple[HTTPRouteHandler, ...]] = (produce.produce, consume.consume)


class _MsgspecOnly(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """No others: pydantic's takes a seventh of an embedded broker's start, wherever pydantic happens to be."""
        return [*plugins, MsgspecDIPlugin()]


class HttpApp:
    """An ASGI application, and the handle to stop it."""

    def __init__(self, runtime: Runtime, routes: Sequence[ControllerRouterHandler]) -> None:
        self.runtime = runtime
        settings = runtime.services.settings
        self.litestar = _MsgspecOnly(
            route_handlers=[*options_routes(routes), *routes],
            guards=[guard],
            exception_handlers={
                LlogError: cast(Any, errors.answer_error),
                HTTPException: cast(Any, errors.answer_http_error),
                Exception: cast(Any, errors.answer_unforeseen),
            },
            openapi_config=openapi_config("llog", _version()),
            state=State({RUNTIME: runtime, "llog_tokens": Tokens(settings)}, deep_copy=False),
            # Bodies are read by `body`, with limits of their own; requests are logged by `RequestLog`.
            request_max_body_size=None,
            logging_config=None,
        )
        hot = [handler for handler in HOT if handler in routes]
        self._asgi = RequestLog(HotRoutes(self.litestar, hot), runtime.services.metrics)
        self._held: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._held is not None and scope["type"] == "http":
            await asyncio.shield(self._held)
        await self._asgi(scope, receive, send)

    def hold(self, until: asyncio.Future[None]) -> None:
        """Requests are accepted now and begun then."""
        self._held = until

        def go(_: object) -> None:
            self._held = None

        until.add_done_callback(go)

    def begin_stop(self) -> None:
        """Polls and tails that wait answer now, `/ready` says no, and producing is refused."""
        self.runtime.stopping.set()

    def close(self) -> None:
        self.runtime.close()


def build_app(services: BrokerServices) -> HttpApp:
    routes: list[ControllerRouterHandler] = [*STATUS_ROUTES, *TOPIC_ROUTES]
    routes += READ_ROUTES if services.reads else ()
    routes += WRITE_ROUTES if services.writes else ()
    return HttpApp(Runtime(services, services), routes)


def build_status_app(services: StatusServices) -> HttpApp:
    """Health and metrics alone, for a service that is not a broker."""
    return HttpApp(Runtime(services), STATUS_ROUTES)


def _version() -> str:
    try:
        return version("leaderless-log")
    except PackageNotFoundError:
        return "0"
