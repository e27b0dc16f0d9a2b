"""Who may do what: a token for reading, another for writing.

A token opens its own kind only; where none is set, that kind is open (only on an address of this machine, or with
`LLOG_INSECURE=1`: `llog.settings.exposure`). `/health` and `/ready` are always open, because those who watch a process
must not need its secrets. What must stay true: tokens are compared in constant time, and never leave this module.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from llog.errors import InvalidArgument, RequestForbidden, RequestOverload, RequestUnauthenticated
from llog.http.listener.runtime import Access, runtime_of
from llog.settings import Settings
from llog.settings.exposure import check_exposure

__all__ = ["QUERY", "Tokens", "check_exposure", "guard"]

QUERY: Final = "llog_query"
"""In a route's `opt`: the query parameters it knows. A route without it takes any."""
_BEARER: Final = b"bearer "


class Tokens:
    def __init__(self, settings: Settings) -> None:
        self._tokens = {
            Access.READ: _encoded(settings.http_read_token),
            Access.WRITE: _encoded(settings.http_write_token),
        }

    def check(self, access: str, authorization: bytes | None) -> None:
        """`RequestUnauthenticated` for no token or an unknown one, `RequestForbidden` for that of the other kind."""
        if access == Access.OPEN:
            return
        kinds = [Access.READ, Access.WRITE] if access == Access.EITHER else [access]
        if any(self._tokens[kind] is None for kind in kinds):
            return
        given = _token(authorization)
        if given is None:
            raise RequestUnauthenticated("this needs a token: send the header Authorization: Bearer …")
        # Both are compared, always, so that the time taken tells nothing.
        matches = {kind: hmac.compare_digest(given, token or b"") for kind, token in self._tokens.items()}
        if any(matches[kind] for kind in kinds):
            return
        if any(matches[kind] and self._tokens[kind] is not None for kind in matches):
            raise RequestForbidden(f"this needs the token for {access}, and the one sent is for the other kind")
        raise RequestUnauthenticated("the token is not known here")


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Before every route: the token, then the names of the query. A coroutine, or it would be run in a thread."""
    runtime = runtime_of(connection)
    authorization = next((value for name, value in connection.scope["headers"] if name == b"authorization"), None)
    tokens: Tokens = connection.app.state["llog_tokens"]
    tokens.check(handler.opt.get(Access.KEY, Access.EITHER), authorization)
    known = handler.opt.get(QUERY)
    if known is not None:
        for name in connection.query_params:
            if name not in known:
                accepted = f"known are {', '.join(sorted(known))}" if known else "this takes none"
                raise InvalidArgument(name[:100], f"unknown query parameter; {accepted}")
    if runtime.stopping.is_set() and handler.opt.get(Access.KEY) == Access.WRITE:
        # Requests under way are finished; one that comes now would meet a producer that is closing.
        raise RequestOverload("this broker is stopping: ask another one")


def _encoded(token: str | None) -> bytes | None:
    return None if token is None else token.encode()


def _token(authorization: bytes | None) -> bytes | None:
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()
