"""What a process tells of itself: `/health`, `/ready`, `/metrics`, `/metrics/prometheus`. For every service.

What must stay true: the metrics pages are made in a thread. Where there are many series they take tens of milliseconds,
and whoever watches asks for them every few seconds; no request may wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from litestar import Request, Response, get

from llog.http.json.replies import RETRY_AFTER, bytes_reply, json_reply
from llog.http.json.schemas import Health, Ready
from llog.http.listener.runtime import Access, runtime_of
from llog.http.routes.openapi import operation
from llog.telemetry.metrics import CONTENT_TYPE

OK: Final = "ok"


@get(
    "/health",
    opt={Access.KEY: Access.OPEN},
    summary="How the process is; 200 for as long as it runs",
    operation_class=operation(None, {200: (Health, "`status` is ok, degraded or starting, with `reasons`.")}),
)
async def health(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return json_reply(runtime_of(request).services.health())


@get(
    "/ready",
    opt={Access.KEY: Access.OPEN},
    summary="Whether requests should be sent here",
    operation_class=operation(None, {200: (Ready, "Yes."), 503: (Ready, "Not now.")}),
)
async def ready(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    runtime = runtime_of(request)
    told = runtime.services.health()
    fine = runtime.services.ready() and not runtime.stopping.is_set()
    reasons = told.get("reasons", ())
    listed = [str(reason) for reason in reasons] if isinstance(reasons, Sequence) else []
    if runtime.stopping.is_set():
        listed.append("stopping")
    answer = Ready(fine, str(told.get("status", OK)), listed)
    return json_reply(answer, 200 if fine else 503, headers=None if fine else RETRY_AFTER)


@get(
    "/metrics",
    opt={Access.KEY: Access.READ},
    summary="Metrics as JSON",
    operation_class=operation(None, {200: (None, "Every family, by name.")}),
)
async def metrics(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    metrics = runtime_of(request).services.metrics
    return await asyncio.to_thread(lambda: json_reply(metrics.snapshot()))


@get(
    "/metrics/prometheus",
    opt={Access.KEY: Access.READ},
    summary="Metrics for Prometheus",
    operation_class=operation(None, {200: (None, "Text in Prometheus' format.")}, media_type="text/plain"),
)
async def prometheus(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    page = await asyncio.to_thread(runtime_of(request).services.metrics.prometheus)
    return bytes_reply(page, media_type=CONTENT_TYPE)
