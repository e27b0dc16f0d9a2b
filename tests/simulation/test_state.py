"""The state of a run distinguishes runs that could go on differently, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llog.stores.metadata.port import ABSENT, Key
from llog.testing.sim import NO_FAULTS, ONE_CRASH, ONE_OF_ANY, ActorContext, Script, SimFault, SimFaults, World
from llog.testing.sim.actor import ActorFunction

K = Key("k")
COARSE_MS = 60_000


def put(*values: bytes, key: Key = K, expected: int | None = None) -> ActorFunction:
    async def actor(ctx: ActorContext) -> None:
        for value in values:
            try:
                await ctx.metadata.put(key, value, expected=expected)
            except Exception as error:
                ctx.record(type(error).__name__)

    return actor


async def get(ctx: ActorContext) -> None:
    await ctx.metadata.get(K)


def state_after(play: Callable[[Script], None], *, faults: SimFaults = NO_FAULTS, tick_ms: int = 1) -> int:
    with World(faults=faults, tick_ms=tick_ms) as world:
        world.scheduler.tracking = True
        play(Script(world))
        return world.state()


def alone(*actors: ActorFunction) -> Callable[[Script], None]:
    def play(script: Script) -> None:
        for number, actor in enumerate(actors):
            script.actor(f"a{number}", actor).finish()

    return play


def told(*order: str) -> Callable[[Script], None]:
    """The actors act in this order, and the reader goes on. (Of an actor that has ended, only its events count.)"""

    async def get_twice(ctx: ActorContext) -> None:
        await get(ctx)
        await get(ctx)

    def play(script: Script) -> None:
        reader, writer = script.actor("reader", get_twice), script.actor("writer", put(b"1"))
        for who in order:
            if who == "reader":
                reader.run_until("get").perform()
            else:
                writer.finish()

    return play


def reader_and_writer(*order: str) -> Callable[[Script], None]:
    """Both exist from the start; they act in this order, and the reply to the reader is slow."""

    def play(script: Script) -> None:
        reader, writer = script.actor("reader", get), script.actor("writer", put(b"1"))
        for who in order:
            if who == "reader":
                reader.run_until("get").perform(SimFault.DELAY_REPLY)
            else:
                writer.finish()

    return play


def late_write(*, lands: bool) -> Callable[[Script], None]:
    """It is refused when it lands: the store shows no trace of it."""

    def play(script: Script) -> None:
        script.actor("late", put(b"late", expected=ABSENT)).run_until("put").perform(SimFault.LATE_WRITE)
        script.actor("other", put(b"1")).finish()
        if lands:
            script.land()

    return play


def nap(ms: int) -> Callable[[Script], None]:
    async def actor(ctx: ActorContext) -> None:
        await ctx.sleep_ms(ms)

    def play(script: Script) -> None:
        script.actor("napper", actor)
        script.settle()

    return play


def pass_time(ms: int) -> Callable[[Script], None]:
    return lambda script: script.pass_time(ms)


async def hold_session(ctx: ActorContext) -> None:
    await ctx.metadata.open_session(timeout_ms=10_000)
    await ctx.metadata.get(K)


def session(*, runs_out: bool) -> Callable[[Script], None]:
    def play(script: Script) -> None:
        script.actor("owner", hold_session).run_until("get")
        for held in script.world.metadata.backing.sessions.values():
            held.expires_at_ms = script.world.now_ms() + 10_000 if runs_out else None

    return play


def record(event: str) -> ActorFunction:
    async def actor(ctx: ActorContext) -> None:
        ctx.record(event)

    return actor


async def put_object(ctx: ActorContext) -> None:
    await ctx.objects.put("o", [b"1"])


async def put_other_object(ctx: ActorContext) -> None:
    await ctx.objects.put("o", [b"2"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(alone(put(b"1")), alone(put(b"2")), id="contents"),
        pytest.param(alone(put(b"1")), alone(put(b"1", b"1")), id="versions"),
        pytest.param(alone(put_object), alone(put_other_object), id="objects"),
        pytest.param(told("reader", "writer"), told("writer", "reader"), id="what an actor was told"),
        pytest.param(reader_and_writer("reader", "writer"), reader_and_writer("writer", "reader"), id="slow reply"),
        pytest.param(late_write(lands=True), late_write(lands=False), id="late writes"),
        pytest.param(pass_time(0), pass_time(5), id="time"),
        pytest.param(nap(5), nap(7), id="timers"),
        pytest.param(session(runs_out=True), session(runs_out=False), id="sessions"),
        pytest.param(alone(record("a"), record("b")), alone(record("b"), record("a")), id="history"),
    ],
)
def test_what_may_go_on_differently_has_another_state(
    one: Callable[[Script], None], other: Callable[[Script], None]
) -> None:
    assert state_after(one) == state_after(one)
    assert state_after(one) != state_after(other)


def test_the_past_counts_only_while_an_actor_may_read_from_it() -> None:
    one, other = alone(put(b"1", b"3")), alone(put(b"2", b"3"))
    assert state_after(one) == state_after(other)
    assert state_after(one, faults=ONE_OF_ANY) != state_after(other, faults=ONE_OF_ANY)


def test_faults_left_count() -> None:
    assert state_after(alone()) != state_after(alone(), faults=ONE_CRASH)


def test_times_within_one_tick_are_one_state_unless_timers_differ() -> None:
    assert state_after(pass_time(0), tick_ms=COARSE_MS) == state_after(pass_time(5), tick_ms=COARSE_MS)
    assert state_after(pass_time(0), tick_ms=COARSE_MS) != state_after(pass_time(COARSE_MS), tick_ms=COARSE_MS)
    assert state_after(nap(5), tick_ms=COARSE_MS) != state_after(nap(7), tick_ms=COARSE_MS)


def test_independent_writes_in_either_order_lead_to_one_state() -> None:
    """On different shards; within one shard their versions give the order."""

    def ordered(*order: int) -> Callable[[Script], None]:
        def play(script: Script) -> None:
            shard_of = script.world.metadata.backing.shard_of
            first = Key("a", "0")
            second = next(Key("b", r) for r in map(str, range(99)) if shard_of(Key("b", r)) != shard_of(first))
            actors = [script.actor(f"a{n}", put(b"1", key=key)) for n, key in enumerate((first, second))]
            for number in order:
                actors[number].finish()

        return play

    def state(*order: int) -> int:
        with World(shards=4) as world:
            world.scheduler.tracking = True
            ordered(*order)(Script(world))
            return world.state()

    assert state(0, 1) == state(1, 0)
