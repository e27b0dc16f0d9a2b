"""Sessions: kept alive in time, and given up no later than the server gives them up."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from llog.errors import InvalidArgument, SessionLost
from llog.stores.metadata.oxia.client import InvalidRequest, OxiaClient
from llog.stores.metadata.oxia.client.sessions import open_shard_session
from llog.stores.metadata.oxia.store import OxiaStore
from llog.stores.metadata.port import Key, Put
from tests.patience import PATIENCE_SECONDS
from tests.unit.oxia.fake_server import FakeOxia

TIMEOUT_MS = 2_000


@pytest.mark.serial
async def test_heartbeats_are_faster_than_a_third_of_the_timeout(server: FakeOxia, client: OxiaClient) -> None:
    began = asyncio.get_running_loop().time()
    session = await open_shard_session(0, TIMEOUT_MS, client.options, client._directory, clock=lambda: 100.0)
    late = asyncio.get_running_loop().time() - began
    while len(server.heartbeats) < 3:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        late += asyncio.get_running_loop().time() - before - 0.01  # what a busy machine took, of them as of us
    times = [began, *(at for at, _ in server.heartbeats)]
    assert all(later - earlier < TIMEOUT_MS / 1_000 / 3 + late for earlier, later in pairwise(times))
    assert not session.lost
    await session.close()
    assert session.id not in server.sessions


async def test_a_session_that_the_server_dropped_is_lost_at_once_and_reported_once(
    server: FakeOxia, client: OxiaClient
) -> None:
    lost = asyncio.Event()
    calls: list[None] = []

    def on_lost() -> None:
        calls.append(None)
        lost.set()

    session = await client.open_session(0, TIMEOUT_MS, on_lost)
    server.sessions.clear()
    await asyncio.wait_for(lost.wait(), PATIENCE_SECONDS)
    assert session.lost
    session.mark_lost("again")
    await session.close()
    assert len(calls) == 1


async def test_loss_is_assumed_by_the_own_clock_without_an_answer(server: FakeOxia, client: OxiaClient) -> None:
    now = [100.0]
    session = await open_shard_session(0, TIMEOUT_MS, client.options, client._directory, clock=lambda: now[0])
    now[0] += TIMEOUT_MS / 1_000 - 0.01
    assert not session.lost
    now[0] += 0.02
    assert session.lost, "even before any task had a chance to run"
    await session.close()


async def test_heartbeats_that_hang_end_in_loss_by_the_timeout(server: FakeOxia, client: OxiaClient) -> None:
    lost = asyncio.Event()
    server.heartbeats_hang = True
    session = await client.open_session(0, TIMEOUT_MS, lost.set)
    await asyncio.wait_for(lost.wait(), PATIENCE_SECONDS)
    assert session.lost


@pytest.mark.parametrize("timeout_ms", [0, 1_999, 300_001])
async def test_a_timeout_the_server_refuses_is_refused_here(client: OxiaClient, timeout_ms: int) -> None:
    with pytest.raises(InvalidRequest):
        await client.open_session(0, timeout_ms)


async def test_a_session_spans_the_shards_it_is_used_on_and_is_lost_as_a_whole(server: FakeOxia) -> None:
    server.leaders = {0: server.address, 1: server.address}
    store = OxiaStore(await server.client(), "oxia://fake")
    routes = {store.client.shard_of(route): route for route in (f"r{i}" for i in range(50))}
    calls: list[None] = []
    session = await store.open_session(timeout_ms=60_000, on_lost=lambda: calls.append(None))
    assert not server.sessions, "nothing is opened before it is used"
    for shard in (0, 1):
        await store.put(Key(f"a/{shard}", routes[shard]), b"v", session=session)
    assert len(server.sessions) == 2
    server.sessions.discard(1)
    with pytest.raises(SessionLost):
        await store.put(Key("a/again", routes[0]), b"v", session=session)
    assert session.lost
    assert len(calls) == 1
    await session.close()
    assert not server.sessions, "what was left of it on the other shard is ended"
    [outcome] = await store.write([(Put(Key("a/late", routes[1]), b"v", None, session),)])
    assert isinstance(outcome, SessionLost)
    await store.close()


async def test_a_session_of_another_store_is_refused(server: FakeOxia) -> None:
    one, two = OxiaStore(await server.client(), "oxia://one"), OxiaStore(await server.client(), "oxia://two")
    session = await one.open_session(timeout_ms=60_000)
    with pytest.raises(InvalidArgument):
        await two.put(Key("a"), b"v", session=session)
    await one.close()
    await two.close()
