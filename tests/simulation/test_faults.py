"""Each fault, shown once by a script: what happens in the store, and what the caller is told."""

from __future__ import annotations

import asyncio

import pytest

from llog.errors import (
    ObjectStoreTimeout,
    ObjectStoreUncertain,
)
from llog.stores.metadata.port import Key
from llog.testing.sim import (
    HOUR_MS,
    ActorContext,
    Fate,
    Puppet,
    Script,
    SeededChooser,
    SimFault,
    SimFaults,
    World,
)
from tests.simulation.actors import K, get_once, put_once


def after_put(fault: SimFault) -> tuple[World, Puppet]:
    world = World()
    writer = Script(world).actor("w", put_once)
    writer.run_until("put").perform(fault)
    return world, writer


@pytest.mark.parametrize(
    ("fault", "told", "stored"),
    [
        (SimFault.LOST_REPLY, "MetadataUncertain", True),
        (SimFault.LOST_REQUEST, "MetadataUncertain", False),
        (SimFault.LATE_WRITE, "MetadataUncertain", False),
        (SimFault.UNAVAILABLE, "MetadataUnavailable", False),
        (SimFault.CRASH_BEFORE, None, False),
        (SimFault.CRASH_AFTER, None, True),
        (SimFault.CRASH_IN_FLIGHT, None, False),
        (SimFault.STALL_BEFORE, None, False),
        (SimFault.STALL_AFTER, None, True),
        (SimFault.DELAY_REQUEST, None, False),
        (SimFault.DELAY_REPLY, None, True),
    ],
)
def test_effect_and_answer_of_a_write_under_each_fault(fault: SimFault, told: str | None, stored: bool) -> None:
    world, writer = after_put(fault)
    with world:
        assert ("k" in world.records(), writer.result) == (stored, told)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (SimFault.LOST_REPLY, "MetadataTimeout"),
        (SimFault.UNAVAILABLE, "MetadataUnavailable"),
        (SimFault.CRASH_BEFORE, None),
        (SimFault.STALE_READ, b"old"),
    ],
)
def test_answer_of_a_read_under_each_fault(fault: SimFault, told: object) -> None:
    async def prepare(ctx: ActorContext) -> None:
        await ctx.metadata.put(K, b"old")
        await ctx.metadata.put(K, b"new")

    with World() as world:
        world.alone("prepare", prepare)
        reader = Script(world).actor("r", get_once)
        reader.run_until("get").perform(fault)
        assert reader.result == told


@pytest.mark.parametrize(
    "fault", [SimFault.STALL_BEFORE, SimFault.STALL_AFTER, SimFault.DELAY_REQUEST, SimFault.DELAY_REPLY]
)
def test_a_delayed_actor_ends_later(fault: SimFault) -> None:
    world, writer = after_put(fault)
    with world:
        before_ms = world.now_ms()
        assert writer.finish() == "done"
        assert world.now_ms() - before_ms == (2 * HOUR_MS if "STALL" in fault.name else 30_000)


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_a_crashed_actor_never_acts_again_not_even_in_its_finally() -> None:
    acted: list[str] = []

    async def stubborn(ctx: ActorContext) -> None:
        async def background() -> None:
            while True:
                await asyncio.sleep(1)
                await ctx.metadata.put(Key("heartbeat"), b"1")

        beating = asyncio.create_task(background())
        try:
            await ctx.metadata.put(K, b"1")
            acted.append("went on")
        finally:
            acted.append("finally")
            ctx.record("finally")
            await ctx.metadata.put(Key("cleanup"), b"1")
            acted.append("cleaned up")
            beating.cancel()

    async def other(ctx: ActorContext) -> None:
        await ctx.sleep_ms(HOUR_MS)
        await ctx.metadata.put(Key("other"), b"1")

    with World() as world:
        script = Script(world)
        script.actor("stubborn", stubborn).run_until("put", "k").perform(SimFault.CRASH_AFTER)
        script.actor("other", other)
        script.finish()
        assert acted == []
        assert set(world.records()) == {"k", "other"}
    assert acted == ["finally"], "thrown away with the world: its `finally` runs, but reaches no store"
    assert set(world.records()) == {"k", "other"}
    assert world.history == []


def test_what_is_left_of_a_crashed_actor_is_thrown_away_without_a_sound() -> None:
    """Whatever its `finally` tries: to wait, to begin tasks, to go on."""

    async def waits(ctx: ActorContext) -> None:
        try:
            await ctx.metadata.get(K)
        finally:
            await asyncio.sleep(1)

    async def begins_tasks(ctx: ActorContext) -> None:
        try:
            await ctx.metadata.get(K)
        finally:
            await asyncio.gather(asyncio.sleep(1), ctx.metadata.get(K))

    async def will_not_go(ctx: ActorContext) -> None:
        for _ in range(3):
            try:
                await ctx.metadata.get(K)
            except BaseException:
                continue

    async def generates(ctx: ActorContext) -> None:
        async for _ in ctx.metadata.scan_all(Key("dir")):
            pass

    for actor in (waits, begins_tasks, will_not_go, generates):
        with World() as world:
            Script(world).actor("it", actor).run_until("*").crash()
        assert world.records() == {}


def test_the_session_of_a_crashed_actor_runs_out_later() -> None:
    async def owner(ctx: ActorContext) -> None:
        session = await ctx.metadata.open_session(timeout_ms=10_000)
        await ctx.metadata.put(K, b"1", session=session)
        await ctx.metadata.get(K)

    with World() as world:
        script = Script(world)
        script.actor("owner", owner).run_until("get").crash()
        script.pass_time(9_999)
        assert "k" in world.records()
        script.pass_time(1)
        assert "k" not in world.records()


def test_requests_of_a_crashed_actor_may_still_arrive() -> None:
    async def two_at_once(ctx: ActorContext) -> None:
        await asyncio.gather(ctx.metadata.put(Key("a"), b"1"), ctx.metadata.put(Key("b"), b"1"))

    with World() as world:
        script = Script(world)
        script.actor("it", two_at_once).run_until("put", "a").perform(SimFault.CRASH_BEFORE, path="a")
        assert [call.words() for call in script.late()] == ["puts b: 1"]
        script.land("put", "b")
        assert set(world.records()) == {"b"}


def test_a_request_on_its_way_may_land_after_its_sender_was_replaced() -> None:
    world, writer = after_put(SimFault.CRASH_IN_FLIGHT)
    with world:
        script = Script(world)
        assert writer.actor.crashed
        assert script.actor("successor", get_once).finish() is None
        script.land("put", "k")
        assert world.records()["k"].value == b"w"


def test_another_takes_the_place_of_a_crashed_actor() -> None:
    async def worker(ctx: ActorContext) -> None:
        await ctx.metadata.put(Key(f"by/{ctx.name}"), b"1")

    faults = SimFaults(frozenset({SimFault.CRASH_AFTER}), budget=2, rate=1.0)
    with World(SeededChooser(0), faults=faults) as world:
        world.actor("worker", worker, restarts=5)
        world.run()
        assert set(world.records()) == {"by/worker", "by/worker.2", "by/worker.3"}
        assert [actor.state for actor in world.scheduler.actors] == ["crashed", "crashed", "ended"]


# -- late writes -------------------------------------------------------------------------------------------------------


def test_a_late_write_lands_when_its_condition_still_holds() -> None:
    world, _ = after_put(SimFault.LATE_WRITE)
    with world:
        Script(world).land("put", "k")
        assert world.records()["k"].value == b"w"


def test_a_late_write_is_refused_when_its_condition_holds_no_more() -> None:
    world, _ = after_put(SimFault.LATE_WRITE)
    with world:
        script = Script(world)
        assert script.actor("other", put_once).finish() == "done"
        script.land("put", "k")
        assert world.records()["k"].value == b"other"
        assert "late, of w: puts k expecting nothing there: w → refused: exists already" in world.trace.printed()


def test_a_write_whose_caller_gave_up_may_land_later() -> None:
    async def impatient(ctx: ActorContext) -> str:
        try:
            async with asyncio.timeout(10):
                await ctx.metadata.put(K, b"1")
        except TimeoutError:
            return "gave up"
        return "done"

    with World() as world:
        script = Script(world)
        it = script.actor("it", impatient)
        it.run_until("put").perform(Fate(SimFault.DELAY_REQUEST, ms=60_000))
        assert it.finish() == "gave up"
        script.pass_time(60_000)
        assert "k" not in world.records()
        script.land("put", "k")
        assert "k" in world.records()


def test_calm_decides_what_becomes_of_late_writes() -> None:
    outcomes = set()
    for seed in range(20):
        faults = SimFaults(frozenset({SimFault.LATE_WRITE}), budget=1, rate=1.0)
        with World(SeededChooser(seed), faults=faults) as world:
            world.actor("w", put_once)
            world.run()
            world.calm()
            assert world.scheduler.late == []
            outcomes.add("k" in world.records())
    assert outcomes == {True, False}


# -- stale reads -------------------------------------------------------------------------------------------------------


async def write_three(ctx: ActorContext) -> None:
    for value in (b"1", b"2", b"3"):
        await ctx.metadata.put(K, value)
        await ctx.metadata.put(Key("dir/" + value.decode()), value)


def test_a_moment_can_be_read_from_later_but_not_strictly() -> None:
    async def reader(ctx: ActorContext) -> list[object]:
        plain, strict = await ctx.metadata.get(K), await ctx.metadata.get(K, strict=True)
        assert plain is not None
        assert strict is not None
        names = [r.key.path for r in await ctx.metadata.scan(Key("dir"))]
        strict_names = [r.key.path for r in await ctx.metadata.scan(Key("dir"), strict=True)]
        return [plain.value, strict.value, len(names), len(strict_names)]

    with World() as world:
        script = Script(world)
        writer = script.actor("writer", write_three)
        writer.run_until("put", "dir/2")
        moment = script.moment()
        writer.finish()
        stale = script.actor("stale", reader)
        stale.reads_as_of(moment)
        assert stale.finish() == [b"2", b"3", 1, 3]
        fresh = script.actor("fresh", reader)
        assert fresh.finish() == [b"3", b"3", 3, 3]


def test_every_old_answer_of_a_read_is_on_the_menu_and_no_other() -> None:
    async def reader(ctx: ActorContext) -> object:
        return await get_once(ctx)

    with World(faults=SimFaults(frozenset({SimFault.STALE_READ}), budget=1, stale_states_max=9), shards=3) as world:
        world.alone("writer", write_three)
        puppet = Script(world).actor("reader", reader).run_until("get")
        [call] = puppet.waiting()
        answers = [call.perform_as_of(fate.moment) for fate in world.scheduler.menu(call)]
        assert [answer and answer.value for answer in answers] == [b"2", b"1", None]


def test_a_stale_scan_sees_what_was_deleted_since() -> None:
    async def writer(ctx: ActorContext) -> None:
        await write_three(ctx)
        for name in ("1", "2", "3"):
            await ctx.metadata.delete(Key(f"dir/{name}"))

    async def reader(ctx: ActorContext) -> list[str]:
        return [r.key.path for r in await ctx.metadata.scan(Key("dir"), start="2", limit=5)]

    with World(shards=2) as world:
        script = Script(world)
        it = script.actor("writer", writer).run_until("delete", "dir/2")
        moment = script.moment()
        it.finish()
        stale = script.actor("reader", reader)
        stale.reads_as_of(moment)
        assert stale.finish() == ["dir/2", "dir/3"]


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "stored"), [(SimFault.LOST_REPLY, True), (SimFault.LOST_REQUEST, False)])
def test_an_object_put_without_an_answer_is_uncertain(fault: SimFault, stored: bool) -> None:
    async def writer(ctx: ActorContext) -> None:
        await ctx.objects.put("o", [b"1"])

    with World() as world:
        it = Script(world).actor("it", writer, may_fail=(ObjectStoreUncertain,))
        it.run_until("put_object", "o").perform(fault)
        assert isinstance(it.actor.error, ObjectStoreUncertain)
        assert ("o" in world.objects()) is stored


def test_an_object_read_without_an_answer_is_a_timeout_and_a_list_may_fail_between_pages() -> None:
    async def reader(ctx: ActorContext) -> None:
        await ctx.objects.get("o")

    async def lister(ctx: ActorContext) -> None:
        async for _ in ctx.objects.list():
            pass

    for actor in (reader, lister):
        with World() as world:
            it = Script(world).actor("it", actor, may_fail=(ObjectStoreTimeout,))
            it.run_until("*").perform(SimFault.LOST_REPLY)
            assert isinstance(it.actor.error, ObjectStoreTimeout)


def test_a_crash_leaves_any_part_of_several_deletes_done() -> None:
    async def deleter(ctx: ActorContext) -> None:
        for name in ("a", "b", "c"):
            await ctx.objects.put(name, [b"1"])
        await ctx.objects.delete_many(["a", "b", "c"])

    with World() as world:
        it = Script(world).actor("it", deleter)
        it.run_until("delete_object", "b").perform(path="b")
        it.perform(SimFault.CRASH_BEFORE, path="c")
        assert set(world.objects()) == {"a", "c"}
