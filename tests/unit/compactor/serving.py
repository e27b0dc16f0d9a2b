"""A service at work, for tests: on a clock that they move, with jobs that they hold or fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from llog.compactor.plan import Rules
from llog.compactor.service import CompactorService
from llog.formats.values import IndexEntry, decode_value
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.settings import Settings
from tests.unit.compactor.stage import (
    Cluster,
    RememberingMetrics,
    ScriptedJobs,
    settle,
)


class Running:
    def __init__(self, cluster: Cluster, seed: int, settings: Settings, rules: Rules | None) -> None:
        self.context = cluster.open(seed, patient=True)
        self.metrics = RememberingMetrics()
        self.job_context = cluster.open(seed + 100)
        self.runner = ScriptedJobs(self.job_context)
        self.service = CompactorService(self.context, settings, self.metrics, jobs=self.runner, rules=rules)


@asynccontextmanager
async def running(
    cluster: Cluster,
    *,
    seed: int = 1,
    rules: Rules | None = None,
    held: bool = False,
    failing: Mapping[Log, Exception] | None = None,
    **overrides: object,
) -> AsyncIterator[Running]:
    """A service at work: its jobs wait until `go_on` is set when it is `held`."""
    there = Running(cluster, seed, cluster.settings(**overrides), rules)
    there.runner.failing |= failing or {}
    if held:
        there.runner.go_on.clear()
    await there.service.start()
    await settle()
    try:
        yield there
    finally:
        there.runner.go_on.set()
        stopping = asyncio.create_task(there.service.stop(timeout_ms=1_000))
        await cluster.clock.advance(2_000)
        await stopping


async def entries_of(context: LogContext, log: Log) -> list[IndexEntry]:
    return [
        decode_value(IndexEntry, record.value, str(log))
        async for record in context.metadata.scan_all(context.keys.index(log))
    ]
