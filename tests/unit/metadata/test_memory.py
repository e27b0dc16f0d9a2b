"""What the reference model promises beyond the contract: routes, clocks, sharing by name, bounded watches."""

from __future__ import annotations

import asyncio

import pytest

from llog.errors import InvalidArgument, SessionLost, SettingsError
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.memory import MemoryBacking, MemoryStore, open_from_url
from llog.stores.metadata.port import ChangeKind, Key, Put


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def test_a_key_is_not_found_by_a_route_to_another_shard() -> None:
    store = MemoryStore(shards=4)
    shard = store.backing.shard_of
    other = next(route for route in map(str, range(100)) if shard(Key("a", route)) != shard(Key("a", "mine")))
    version = await store.put(Key("a", "mine"), b"1")
    found = await store.get(Key("a", "mine"))
    assert found is not None
    assert found.version == version
    assert await store.get(Key("a", other)) is None


async def test_every_shard_counts_its_own_versions() -> None:
    store = MemoryStore(shards=2)
    routes = {store.backing.shard_of(Key("a", route)): route for route in map(str, range(20))}
    assert [await store.put(Key("a", routes[0]), b"1"), await store.put(Key("b", routes[1]), b"1")] == [1, 1]


async def test_sessions_run_out_by_the_injected_clock_alone() -> None:
    clock, lost = Clock(), list[str]()
    backing = MemoryBacking(clock_ms=clock)
    sleeper, witness = MemoryStore(backing), MemoryStore(backing)
    session = await sleeper.open_session(timeout_ms=2_000, on_lost=lambda: lost.append("lost"))
    await sleeper.put(Key("a"), b"1", session=session)
    clock.now_ms += 1_000_000
    assert await witness.get(Key("a")) is not None, "a client that lives sends heartbeats"
    sleeper.freeze()
    clock.now_ms += 1_999
    assert await witness.get(Key("a")) is not None
    clock.now_ms += 1
    assert session.lost
    assert await witness.get(Key("a")) is None
    await asyncio.sleep(0)
    assert lost == ["lost"]


async def test_an_expired_session_is_gone_at_once() -> None:
    store = MemoryStore()
    session = await store.open_session(timeout_ms=2_000)
    await store.put(Key("a"), b"1", session=session)
    store.backing.expire(session)
    assert await store.get(Key("a")) is None
    with pytest.raises(SessionLost):
        await store.put(Key("a"), b"1", session=session)


async def test_a_session_of_another_store_is_refused_before_anything_is_written() -> None:
    store, other = MemoryStore(), MemoryStore()
    session = await other.open_session(timeout_ms=2_000)
    with pytest.raises(InvalidArgument):
        await store.write([(Put(Key("a"), b"1"),), (Put(Key("b"), b"1", session=session),)])
    assert await store.get(Key("a")) is None


async def test_a_watcher_that_does_not_read_holds_a_bounded_queue() -> None:
    store = MemoryStore()
    async with store.watch("") as changes:
        for i in range(METADATA_WATCH_QUEUE_MAX + 5):
            await store.put(Key("a"), str(i).encode())
        assert (await anext(changes)).kind is ChangeKind.RESYNC
        kept = [await anext(changes) for _ in range(5)]
        assert [change.version for change in kept] == [METADATA_WATCH_QUEUE_MAX + i for i in range(1, 6)]
    assert not store.backing.watchers


async def test_two_openings_of_one_name_share_their_records() -> None:
    one, two = await open_from_url("memory://unit-a?shards=3"), await open_from_url("memory://unit-a")
    other = await open_from_url("memory://unit-b?atomic_groups=0")
    await one.put(Key("a"), b"1")
    assert await two.get(Key("a")) is not None
    assert await other.get(Key("a")) is None
    assert len(two.backing.shards) == 3
    assert not other.capabilities.atomic_groups


@pytest.mark.parametrize("url", ["memory://x?shards=0", "memory://x?shards=two", "memory://x?what=1", "lmdb://x"])
async def test_a_url_that_means_nothing_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        await open_from_url(url)
