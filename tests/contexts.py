"""A log's context on two stores, as most tests want it: all objects in one of them, and the machine's clock."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.port import ObjectStore


def log_context(
    metadata: MetadataStore,
    objects: ObjectStore,
    *,
    seed: int | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    keys: Keys | None = None,
    options: LogOptions | None = None,
) -> LogContext:
    """`seed`: of its ids; without one they differ from run to run."""

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    source = random.SystemRandom() if seed is None else random.Random(seed)
    return LogContext(
        metadata=metadata,
        wal=objects,
        segments=objects,
        find_object=find,
        now_ms=now_ms,
        random_bits=source.getrandbits,
        sleep=sleep,
        keys=Keys() if keys is None else keys,
        options=LogOptions() if options is None else options,
    )


async def hurry(_: float) -> None:
    """As `sleep`: let others have their turn, and no more."""
    await asyncio.sleep(0)
