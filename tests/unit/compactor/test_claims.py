"""Claims end with the session of their process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llog.compactor.claims import COMPACTOR_SESSION_IDLE_MS, Claims
from llog.errors import MetadataUnavailable, MetadataUncertain, SessionLost
from llog.log.context import LogContext
from llog.pipeline.runtime.log_choice import holder
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


async def test_a_chore_that_could_not_be_given_back_is_taken_again_by_whoever_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    context = cluster.open()
    (one, counted), (two, _) = claims_of(context, "one"), claims_of(cluster.open(), "two")
    assert await one.take_chore("vacuum")

    async def away(*_: object, **__: object) -> object:
        raise MetadataUnavailable("get", "memory://", "away for less than a session")

    with monkeypatch.context() as outage:
        outage.setattr(context.metadata, "get", away)
        await one.give_chore("vacuum")
    await cluster.clock.advance(1_000)
    assert counted.claims["release_failed"] == 1
    assert not await two.take_chore("vacuum"), "the session is alive, and so is the claim"
    assert await one.take_chore("vacuum"), "otherwise no service would do the chore"
    await one.give_chore("vacuum")
    assert await two.take_chore("vacuum")


async def test_a_chore_that_was_given_back_without_an_answer_may_be_anothers_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    context = cluster.open()
    (one, _), (two, _) = claims_of(context, "one"), claims_of(cluster.open(), "two")
    assert await one.take_chore("vacuum")
    delete = context.metadata.delete

    async def no_answer(*given: Any, **named: Any) -> object:
        await delete(*given, **named)
        raise MetadataUncertain("delete", "memory://", "no answer")

    with monkeypatch.context() as outage:
        outage.setattr(context.metadata, "delete", no_answer)
        await one.give_chore("vacuum")
    await cluster.clock.advance(1_000)
    assert await two.take_chore("vacuum")
    assert not await one.take_chore("vacuum")


async def test_a_chore_taken_without_an_answer_is_known_again_by_whoever_took_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    context = cluster.open()
    (one, _), (two, _) = claims_of(context, "one"), claims_of(cluster.open(), "two")
    put = context.metadata.put

    async def no_answer(*given: Any, **named: Any) -> object:
        await put(*given, **named)
        raise MetadataUncertain("put", "memory://", "no answer")

    async def away(*_: object, **__: object) -> object:
        raise MetadataUnavailable("get", "memory://", "away for less than a session")

    with monkeypatch.context() as outage:
        outage.setattr(context.metadata, "put", no_answer)
        outage.setattr(context.metadata, "get", away)
        with pytest.raises(MetadataUnavailable):
            await one.take_chore("vacuum")
    await cluster.clock.advance(1_000)
    assert not await two.take_chore("vacuum")
    assert await one.take_chore("vacuum"), "otherwise no service would do the chore"


async def test_a_session_without_claims_is_closed_after_a_while_and_one_with_claims_is_not() -> None:
    cluster = Cluster()
    claims, counted = claims_of(cluster.open(), "one")
    assert await claims.take(ORDERS, 1)
    assert await claims.take_chore("vacuum")
    for give in (claims.give(ORDERS), claims.give_chore("vacuum")):
        cluster.clock.now += COMPACTOR_SESSION_IDLE_MS
        await claims.close_unused()
        assert claims.in_session
        await give
    cluster.clock.now += COMPACTOR_SESSION_IDLE_MS - 1
    await claims.take(ORDERS, 1)
    await claims.give(ORDERS)
    await claims.close_unused()
    assert claims.in_session, "it was just used"
    cluster.clock.now += COMPACTOR_SESSION_IDLE_MS
    await claims.close_unused()
    assert not claims.in_session
    assert list(cluster.backing.sessions.values()) == []
    assert await claims.take(ORDERS, 1)
    assert (counted.claims["session_opened"], counted.claims["session_closed"]) == (2, 1)


async def test_a_claim_that_is_being_taken_keeps_the_session() -> None:
    cluster = Cluster()
    context = cluster.open()
    claims, _ = claims_of(context, "one")
    await claims.session()
    write, go_on = context.metadata.write, asyncio.Event()

    async def slow(groups: Any) -> Any:
        await go_on.wait()
        return await write(groups)

    context.metadata.write = slow  # type: ignore[method-assign]
    taking = [asyncio.create_task(claims.take(ORDERS, 1)), asyncio.create_task(claims.take_chore("vacuum"))]
    await settle()
    cluster.clock.now += 10 * COMPACTOR_SESSION_IDLE_MS
    await claims.close_unused()
    go_on.set()
    assert await asyncio.gather(*taking) == [True, True]
