"""Simulated stores are stores: without faults they keep the contract of their ports."""

from __future__ import annotations

import pytest

from llog.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    SessionLost,
    StoreClosed,
    ValueTooLarge,
)
from llog.limits import METADATA_VALUE_BYTES_MAX
from llog.stores.metadata.port import ABSENT, ChangeKind, Delete, Key, Put
from llog.stores.objects.port import ByteRange
from llog.testing.model_check import check_agreement
from llog.testing.sim import HOUR_MS, ActorContext, Script, World
from llog.testing.sim.metadata_server import Versions
from llog.testing.sim.object_store import SIM_LIST_PAGE_NAMES


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("atomic", "shards"), [(True, 1), (False, 4)])
def test_metadata_agrees_with_the_model_step_by_step(atomic: bool, shards: int, seed: int) -> None:
    async def actor(ctx: ActorContext) -> None:
        await check_agreement(ctx.metadata, "root", seed)

    with World(atomic_groups=atomic, shards=shards) as world:
        world.alone("it", actor)
        assert world.scheduler.calls_performed > 100


def test_a_bad_call_is_refused_before_it_is_a_call() -> None:
    async def actor(ctx: ActorContext) -> None:
        store = ctx.metadata
        for _ in range(2):  # also when the path was found good before
            with pytest.raises(InvalidArgument):
                await store.put(Key("a"), b"")
            with pytest.raises(ValueTooLarge):
                await store.put(Key("a"), bytes(METADATA_VALUE_BYTES_MAX + 1))
        with pytest.raises(InvalidArgument):
            await store.get(Key("a//b"))
        with pytest.raises(InvalidArgument):
            await store.write([[Put(Key("a"), b"1"), Delete(Key("b"))]])
        with pytest.raises(InvalidArgument):
            await ctx.objects.put("../a", [b"1"])
        await store.close()
        with pytest.raises(StoreClosed):
            await store.get(Key("a"))

    with World(atomic_groups=False) as world:
        world.alone("it", actor)
        assert world.scheduler.calls_performed == 0


def test_objects_are_as_the_port_says() -> None:
    async def actor(ctx: ActorContext) -> None:
        store = ctx.objects
        buffer = bytearray(b"abc")
        await store.put("a/1", [buffer, memoryview(b"def")])
        buffer[:] = b"xxx"
        assert bytes(await store.get("a/1")) == b"abcdef"
        assert [bytes(r) for r in await store.get_ranges("a/1", [ByteRange(1, 2), ByteRange(5, 1)])] == [b"bc", b"f"]
        tail, size = await store.get_tail("a/1", 2)
        assert (bytes(tail), size) == (b"ef", 6)
        meta = await store.head("a/1")
        assert (meta.byte_length, meta.last_modified_ms) == (6, ctx.now_ms())
        with pytest.raises(ObjectAlreadyExists):
            await store.put("a/1", [b""], if_absent=True)
        with pytest.raises(ObjectNotFound):
            await store.get("a/2")
        with pytest.raises(ObjectRangeInvalid):
            await store.get_ranges("a/1", [ByteRange(5, 2)])
        names = [f"b/{number:04d}" for number in range(2 * SIM_LIST_PAGE_NAMES)]
        for name in names:
            await store.put(name, [b"1"])
        assert [meta.name async for meta in store.list("b/")] == names
        assert [meta.name async for meta in store.list("b/", start_after=names[5])] == names[6:]
        await store.delete_many([*names, "b/missing"])
        assert [meta.name async for meta in store.list()] == ["a/1"]
        assert [meta async for meta in ctx.object_store("other").list()] == []

    with World() as world:
        world.alone("it", actor)
        assert world.objects() == {"a/1": b"abcdef"}
    with World() as world:
        assert world.objects() == {}, "worlds share nothing"


def test_a_watcher_hears_of_every_change_in_order() -> None:
    async def watcher(ctx: ActorContext) -> list[tuple[ChangeKind, str]]:
        async with ctx.metadata.watch("w") as changes:
            await ctx.metadata.put(Key("ready"), b"1")
            return [(change.kind, change.path) for change in [await anext(changes) for _ in range(4)]]

    async def writer(ctx: ActorContext) -> None:
        while await ctx.metadata.get(Key("ready")) is None:
            await ctx.sleep_ms(1)
        version = await ctx.metadata.put(Key("w/1"), b"1", expected=ABSENT)
        await ctx.metadata.put(Key("elsewhere"), b"1")
        await ctx.metadata.delete(Key("w/1"), expected=version)
        session = await ctx.metadata.open_session(timeout_ms=10_000)
        await ctx.metadata.put(Key("w/2"), b"1", session=session)
        await session.close()

    with World() as world:
        hearing = world.actor("watcher", watcher)
        world.actor("writer", writer)
        world.run()
    put, deleted = ChangeKind.PUT, ChangeKind.DELETED
    assert hearing.result == [(put, "w/1"), (deleted, "w/1"), (put, "w/2"), (deleted, "w/2")]


def test_an_exited_process_leaves_ephemeral_records_until_its_session_runs_out() -> None:
    async def owner(ctx: ActorContext) -> None:
        session = await ctx.metadata.open_session(timeout_ms=10_000)
        await ctx.metadata.put(Key("e"), b"1", session=session)

    async def witness(ctx: ActorContext) -> list[bool]:
        await ctx.sleep_ms(9_000)
        before = await ctx.metadata.get(Key("e")) is not None
        await ctx.sleep_ms(2_000)
        return [before, await ctx.metadata.get(Key("e")) is not None]

    with World() as world:
        world.actor("owner", owner)
        seen = world.actor("witness", witness)
        world.run()
    assert seen.result == [True, False]


def test_a_living_process_keeps_its_session_for_hours() -> None:
    async def owner(ctx: ActorContext) -> None:
        session = await ctx.metadata.open_session(timeout_ms=2_000)
        await ctx.sleep_ms(5 * HOUR_MS)
        assert not session.lost
        await ctx.metadata.put(Key("e"), b"1", session=session)
        await session.close()
        assert session.lost
        with pytest.raises(SessionLost):
            await ctx.metadata.put(Key("e"), b"1", session=session)

    with World() as world:
        world.alone("owner", owner)


def test_reads_of_several_keys_are_no_snapshot() -> None:
    """Another actor writes both keys between the two answers of one call."""

    async def reader(ctx: ActorContext) -> list[bytes | None]:
        found = await ctx.metadata.get_many([Key("a"), Key("b")])
        return [None if record is None else record.value for record in found]

    async def writer(ctx: ActorContext) -> None:
        await ctx.metadata.write([[Put(Key("a"), b"1"), Put(Key("b"), b"1")]])

    with World() as world:
        script = Script(world)
        reading, writing = script.actor("reader", reader), script.actor("writer", writer)
        reading.run_until("get", "a").perform(path="a")
        writing.finish()
        assert reading.finish() == [None, b"1"]


def test_groups_of_a_store_without_atomic_groups_are_written_one_by_one() -> None:
    async def writer(ctx: ActorContext) -> None:
        await ctx.metadata.write([[Put(Key("a"), b"1")], [Put(Key("b"), b"1")]])

    for atomic, expected in ((True, {"a", "b"}), (False, {"b"})):
        with World(atomic_groups=atomic) as world:
            writing = Script(world).actor("writer", writer)
            writing.run_until("put", "b").perform(path="b")
            assert set(world.records()) == expected


def test_a_store_that_reuses_versions_can_be_had_on_purpose() -> None:
    async def writer(ctx: ActorContext) -> list[int]:
        first = await ctx.metadata.put(Key("a"), b"1")
        await ctx.metadata.delete(Key("a"))
        return [first, await ctx.metadata.put(Key("a"), b"2")]

    with World() as world:
        first, second = world.alone("it", writer)
        assert second > first
    with World(versions=Versions.RESTARTING) as world:
        first, second = world.alone("it", writer)
        assert second == first
