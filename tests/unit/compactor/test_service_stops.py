"""How the service stops: it lets work end, for so long, and gives back what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llog.log.context import LogContext
from llog.pipeline.runtime.log_choice import holder
from tests.unit.compactor.serving import Running, running
from tests.unit.compactor.stage import ORDERS, Cluster, Writer, lag_of, settle


@asynccontextmanager
async def held_at_work() -> AsyncIterator[tuple[Cluster, LogContext, Running]]:
    """A service in the middle of compacting a log, which does not come to its end."""
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    async with running(cluster, compactor_min_age_ms=0, compactor_trigger_age_ms=0, held=True) as there:
        await cluster.clock.advance(1_500)
        yield cluster, context, there


async def test_a_stop_lets_work_end_and_gives_claims_back() -> None:
    async with held_at_work() as (cluster, context, there):
        stopping = asyncio.create_task(there.service.stop(timeout_ms=10_000))
        await cluster.clock.advance(5_000)
        assert not stopping.done()
        assert there.service.health()["status"] == "stopping"
        there.runner.go_on.set()
        await settle()
        await stopping
        assert await lag_of(context, ORDERS) == 0
        assert cluster.backing.sessions == {}


async def test_a_stop_cuts_off_what_does_not_end_in_time() -> None:
    async with held_at_work() as (cluster, context, there):
        stopping = asyncio.create_task(there.service.stop(timeout_ms=10_000))
        await cluster.clock.advance(9_999)
        assert not stopping.done()
        await cluster.clock.advance(2)
        await stopping
        assert there.runner.at_work[ORDERS] == 0
        assert await lag_of(context, ORDERS) == 1
        assert await holder(context, ORDERS) is None
        assert cluster.backing.sessions == {}


async def test_a_stop_that_is_in_a_hurry_waits_for_nothing() -> None:
    async with held_at_work() as (cluster, context, there):
        at_once = asyncio.Event()
        stopping = asyncio.create_task(there.service.stop(timeout_ms=10_000, at_once=at_once))
        await settle()
        assert not stopping.done()
        at_once.set()
        await stopping
        assert there.runner.at_work[ORDERS] == 0
        assert await holder(context, ORDERS) is None
        assert cluster.backing.sessions == {}
