"""The search: it finds what is possible, says when it saw everything, and prunes nothing that matters."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from llog.errors import MetadataUncertain, SessionLost, VersionConflict
from llog.stores.metadata.port import ABSENT, Key
from llog.testing.sim import (
    CRASHES,
    NO_FAULTS,
    ONE_CRASH,
    ONE_CRASH_OR_STALL,
    ONE_OF_ANY,
    ActorContext,
    SimFault,
    SimFaults,
    SimScenario,
    World,
    explore,
    find,
    replay,
    run_seed,
)
from llog.testing.sim.metadata_server import Versions
from tests.simulation import toys

SOAK = os.environ.get("LLOG_SOAK") == "1"


def test_the_search_finds_the_lost_update_and_its_replay_is_red_too() -> None:
    found = explore(find("toy-rare-lost-update"))
    assert found.red is not None
    assert isinstance(found.red.error, AssertionError)
    assert "2 increments, perhaps 0 more; the counter: 1" in str(found.red.error)
    assert not found.complete
    again = replay(found.scenario, found.red.choices)
    assert str(again.error) == str(found.red.error)
    assert again.trace == found.red.trace


def test_random_runs_find_the_lost_update() -> None:
    what = find("toy-rare-lost-update")
    red = [seed for seed in range(100) if not run_seed(what, seed).ok]
    assert 0 < len(red) < 100
    assert run_seed(what, red[0]).printed


def test_the_careful_counter_passes_completely() -> None:
    found = explore(find("toy-counter"))
    assert found.complete, str(found.red and found.red.printed)
    assert found.states > 500
    assert "complete" in str(found)


def test_random_runs_of_the_careful_counter_are_green() -> None:
    for seed in range(20_000 if SOAK else 300):
        run = run_seed(find("toy-counter"), seed)
        assert run.ok, run.printed


# -- what is searched --------------------------------------------------------------------------------------------------


def outcomes_of(
    scenario_faults: SimFaults, *, actors: int = 2, prune: bool = True, ordered: bool = True
) -> tuple[set[object], int]:
    """Every final state that the search comes to, and how many runs it took."""
    outcomes: set[object] = set()

    async def actor(ctx: ActorContext) -> None:
        mine = Key(f"own/{ctx.name}")
        await ctx.metadata.put(mine, b"1")
        try:
            seen = await ctx.metadata.get(Key("shared"))
            await ctx.metadata.put(Key("shared"), ctx.name.encode(), expected=ABSENT if seen is None else seen.version)
            ctx.record("won")
        except VersionConflict:
            ctx.record("beaten")

    def play(world: World) -> None:
        for number in range(actors):
            world.actor(f"a{number}", actor, may_fail=(Exception,))
        world.run()
        world.calm()
        records = tuple((path, record.value) for path, record in sorted(world.records().items()))
        told = tuple(sorted((event.actor, event.event) for event in world.history))
        errors = tuple(type(a.error).__name__ for a in world.scheduler.actors)
        outcomes.add((records, told, errors, tuple(a.crashed for a in world.scheduler.actors)))

    found = explore(SimScenario("outcomes", play, search_faults=scenario_faults, ordered=ordered), prune=prune)
    assert found.complete, found.red and found.red.printed
    return outcomes, found.runs


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("faults", [NO_FAULTS, ONE_CRASH, ONE_CRASH_OR_STALL, ONE_OF_ANY])
def test_pruning_loses_no_outcome(faults: SimFaults, ordered: bool) -> None:
    pruned, runs = outcomes_of(faults, ordered=ordered)
    everything, all_runs = outcomes_of(faults, prune=False)
    assert pruned == everything
    assert runs < all_runs


def drawn_actor(program: Sequence[tuple[str, str]]) -> Callable[[ActorContext], Awaitable[None]]:
    """Does what the program says with three keys, and what it writes depends on what it saw."""

    async def actor(ctx: ActorContext) -> None:
        store, seen = ctx.metadata, ctx.name
        for operation, name in program:
            try:
                if operation == "get":
                    found = await store.get(Key(f"k/{name}"))
                    seen += "-" if found is None else f"({found.value.decode()})"
                elif operation == "scan":
                    seen += "".join(record.key.path[-1] for record in await store.scan(Key("k")))
                elif operation == "create":
                    await store.put(Key(f"k/{name}"), seen.encode(), expected=ABSENT)
                elif operation == "put":
                    await store.put(Key(f"k/{name}"), seen.encode())
                elif operation == "delete":
                    await store.delete(Key(f"k/{name}"))
                elif operation == "object":
                    await ctx.objects.put(f"{ctx.name}-{name}", [seen.encode()])
            except VersionConflict:
                seen += "!"
        ctx.record(seen)

    return actor


@pytest.mark.parametrize("options", [{}, {"versions": Versions.OF_KEY, "objects_at_once": True}], ids=["plain", "more"])
@pytest.mark.parametrize("faults", [NO_FAULTS, ONE_CRASH, ONE_CRASH_OR_STALL], ids=["none", "crash", "crash-or-stall"])
def test_the_reduced_search_of_drawn_programs_loses_no_outcome(faults: SimFaults, options: dict[str, Any]) -> None:
    reduced_runs = all_runs = 0
    for seed in range(100 if SOAK else 12):
        draw = random.Random(seed)
        operations = ["get", "get", "scan", "create", "put", "delete", "object"]
        sizes = draw.choice([(3, 3), (2, 2, 1), (4, 2)])
        programs = [[(draw.choice(operations), draw.choice("abc")) for _ in range(size)] for size in sizes]
        outcomes: set[object] = set()

        def play(world: World, programs: Any = programs, outcomes: set[object] = outcomes) -> None:
            for number, program in enumerate(programs):
                world.actor(f"a{number}", drawn_actor(program))
            world.run()
            told = tuple(sorted((event.actor, event.event) for event in world.history))
            crashed = tuple(actor.crashed for actor in world.scheduler.actors)
            records = tuple((path, record.value) for path, record in sorted(world.records().items()))
            outcomes.add((told, crashed, records, tuple(sorted(world.objects()))))

        reduced = explore(SimScenario("drawn", play, search_faults=faults, ordered=False, options=options))
        assert reduced.complete, reduced.red and reduced.red.printed
        found = set(outcomes)
        outcomes.clear()
        everything = explore(SimScenario("drawn", play, search_faults=faults), prune=False)
        assert everything.complete
        assert found == outcomes, (seed, programs)
        reduced_runs, all_runs = reduced_runs + reduced.runs, all_runs + everything.runs
    assert reduced_runs < all_runs / 2, (reduced_runs, all_runs)


def test_pruning_loses_no_outcome_of_sessions_and_watchers() -> None:
    outcomes: set[object] = set()

    async def owner(ctx: ActorContext) -> str:
        session = await ctx.metadata.open_session(timeout_ms=10_000)
        try:
            await ctx.metadata.put(Key("w/mine"), b"1", session=session)
            await ctx.metadata.put(Key("w/mine"), b"2", session=session)
        except SessionLost:
            return "lost"
        return "kept"

    async def watcher(ctx: ActorContext) -> None:
        async with ctx.metadata.watch("w") as changes:
            await ctx.metadata.put(Key("w/other"), b"1")
            async for change in changes:
                ctx.record((change.kind.value, change.path))

    def play(world: World) -> None:
        it = world.actor("owner", owner)
        world.actor("watcher", watcher, daemon=True)
        world.run()
        outcomes.add((it.result, *(event.event for event in world.history), *world.records()))

    kinds = {
        SimFault.SESSION_EXPIRY,
        SimFault.LOST_NOTICE,
        SimFault.STALL_AFTER,
        SimFault.DELAY_REPLY,
        SimFault.DELAY_REQUEST,
    }
    what = SimScenario("sessions", play, search_faults=SimFaults(frozenset(kinds), budget=1), ordered=False)
    pruned = explore(what)
    assert pruned.complete, pruned.red and pruned.red.printed
    found = set(outcomes)
    assert len(found) > 10
    outcomes.clear()
    everything = explore(what, prune=False)
    assert everything.complete
    assert found == outcomes
    assert pruned.runs < everything.runs


def test_without_pruning_every_interleaving_is_played_once() -> None:
    _, runs = outcomes_of(NO_FAULTS, prune=False)
    assert runs == 20, "two actors with three calls each: 6! / (3! 3!)"


def test_a_crash_is_tried_at_every_call() -> None:
    crashes: set[tuple[str, ...]] = set()

    async def actor(ctx: ActorContext) -> None:
        for name in ("a", "b", "c"):
            await ctx.metadata.put(Key(name), b"1")

    def play(world: World) -> None:
        it = world.actor("it", actor)
        world.run()
        if it.crashed:
            crashes.add((world.scheduler.faults_met[0], *world.records()))

    found = explore(SimScenario("crashes", play, search_faults=SimFaults(CRASHES, budget=1)))
    assert found.complete
    assert crashes == {
        ("CRASH_BEFORE",),
        ("CRASH_AFTER", "a"),
        ("CRASH_BEFORE", "a"),
        ("CRASH_AFTER", "a", "b"),
        ("CRASH_BEFORE", "a", "b"),
        ("CRASH_AFTER", "a", "b", "c"),
    }


def test_a_late_write_is_tried_at_every_later_point_and_never() -> None:
    orders: set[str] = set()

    async def writer(ctx: ActorContext) -> None:
        try:
            await ctx.metadata.put(Key("log"), b"late")
        except MetadataUncertain:
            pass
        for word in (b"one", b"two"):
            await ctx.metadata.put(Key("log"), word)

    def play(world: World) -> None:
        world.actor("it", writer, may_fail=(MetadataUncertain,))
        world.run()
        world.calm()
        orders.add(" ".join(line.split(": ")[1].split(" →")[0] for line in world.trace.lines() if "→" in line))

    found = explore(SimScenario("late", play, search_faults=SimFaults(frozenset({SimFault.LATE_WRITE}), budget=1)))
    assert found.complete
    assert {order.replace("puts log", "late") for order in orders} >= {"late one two", "one late two", "one two late"}
    assert "one two" in orders


def test_a_stale_read_after_an_acknowledged_write_is_found_though_the_end_is_the_same() -> None:
    """Reading nothing before the write and reading nothing after it lead to one state; only one of them is wrong."""

    async def writer(ctx: ActorContext) -> None:
        await ctx.metadata.put(Key("k"), b"1")
        ctx.record("acknowledged")

    async def reader(ctx: ActorContext) -> None:
        await ctx.metadata.get(Key("other"))
        ctx.record("begins")
        found = await ctx.metadata.get(Key("k"))
        ctx.record("found" if found else "missed")

    def play(world: World) -> None:
        world.actor("reader", reader)
        world.actor("writer", writer)
        world.run()
        told = [event.event for event in world.history]
        assert not ("missed" in told and told.index("acknowledged") < told.index("begins")), told

    faults = SimFaults(frozenset({SimFault.STALE_READ}), budget=1)
    assert explore(SimScenario("stale", play, search_faults=faults)).red is not None
    assert explore(SimScenario("fresh", play)).complete


def napping_writers(world: World) -> None:
    """One writes in two steps; the other naps and then looks."""

    async def writer(ctx: ActorContext) -> None:
        await ctx.metadata.put(Key("first"), b"1")
        await ctx.metadata.put(Key("second"), b"1")

    async def napper(ctx: ActorContext) -> None:
        await ctx.sleep_ms(5)
        ctx.record((ctx.now_ms(), len(await ctx.metadata.scan(Key("dir"), limit=1))))
        found = await ctx.metadata.get(Key("first")), await ctx.metadata.get(Key("second"))
        assert not (found[0] and not found[1]), "it woke between the two writes"

    world.actor("writer", writer)
    world.actor("napper", napper)
    world.run()


def test_a_short_nap_may_end_while_calls_wait_and_a_long_one_does_not() -> None:
    assert explore(SimScenario("short", napping_writers)).red is not None
    assert explore(SimScenario("patient", napping_writers, options={"patience_ms": 4})).complete
    assert any(not run_seed(SimScenario("random", napping_writers), seed).ok for seed in range(100))


def test_coarse_clocks_let_a_search_meet_equal_states_more_often() -> None:
    """Naps of different length leave no trace in what is written."""

    async def actor(ctx: ActorContext) -> None:
        for _ in range(3):
            await ctx.sleep_ms(1 + ctx.random_bits(3))
            await ctx.metadata.put(Key(f"own/{ctx.name}"), str(ctx.now_ms()).encode())

    def play(world: World) -> None:
        world.actor("a", actor)
        world.actor("b", actor)
        world.run()

    fine = explore(SimScenario("fine", play))
    coarse = explore(SimScenario("coarse", play, options={"tick_ms": 60_000}))
    assert fine.complete
    assert coarse.complete
    assert 2 * coarse.states < fine.states


@pytest.mark.parametrize(("limits", "cut_by"), [((50, 10_000), "50 states"), ((10_000, 20), "20 runs")])
def test_a_search_that_was_cut_says_so(limits: tuple[int, int], cut_by: str) -> None:
    states_max, runs_max = limits
    found = explore(find("toy-counter"), states_max=states_max, runs_max=runs_max)
    assert found.red is None
    assert not found.complete
    assert found.cut_by == cut_by
    assert f"cut by {cut_by}" in str(found)


def test_recovery_after_calm_runs_alone_and_adds_no_choices() -> None:
    choices: set[int] = set()

    async def repair(ctx: ActorContext) -> None:
        for _ in range(5):
            await ctx.metadata.get(Key("own/a"))

    def play(world: World) -> None:
        world.actor("a", toys.increment_carefully)
        world.run()
        world.calm()
        before = len(world.chooser.taken)
        world.actor("repair-1", repair)
        world.actor("repair-2", repair)
        world.run()
        world.alone("look", repair)
        choices.add(len(world.chooser.taken) - before)

    assert explore(SimScenario("recovery", play, search_faults=ONE_CRASH_OR_STALL)).complete
    assert choices == {0}
