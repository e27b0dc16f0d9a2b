"""`OPTIONS` on every path: which methods it has.

Why it exists: the router answers this by itself, but only knows the method it met first where a path has several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from litestar import Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from llog.http.listener.runtime import Access


def options_routes(routes: Sequence[ControllerRouterHandler]) -> list[ControllerRouterHandler]:
    """One per path. They must be registered before the others."""
    methods: dict[str, set[str]] = {}
    for handler in routes:
        if isinstance(handler, HTTPRouteHandler):
            for path in handler.paths:
                methods.setdefault(path, {"OPTIONS"}).update(handler.http_methods)
    return [_options_route(path, known) for path, known in methods.items()]


def _options_route(path: str, methods: Iterable[str]) -> ControllerRouterHandler:
    allowed = ", ".join(sorted(methods))

    @route(path, http_method="OPTIONS", status_code=204, include_in_schema=False, opt={Access.KEY: Access.OPEN})
    async def options() -> Response[None]:
        return Response(None, status_code=204, headers={"allow": allowed})

    return options
