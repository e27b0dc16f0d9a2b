"""The loop: virtual time, one order, no way out of the simulation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from llog.errors import SimulationActorFailed, SimulationError, SimulationForbidden, SimulationStuck, SimulationTooLong
from llog.stores.metadata.port import Key
from llog.testing.sim import HOUR_MS, ActorContext, World


def run_alone(actor: object, **options: object) -> object:
    with World(**options) as world:  # type: ignore[arg-type]
        return world.alone("it", actor)  # type: ignore[arg-type]


def test_hours_pass_in_milliseconds() -> None:
    async def sleeper(ctx: ActorContext) -> int:
        before_ms = ctx.now_ms()
        for _ in range(1_000):
            await ctx.sleep_ms(HOUR_MS)
        return ctx.now_ms() - before_ms

    started = time.monotonic()
    assert run_alone(sleeper) == 1_000 * HOUR_MS
    assert time.monotonic() - started < 5


def test_timers_go_off_in_the_order_of_their_time() -> None:
    order: list[str] = []

    async def nap(ms: int, name: str) -> None:
        await asyncio.sleep(ms / 1_000)
        order.append(name)

    async def actor(ctx: ActorContext) -> None:
        await asyncio.gather(nap(30, "c"), nap(10, "a"), nap(20, "b"), nap(10, "a too"))

    run_alone(actor)
    assert order == ["a", "a too", "b", "c"]


def test_asyncio_as_real_code_uses_it_works() -> None:
    async def actor(ctx: ActorContext) -> list[str]:
        said: list[str] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(3_600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        lock, done = asyncio.Lock(), asyncio.Event()

        async def producer() -> None:
            for word in ("one", "two", "three"):
                async with lock:
                    await queue.put(word)
            done.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(producer())
            while not (done.is_set() and queue.empty()):
                said.append(await queue.get())
        await asyncio.wait([asyncio.create_task(asyncio.sleep(1)), asyncio.create_task(asyncio.sleep(2))])
        return said

    assert run_alone(actor) == ["one", "two", "three"]


def test_work_for_a_thread_is_done_at_once_on_the_loop() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def actor(ctx: ActorContext) -> tuple[bool, str]:
        same = await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        try:
            await asyncio.to_thread(fail)
        except ValueError as error:
            return same, str(error)
        return same, ""

    assert run_alone(actor) == (True, "no")


def test_executors_sockets_and_processes_are_refused() -> None:
    async def actor(ctx: ActorContext) -> list[str]:
        refused: list[str] = []
        for attempt in (
            lambda: asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), time.sleep, 0),
            lambda: asyncio.open_connection("127.0.0.1", 1),
            lambda: asyncio.create_subprocess_exec("true"),
        ):
            try:
                await attempt()
            except SimulationForbidden as error:
                refused.append(error.what)
        return refused

    assert run_alone(actor) == ["loop.run_in_executor", "loop.create_connection", "loop.subprocess_exec"]


def test_a_call_from_another_thread_is_refused() -> None:
    errors: list[Exception] = []

    async def actor(ctx: ActorContext) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(lambda: None)

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(lambda: None)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    run_alone(actor)
    assert [type(error) for error in errors] == [SimulationForbidden]


async def test_a_world_does_not_run_inside_another_loop() -> None:
    async def actor(ctx: ActorContext) -> None:
        return None

    with World() as world:
        world.actor("it", actor)
        with pytest.raises(SimulationForbidden, match="another event loop"):
            world.run()


def test_a_deadlock_names_the_actors_and_what_they_wait_for() -> None:
    async def waits_for_ever(ctx: ActorContext) -> None:
        await asyncio.Event().wait()

    async def ends(ctx: ActorContext) -> None:
        await ctx.metadata.get(Key("a"))

    with World() as world:
        world.actor("patient", waits_for_ever)
        world.actor("done", ends)
        with pytest.raises(SimulationStuck) as caught:
            world.run()
    [wait] = caught.value.waits
    assert wait.startswith("patient (running) waits in ")
    assert "waits_for_ever (test_loop.py:" in wait


def test_a_run_without_end_is_cut_and_names_the_actors() -> None:
    async def restless(ctx: ActorContext) -> None:
        while True:
            await ctx.metadata.get(Key("a"))

    async def spins(ctx: ActorContext) -> None:
        while True:
            await ctx.sleep_ms(0)

    for endless in (restless, spins):
        with World(steps_max=1_000) as world:
            world.actor("endless", endless)
            with pytest.raises(SimulationTooLong, match=r"1000 steps[\s\S]*endless"):
                world.run()


def test_an_error_of_an_actor_makes_the_run_red_unless_it_is_allowed() -> None:
    async def fails(ctx: ActorContext) -> None:
        raise ValueError("bad luck")

    with World() as world:
        world.actor("unlucky", fails)
        with pytest.raises(SimulationActorFailed, match="unlucky failed: ValueError: bad luck") as caught:
            world.run()
        assert isinstance(caught.value.__cause__, ValueError)
    with World() as world:
        actor = world.actor("unlucky", fails, may_fail=(ValueError,))
        world.run()
        assert isinstance(actor.error, ValueError)


def test_an_error_of_a_task_that_is_never_awaited_fails_the_run() -> None:
    async def fails() -> None:
        raise ValueError("in the background")

    async def actor(ctx: ActorContext) -> None:
        asyncio.create_task(fails())  # noqa: RUF006  dropped on purpose
        await asyncio.sleep(1)
        for _ in range(40):
            asyncio.create_task(asyncio.sleep(0))  # noqa: RUF006  the loop lets go of finished tasks by and by
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="in the background"):
        run_alone(actor)


def test_a_generator_that_is_dropped_still_cleans_up() -> None:
    cleaned: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            cleaned.append("cleaned")

    async def actor(ctx: ActorContext) -> None:
        async for number in numbers():
            if number == 2:
                break
        await asyncio.sleep(1)

    run_alone(actor)
    assert cleaned == ["cleaned"]


def test_each_actor_has_its_own_clock_and_randomness() -> None:
    async def look(ctx: ActorContext) -> tuple[int, int]:
        return ctx.now_ms(), ctx.random_bits(64)

    with World(seed=1) as world:
        right = world.actor("right", look)
        wrong = world.actor("wrong", look, skew_ms=-5_000)
        world.run()
        true_ms = world.now_ms()
    assert (right.result[0], wrong.result[0]) == (true_ms, true_ms - 5_000)
    assert right.result[1] != wrong.result[1]
    with World(seed=1) as world:
        assert world.alone("right", look) == right.result
    with World(seed=2) as world:
        assert world.alone("right", look)[1] != right.result[1]
