"""A process of the log's system tests: `python -m tests.system.log_worker ROLES NAME HISTORY`, stores by settings.

It plays a client of the workload for ever, appends each event to its history file before and after it asks, and is
killed at any moment. Nothing is buffered: what was recorded is in the file when the next step begins.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from llog.log.context import LogContext, LogOptions
from llog.log.keys import Keys, Log
from llog.settings import Settings
from llog.testing.history import Client, Noted, encode_line
from llog.testing.history.events import AnyEvent
from llog.testing.history.operators import (
    compact_chore,
    delete_now_and_then,
    fence_now_and_then,
    merge_chore,
    retain_now_and_then,
    vacuum_chore,
)
from llog.testing.history.workload import follow, tend, write, write_idempotently
from llog.wiring import ObjectStores, open_metadata_store
from tests.contexts import log_context

ORDERS, CLICKS, VISITS = Log("orders", 0), Log("orders", 1), Log("visits", 0)
LOGS: Final = (ORDERS, CLICKS, VISITS)
ROUNDS: Final = 1_000_000
"""Nobody gets that far."""
GRACE_VARIABLE: Final = "LLOG_TEST_GRACE_MS"

Role = Callable[[Client], Awaitable[None]]
ROLES: Final[dict[str, Role]] = {
    "writer": lambda c: write(c, LOGS, ROUNDS),
    "producer": lambda c: write_idempotently(c, (ORDERS, VISITS), ROUNDS, zlib.crc32(c.name.encode())),
    "compactor": lambda c: tend(c, LOGS, ROUNDS, [compact_chore, compact_chore, merge_chore]),
    "vacuum": lambda c: tend(c, LOGS, ROUNDS, [vacuum_chore]),
    "reader": lambda c: follow(c, LOGS, ROUNDS),
    "fencer": lambda c: fence_now_and_then(c, (CLICKS,), ROUNDS),
    "retention": lambda c: retain_now_and_then(c, (ORDERS, CLICKS), ROUNDS),
    "deleter": lambda c: delete_now_and_then(c, (VISITS.topic,), ROUNDS),
}
PAUSES_MS: Final = {"writer": 30, "producer": 30, "compactor": 60, "vacuum": 2_000, "reader": 60}
"""Operators rest longer: each pauses for a multiple of this."""
PAUSE_MS_DEFAULT: Final = 300


@asynccontextmanager
async def opened(settings: Settings, name: str) -> AsyncIterator[LogContext]:
    """A context as a process has it; every object is in one store."""
    metadata = await open_metadata_store(settings.metadata_url, settings)
    async with metadata, ObjectStores(settings) as stores:
        objects = await stores.at(settings.objects_url)
        options = LogOptions(writer_id=name, vacuum_grace_ms=int(os.environ[GRACE_VARIABLE]))
        yield log_context(metadata, objects, keys=Keys(settings.root_prefix), options=options)


def recorder(path: Path, name: str) -> Callable[[AnyEvent], None]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record(event: AnyEvent) -> None:
        os.write(file, encode_line(Noted(time.monotonic_ns(), name, event)))

    return record


async def main(roles: str, name: str, history: str) -> None:
    """Several roles (`reader+fencer`) share a process, each as a client of its own."""
    async with opened(Settings.from_env(), name) as context:
        clients = []
        for role in roles.split("+"):
            record = recorder(Path(f"{history}.{role}"), f"{name}/{role}")
            pause_ms = PAUSES_MS.get(role, PAUSE_MS_DEFAULT)
            client = Client(f"{name}/{role}", context, record, encoding="kafka-v2", pause_ms=pause_ms)
            clients.append(ROLES[role](client))
        await asyncio.gather(*clients)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
