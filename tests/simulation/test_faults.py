"""Each fault, shown once by a script: what happens in the store, and what the caller is told."""

from __future__ import annotations

import asyncio

import pytest

from llog.errors import (
    InvalidArgument,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
    ObjectStoreTimeout,
    ObjectStoreUncertain,
    SessionLost,
    SimulationStuck,
    VersionConflict,
)
from llog.stores.metadata.port import ABSENT, ChangeKind, Key
from llog.testing.sim import (
    HOUR_MS,
    MANY,
    ActorContext,
    Fate,
    Fault,
    Faults,
    Puppet,
    Script,
    SeededChooser,
    World,
)

K = Key("k")


async def put_once(ctx: ActorContext) -> str:
    try:
        await ctx.metadata.put(K, ctx.name.encode(), expected=ABSENT)
    except (MetadataUncertain, MetadataUnavailable, VersionConflict) as error:
        return type(error).__name__
    return "done"


async def get_once(ctx: ActorContext) -> bytes | str | None:
    try:
        found = await ctx.metadata.get(K)
    except (MetadataTimeout, MetadataUnavailable) as error:
        return type(error).__name__
    return None if found is None else found.value


def after_put(fault: Fault) -> tuple[World, Puppet]:
    world = World()
    writer = Script(world).actor("w", put_once)
    writer.run_until("put").perform(fault)
    return world, writer


@pytest.mark.parametrize(
    ("fault", "told", "stored"),
    [
        (Fault.LOST_REPLY, "MetadataUncertain", True),
        (Fault.LOST_REQUEST, "MetadataUncertain", False),
        (Fault.LATE_WRITE, "MetadataUncertain", False),
        (Fault.UNAVAILABLE, "MetadataUnavailable", False),
        (Fault.CRASH_BEFORE, None, False),
        (Fault.CRASH_AFTER, None, True),
        (Fault.STALL_BEFORE, None, False),
        (Fault.STALL_AFTER, None, True),
        (Fault.DELAY_REQUEST, None, False),
        (Fault.DELAY_REPLY, None, True),
    ],
)
def test_what_a_fault_of_a_write_does_and_tells(fault: Fault, told: str | None, stored: bool) -> None:
    world, writer = after_put(fault)
    with world:
        assert ("k" in world.records(), writer.result) == (stored, told)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault.LOST_REPLY, "MetadataTimeout"),
        (Fault.UNAVAILABLE, "MetadataUnavailable"),
        (Fault.CRASH_BEFORE, None),
        (Fault.STALE_READ, b"old"),
    ],
)
def test_what_a_fault_of_a_read_tells(fault: Fault, told: object) -> None:
    async def prepare(ctx: ActorContext) -> None:
        await ctx.metadata.put(K, b"old")
        await ctx.metadata.put(K, b"new")

    with World() as world:
        world.alone("prepare", prepare)
        reader = Script(world).actor("r", get_once)
        reader.run_until("get").perform(fault)
        assert reader.result == told


@pytest.mark.parametrize("fault", [Fault.STALL_BEFORE, Fault.STALL_AFTER, Fault.DELAY_REQUEST, Fault.DELAY_REPLY])
def test_who_was_delayed_ends_later(fault: Fault) -> None:
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
        script.actor("stubborn", stubborn).run_until("put", "k").perform(Fault.CRASH_AFTER)
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
        script.actor("it", two_at_once).run_until("put", "a").perform(Fault.CRASH_BEFORE, path="a")
        assert [call.words() for call in script.late()] == ["puts b: 1"]
        script.land("put", "b")
        assert set(world.records()) == {"b"}


def test_another_takes_the_place_of_a_crashed_actor() -> None:
    async def worker(ctx: ActorContext) -> None:
        await ctx.metadata.put(Key(f"by/{ctx.name}"), b"1")

    faults = Faults(frozenset({Fault.CRASH_AFTER}), budget=2, rate=1.0)
    with World(SeededChooser(0), faults=faults) as world:
        world.actor("worker", worker, restarts=5)
        world.run()
        assert set(world.records()) == {"by/worker", "by/worker.2", "by/worker.3"}
        assert [actor.state for actor in world.scheduler.actors] == ["crashed", "crashed", "ended"]


# -- late writes -------------------------------------------------------------------------------------------------------


def test_a_late_write_lands_when_its_condition_still_holds() -> None:
    world, _ = after_put(Fault.LATE_WRITE)
    with world:
        Script(world).land("put", "k")
        assert world.records()["k"].value == b"w"


def test_a_late_write_is_refused_when_its_condition_holds_no_more() -> None:
    world, _ = after_put(Fault.LATE_WRITE)
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
        it.run_until("put").perform(Fate(Fault.DELAY_REQUEST, ms=60_000))
        assert it.finish() == "gave up"
        script.pass_time(60_000)
        assert "k" not in world.records()
        script.land("put", "k")
        assert "k" in world.records()


def test_calm_decides_what_becomes_of_late_writes() -> None:
    outcomes = set()
    for seed in range(20):
        faults = Faults(frozenset({Fault.LATE_WRITE}), budget=1, rate=1.0)
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

    with World(faults=Faults(frozenset({Fault.STALE_READ}), budget=1, stale_states_max=9), shards=3) as world:
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


# -- zombies and sessions ----------------------------------------------------------------------------------------------


def test_a_zombie_wakes_hours_later_and_finds_its_session_gone() -> None:
    lost: list[int] = []

    async def holder(ctx: ActorContext) -> str:
        session = await ctx.metadata.open_session(timeout_ms=10_000, on_lost=lambda: lost.append(ctx.now_ms()))
        await ctx.metadata.put(K, b"mine", session=session)
        await ctx.metadata.get(Key("work"))
        try:
            await ctx.metadata.put(K, b"still mine", session=session)
        except SessionLost:
            return "lost"
        return "kept"

    with World() as world:
        script = Script(world)
        zombie = script.actor("zombie", holder).run_until("get")
        fell_asleep_ms = world.now_ms()
        zombie.perform(Fault.STALL_AFTER)
        assert script.actor("other", get_once).finish() == b"mine"
        script.pass_time(10_000)
        assert script.actor("another", put_once).finish() == "done"
        assert lost == [], "it sleeps: nobody can tell it"
        assert zombie.finish() == "lost"
        assert lost == [fell_asleep_ms + 2 * HOUR_MS]
        assert world.records()["k"].value == b"another"


def test_a_short_nap_costs_no_session() -> None:
    async def holder(ctx: ActorContext) -> bool:
        session = await ctx.metadata.open_session(timeout_ms=10_000)
        await ctx.metadata.get(K)
        await ctx.sleep_ms(HOUR_MS)
        return session.lost

    with World() as world:
        it = Script(world).actor("it", holder).run_until("get")
        it.perform(Fate(Fault.STALL_BEFORE, ms=5_000))
        assert it.finish() is False


def test_all_of_a_sleeping_process_sleeps() -> None:
    async def two_tasks(ctx: ActorContext) -> list[int]:
        times: list[int] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                times.append(ctx.now_ms())

        ticking = asyncio.create_task(tick())
        await ctx.metadata.get(K)
        await ctx.sleep_ms(1_500)
        ticking.cancel()
        return times

    with World() as world:
        start_ms = world.now_ms()
        it = Script(world).actor("it", two_tasks)
        it.run_until("get").perform(Fault.STALL_AFTER)
        woke_ms = start_ms + 2 * HOUR_MS
        # The tick that was due in its sleep comes when it wakes.
        assert it.finish() == [woke_ms, woke_ms + 1_000]


def test_a_script_wakes_a_sleeper_early() -> None:
    with World() as world:
        script = Script(world)
        it = script.actor("it", put_once).run_until("put")
        it.perform(Fault.STALL_BEFORE)
        it.wake()
        assert it.finish() == "done"
        assert world.trace.lines()[-1].endswith("it puts k expecting nothing there: it → version 1")


def test_the_store_may_forget_the_session_of_a_living_process() -> None:
    async def holder(ctx: ActorContext) -> list[str]:
        told: list[str] = []
        session = await ctx.metadata.open_session(timeout_ms=10_000, on_lost=lambda: told.append("told"))
        await ctx.metadata.put(K, b"1", session=session)
        await ctx.metadata.get(K)
        return [*told, "lost" if session.lost else "kept"]

    with World() as world:
        script = Script(world)
        it = script.actor("it", holder).run_until("get")
        it.expire_sessions()
        assert "k" not in world.records()
        assert it.finish() == ["told", "lost"]


def test_a_watcher_that_missed_something_is_told_to_read_again() -> None:
    async def watcher(ctx: ActorContext) -> list[ChangeKind]:
        async with ctx.metadata.watch("k") as changes:
            return [(await anext(changes)).kind]

    with World() as world:
        script = Script(world)
        it = script.actor("watcher", watcher)
        script.settle()
        script.actor("writer", put_once).finish()
        it.run_until("notice").perform(Fault.LOST_NOTICE)
        assert it.finish() == [ChangeKind.RESYNC]


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "stored"), [(Fault.LOST_REPLY, True), (Fault.LOST_REQUEST, False)])
def test_an_object_put_without_an_answer_is_uncertain(fault: Fault, stored: bool) -> None:
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
            it.run_until("*").perform(Fault.LOST_REPLY)
            assert isinstance(it.actor.error, ObjectStoreTimeout)


def test_a_crash_leaves_any_part_of_several_deletes_done() -> None:
    async def deleter(ctx: ActorContext) -> None:
        for name in ("a", "b", "c"):
            await ctx.objects.put(name, [b"1"])
        await ctx.objects.delete_many(["a", "b", "c"])

    with World() as world:
        it = Script(world).actor("it", deleter)
        it.run_until("delete_object", "b").perform(path="b")
        it.perform(Fault.CRASH_BEFORE, path="c")
        assert set(world.objects()) == {"a", "c"}


# -- scripts and random runs -------------------------------------------------------------------------------------------


def test_a_fault_that_cannot_befall_a_call_is_refused() -> None:
    with World() as world:
        script = Script(world)
        reader = script.actor("r", get_once).run_until("get")
        with pytest.raises(InvalidArgument, match="late write cannot befall a call that gets k"):
            reader.perform(Fault.LATE_WRITE)
        with pytest.raises(InvalidArgument, match="no older answer"):
            reader.perform(Fault.STALE_READ)


def test_a_script_that_waits_for_what_never_comes_says_so() -> None:
    with World() as world:
        script = Script(world)
        held = script.actor("held", get_once).run_until("get")
        with pytest.raises(SimulationStuck, match=r"w ended before it came to delete \*[\s\S]*held.*gets k"):
            script.actor("w", put_once).run_until("delete")
        with pytest.raises(SimulationStuck, match="held is not about to put"):
            held.perform(operation="put")


def test_random_runs_meet_every_fault_within_their_budget() -> None:
    async def busy(ctx: ActorContext) -> None:
        session = None
        while session is None or session.lost:
            try:
                session = await ctx.metadata.open_session(timeout_ms=10_000)
            except (MetadataTimeout, MetadataUnavailable):
                continue
        for _ in range(20):
            await get_once(ctx)
            try:
                await ctx.metadata.put(K, b"1")
            except (MetadataUncertain, MetadataUnavailable):
                continue

    async def watcher(ctx: ActorContext) -> None:
        async with ctx.metadata.watch("") as changes:
            async for _ in changes:
                pass

    met: set[str] = set()
    for seed in range(150):
        with World(SeededChooser(seed), faults=MANY) as world:
            world.actor("a", busy)
            world.actor("b", busy)
            world.actor("watcher", watcher, daemon=True)
            world.run()
            assert 0 <= world.scheduler.faults_left <= MANY.budget
            met.update(world.scheduler.faults_met)
    assert met == {fault.name for fault in Fault}


def test_a_faultless_actor_meets_no_fault() -> None:
    faults = Faults(frozenset(Fault), budget=100, rate=1.0)
    with World(SeededChooser(3), faults=faults) as world:
        it = world.actor("it", put_once, faultless=True)
        world.run()
        assert (it.result, world.scheduler.faults_left) == ("done", 100)
