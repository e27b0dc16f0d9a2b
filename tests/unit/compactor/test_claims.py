"""Claims live and die with the session of their process."""

from __future__ import annotations

import asyncio

import pytest

from llog.compactor.claims import Claims
from llog.errors import SessionLost
from llog.log.claim import holder
from llog.log.context import LogContext
from tests.unit.compactor.stage import ORDERS, Cluster, RememberingMetrics, settle


def claims_of(context: LogContext, name: str) -> tuple[Claims, RememberingMetrics]:
    metrics = RememberingMetrics()
    return Claims(context, metrics, compactor_id=name, session_timeout_ms=10_000), metrics


async def test_a_log_has_one_holder_until_it_is_given_back() -> None:
    cluster = Cluster()
    context = cluster.open()
    (one, counted), (two, _) = claims_of(context, "one"), claims_of(cluster.open(), "two")
    assert await one.take(ORDERS, 1)
    assert not await two.take(ORDERS, 1)
    await two.give(ORDERS)
    held = await holder(context, ORDERS)
    assert held is not None
    assert held.compactor_id == one.owner
    assert held.compactor_id.startswith("one/")
    await one.give(ORDERS)
    assert await two.take(ORDERS, 1)
    assert counted.claims == {"session_opened": 1, "acquired": 1, "released": 1}


async def test_a_lost_session_stops_the_work_under_its_claims_and_the_next_claim_opens_another() -> None:
    cluster = Cluster()
    claims, counted = claims_of(cluster.open(), "one")
    session = await claims.session()
    assert await claims.take_chore("vacuum")
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    working = asyncio.create_task(claims.guarded(work()))
    await settle()
    cluster.backing.expire(session)
    with pytest.raises(SessionLost):
        await working
    assert stopped.is_set()
    assert not claims.in_session
    assert await claims.take_chore("vacuum"), "its own claim went with the session"
    assert (await claims.session()) is not session
    assert counted.claims["session_lost"] == 1
    assert counted.claims["session_opened"] == 2


async def test_whoever_is_cancelled_is_not_told_of_a_lost_session() -> None:
    claims, _ = claims_of(Cluster().open(), "one")
    working = asyncio.create_task(claims.guarded(asyncio.sleep(3_600)))
    await settle()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_chore_stays_with_whoever_took_it_and_goes_with_a_close() -> None:
    cluster = Cluster()
    context = cluster.open()
    (one, _), (two, _) = claims_of(context, "one"), claims_of(cluster.open(), "two")
    assert await one.take_chore("vacuum")
    assert await one.take_chore("vacuum")
    assert not await two.take_chore("vacuum")
    await two.give_chore("vacuum")
    assert not await two.take_chore("vacuum")
    await one.give_chore("vacuum")
    assert await two.take_chore("vacuum")
    await two.close()
    assert await context.metadata.get(context.keys.chore_claim("vacuum")) is None
    with pytest.raises(SessionLost):
        await two.take_chore("vacuum")


async def test_processes_of_the_same_name_keep_each_other_out() -> None:
    cluster = Cluster()
    (one, _), (twin, _) = claims_of(cluster.open(1), "one"), claims_of(cluster.open(2), "one")
    assert await one.take(ORDERS, 1)
    assert not await twin.take(ORDERS, 1)
    await twin.give(ORDERS)
    assert not await twin.take(ORDERS, 1), "giving back what is not ours gives nothing back"
    await one.give(ORDERS)
    assert await twin.take(ORDERS, 1)
    # In the same millisecond, too: the claims differ in nothing but the process.
    assert await one.take_chore("vacuum")
    assert not await twin.take_chore("vacuum")
    await twin.give_chore("vacuum")
    assert not await twin.take_chore("vacuum")
