"""The broker's status pages, as routes (`telemetry.status_pages` makes them)."""

from __future__ import annotations

from litestar import Request, Response, get

from llog.http.json.schemas import Health
from llog.http.routes.authorization import STATE_PAGES, describes_cluster
from llog.http.routes.openapi import operation
from llog.http.routes.runtime import record_of, response_of, runtime_of
from llog.listener.tokens import Access
from llog.telemetry.status_pages import Ready, state_page, status_page


async def _page(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    runtime, record = runtime_of(request), record_of(request)
    path = record.route
    if path in STATE_PAGES and not describes_cluster(runtime, record):
        return response_of(state_page(path, runtime.services, stopping=runtime.draining))
    return response_of(await status_page(path, runtime.services, stopping=runtime.draining))


@get(
    "/health",
    opt={Access.KEY: Access.OPEN},
    summary="The state of the process; 200 for as long as it runs",
    operation_class=operation(None, {200: (Health, "`status` is ok, degraded or starting, with `reasons`.")}),
)
async def health(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return await _page(request)


@get(
    "/ready",
    opt={Access.KEY: Access.OPEN},
    summary="Whether requests should be sent here",
    operation_class=operation(None, {200: (Ready, "Yes."), 503: (Ready, "Not now.")}),
)
async def ready(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return await _page(request)


@get(
    "/metrics",
    opt={Access.KEY: Access.READ},
    summary="Metrics as JSON",
    operation_class=operation(None, {200: (None, "Every family, by name.")}),
)
async def metrics(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return await _page(request)


@get(
    "/metrics/prometheus",
    opt={Access.KEY: Access.READ},
    summary="Metrics for Prometheus",
    operation_class=operation(None, {200: (None, "Text in Prometheus' format.")}, media_type="text/plain"),
)
async def prometheus(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return await _page(request)
