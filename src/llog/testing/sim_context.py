"""The log on the simulator: a process's stores, clock and randomness as the log's coroutines want them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from llog.log.context import LogContext, LogOptions
from llog.stores.objects.port import ObjectStore
from llog.testing.sim import ActorContext


def log_context(
    ctx: ActorContext,
    *,
    options: LogOptions | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> LogContext:
    objects = ctx.objects

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    return LogContext(
        metadata=ctx.metadata,
        wal=objects,
        segments=objects,
        find_object=find,
        now_ms=ctx.now_ms,
        random_bits=ctx.random_bits,
        sleep=sleep,
        options=LogOptions() if options is None else options,
    )
