"""The application: its routes, and what happens around each request.

The two routes that carry records are hot: their requests go from the connection straight to their function. All others
go to Litestar through the ASGI bridge. Litestar knows the hot routes too (OpenAPI page, other methods, paths with a
slash at the end), so both ways check access, map errors and set headers alike (a test compares them).

A broker without a role has no route for it: the path answers 404 like any unknown path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple, cast

from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ControllerRouterHandler

from llog.audit_log import Outcome, Principal, act_as, write_refusal
from llog.errors import InvalidArgument, LlogError, RequestOverload, UncertainOutcome
from llog.http.asgi import AsgiApp, serve_asgi
from llog.http.routes import consume, health, partitions, produce, tail, topics
from llog.http.routes import positions as offsets
from llog.http.routes.authorization import CLUSTER_PAGES, check_cluster_right, check_topic_right, identify
from llog.http.routes.errors import error_reply, status_of
from llog.http.routes.openapi import AUDIT, QUERY, openapi_config, options_routes
from llog.http.routes.runtime import RECORD, RUNTIME, BrokerServices, Runtime, record_of, response_of, runtime_of
from llog.listener.connection import ConnectionSet
from llog.listener.http1 import Exchange, HttpConnection, Reply
from llog.listener.tokens import Access
from llog.telemetry.request_log import UNMATCHED, RequestLog, RequestRecord

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


class HotRoute(NamedTuple):
    path: str
    access: str
    work: Callable[[Runtime, RequestRecord], Awaitable[Reply]]


HOT: Final = {
    produce.produce: HotRoute("/produce", Access.WRITE, produce.produce_records),
    consume.consume: HotRoute("/consume", Access.READ, consume.consume_records),
}


class _MsgspecOnly(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Pydantic's plugin would take a seventh of an embedded broker's start, wherever pydantic is installed."""
        return [*plugins, MsgspecDIPlugin()]


class HttpApp:
    """Handles each request of the HTTP front end."""

    def __init__(self, services: BrokerServices, routes: Sequence[ControllerRouterHandler]) -> None:
        self.runtime = Runtime(services)
        self._litestar = _MsgspecOnly(
            route_handlers=[*options_routes(routes), *routes],
            guards=[_guard],
            exception_handlers={kind: cast(Any, _error_response) for kind in (LlogError, HTTPException, Exception)},
            openapi_config=openapi_config("llog", _version()),
            state=State({RUNTIME: self.runtime}, deep_copy=False),
            # Bodies are read by `routes.body`, with limits of their own; requests are logged by `RequestLog`.
            request_max_body_size=None,
            logging_config=None,
        )
        self._hot = {route.path.encode(): route for handler, route in HOT.items() if handler in routes}
        self._log = RequestLog.of(services.metrics, services.settings)
        self._held: asyncio.Future[None] | None = None

    def connection(self, peers: ConnectionSet) -> HttpConnection:
        """For a listener."""
        return HttpConnection(peers, self, self.runtime.services.settings.http_read_timeout_ms)

    async def __call__(self, exchange: Exchange) -> None:
        if self._held is not None:
            await asyncio.shield(self._held)
        record = self._log.begin(exchange)
        hot = self._hot.get(exchange.path) if exchange.method == "POST" else None
        try:
            if hot is not None:
                await record.answer(await self._reply(hot, record))
            else:
                await serve_asgi(cast(AsgiApp, self._litestar), record, {RECORD: record})
        finally:
            self._log.finish(record)

    async def _reply(self, route: HotRoute, record: RequestRecord) -> Reply:
        record.route = route.path
        try:
            check_access(self.runtime, record, route.access)
            return await route.work(self.runtime, record)
        except Exception as error:
            return error_reply(self.runtime, record, error)

    def hold(self, until: asyncio.Future[None]) -> None:
        """Accept requests now, and serve them when `until` is done."""
        self._held = until

        def release(_: object) -> None:
            self._held = None

        until.add_done_callback(release)

    def begin_drain(self) -> None:
        """`/ready` answers 503 from now on."""
        self.runtime.draining = True

    def begin_stop(self) -> None:
        """Polls and tails that wait are answered, `/ready` answers 503, and producing is refused."""
        self.begin_drain()
        self.runtime.stopping.set()

    def close(self) -> None:
        self.runtime.close()


def build_app(services: BrokerServices) -> HttpApp:
    routes: list[ControllerRouterHandler] = [*STATUS_ROUTES, *TOPIC_ROUTES]
    routes += READ_ROUTES if services.reads else ()
    routes += WRITE_ROUTES if services.writes else ()
    return HttpApp(services, routes)


# -- around every route ------------------------------------------------------------------------------------------------


def check_access(runtime: Runtime, record: RequestRecord, access: str) -> None:
    if runtime.services.security.authorizer is not None:
        identify(runtime, record)
    else:
        exchange = record.exchange
        sent = runtime.tokens.sent(exchange.header(b"authorization"))
        act_as(Principal(sent.holder, exchange.client[0] if exchange.client else "", record.request_id))
        runtime.tokens.check(access, sent)
    if access == Access.WRITE and runtime.stopping.is_set():
        # Requests in flight are finished; a new one would meet a producer that is closing.
        raise RequestOverload("this broker is stopping: send the request to another broker")


async def _guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Before every route of Litestar: the token, then the query. A plain function would run in a thread."""
    record = record_of(connection)
    record.route = connection.scope.get("path_template") or UNMATCHED
    record.subject = ":".join(str(value) for value in connection.path_params.values())
    access = handler.opt.get(Access.KEY, Access.EITHER)
    check_access(runtime_of(connection), record, access)
    if access == Access.OPEN:
        pass
    elif "topic" in connection.path_params:
        check_topic_right(runtime_of(connection), record, str(connection.path_params["topic"]))
    elif record.route in CLUSTER_PAGES:
        check_cluster_right(runtime_of(connection), record)
    known = handler.opt.get(QUERY)
    if known is None:
        return
    for name in connection.query_params:
        if name not in known:
            accepted = f"known are {', '.join(sorted(known))}" if known else "this route takes none"
            raise InvalidArgument(name[:100], f"unknown query parameter; {accepted}")


def _error_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    record = record_of(request)
    if "route_handler" in request.scope:
        record.route = request.scope.get("path_template") or UNMATCHED
        _audit_refusal(request.scope["route_handler"].opt.get(AUDIT), record, error)
    return response_of(error_reply(runtime_of(request), record, error))


def _audit_refusal(action: str | None, record: RequestRecord, error: Exception) -> None:
    """The line of a change that did not happen; `action` is None for routes that change nothing."""
    if action is None:
        return
    refused = isinstance(error, HTTPException) or (isinstance(error, LlogError) and status_of(error) < 500)
    outcome: Outcome = "uncertain" if isinstance(error, UncertainOutcome) else "refused" if refused else "failed"
    write_refusal(action, record.subject, outcome, error)


def _version() -> str:
    try:
        return version("leaderless-log")
    except PackageNotFoundError:
        return "0"
