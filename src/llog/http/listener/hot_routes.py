"""The routes that carry records, straight from the connection to their function.

Why it exists: finding a route, copying the request for its guard and wrapping its answer are worth their price for
routes that are called now and then. For the two that carry all the traffic they would be a third of a request's cost.

What must stay true: the framework knows these routes too (the OpenAPI page, other methods, paths with a slash at the
end), and what it would do is done here: the guard first, every error by the same table, the same headers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, cast

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from llog.errors import LlogError
from llog.http.listener.exchange import EXCHANGE, Exchange
from llog.http.listener.runtime import RUNTIME
from llog.http.routes import errors
from llog.http.routes.auth import guard
from llog.http.routes.request_log import RECORD, App, Receive, RequestRecord, Scope, Send
from llog.limits import HTTP_SEND_PIECE_BYTES

Work = Callable[[Request[Any, Any, Any]], Awaitable[Response[bytes]]]
_METHOD: Final = "POST"


class _Route(NamedTuple):
    path: str
    handler: HTTPRouteHandler
    work: Work


class HotRoutes:
    """The framework's application, past which requests for these routes go."""

    def __init__(self, app: Litestar, handlers: Iterable[HTTPRouteHandler]) -> None:
        self._app, self._framework, self._runtime = app, cast(App, app), app.state[RUNTIME]
        self._routes: dict[str, _Route] = {}
        for handler in handlers:
            [path] = handler.paths
            assert handler.http_methods == {_METHOD}, handler
            self._routes[path] = _Route(path, handler, cast(Work, handler.fn))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == _METHOD else None
        if route is None:
            await self._framework(scope, receive, send)
            return
        scope["app"] = scope["litestar_app"] = self._app
        scope[RUNTIME] = self._runtime
        scope["route_handler"], scope["path_template"] = route.handler, route.path
        scope.setdefault("state", {})
        request: Request[Any, Any, Any] = Request(cast(Any, scope), cast(Any, receive), cast(Any, send))
        reply = await _answer(route, request)
        exchange: Exchange | None = scope.get(EXCHANGE)
        if exchange is None or len(reply.content) > HTTP_SEND_PIECE_BYTES:
            await _send(reply, send)
        else:
            await _send_at_once(reply, exchange, scope[RECORD])


async def _answer(route: _Route, request: Request[Any, Any, Any]) -> Response[bytes]:
    try:
        await guard(request, route.handler)
        return await route.work(request)
    except LlogError as error:
        return errors.answer_error(request, error)
    except HTTPException as error:
        return errors.answer_http_error(request, error)
    except Exception as error:
        return errors.answer_unforeseen(request, error)


async def _send(reply: Response[bytes], send: Send) -> None:
    body = reply.content
    # The content type is among the headers already: `replies` puts it there.
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_at_once(reply: Response[bytes], exchange: Exchange, record: RequestRecord) -> None:
    """What `_send` does, past those who count and look: they are told here."""
    body, status = reply.content, reply.status_code or 200
    headers = "".join([f"{name}: {value}\r\n" for name, value in reply.headers.items()])
    record.status, record.response_bytes = status, len(body)
    told = f"{headers}content-length: {len(body)}\r\nx-request-id: {record.request_id}\r\n"
    await exchange.answer(status, told.encode("latin-1"), body)
