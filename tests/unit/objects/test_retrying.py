"""When the retrying store asks again, how long it waits, and what it says when it gives up."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from llog.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectStoreDenied,
    ObjectStoreError,
    ObjectStoreFull,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    ObjectStoreUncertain,
)
from llog.stores.objects import memory
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer, ObjectMeta, ObjectStore
from llog.stores.objects.wrappers import ForwardingObjectStore, RetryingObjectStore, RetryPolicy

URL = "memory://retrying"


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps.append(seconds)


class Scripted(ForwardingObjectStore):
    """Fails by script: each entry is an error for the next attempt, before or after it was carried out, or None."""

    def __init__(self, inner: ObjectStore, *script: ObjectStoreError | None, carried_out: bool = False) -> None:
        super().__init__(inner)
        self.script, self.carried_out = list(script), carried_out
        self.attempts = self.puts = 0

    async def _attempt(self, call: Callable[[], Awaitable[None]]) -> None:
        self.attempts += 1
        error = self.script.pop(0) if self.script else None
        if error is None or self.carried_out:
            await call()
        if error is not None:
            raise error

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.puts += 1
        await self._attempt(lambda: self.inner.put(name, buffers, if_absent=if_absent))

    async def delete_many(self, names: Sequence[str]) -> None:
        await self._attempt(lambda: self.inner.delete_many(names))

    async def get(self, name: str) -> Buffer:
        await self._attempt(self.inner.check)
        return await self.inner.get(name)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for meta in self.inner.list(prefix, start_after=start_after):
            await self._attempt(self.inner.check)
            yield meta


@pytest.fixture
def inner() -> MemoryObjectStore:
    memory.forget(URL)
    return MemoryObjectStore(URL)


@pytest.fixture
def time() -> Time:
    return Time()


def retrying(store: ObjectStore, time: Time, policy: RetryPolicy | None = None) -> RetryingObjectStore:
    return RetryingObjectStore(store, policy, clock=time.clock, sleep=time.sleep, rng=random.Random(1))


def throttled() -> ObjectStoreError:
    return ObjectStoreThrottled("put", "a")


def uncertain() -> ObjectStoreError:
    return ObjectStoreUncertain("put", "a")


@pytest.mark.parametrize("error", [ObjectStoreThrottled, ObjectStoreTimeout, ObjectStoreUnavailable])
async def test_a_passing_failure_is_not_seen(
    inner: MemoryObjectStore, time: Time, error: type[ObjectStoreError]
) -> None:
    await inner.put("a", [b"x"])
    store = Scripted(inner, error("get", "a"), error("get", "a"))
    assert bytes(await retrying(store, time).get("a")) == b"x"
    assert store.attempts == 3
    assert len(time.naps) == 2


@pytest.mark.parametrize("error", [ObjectNotFound, ObjectStoreDenied, ObjectStoreFull, ObjectAlreadyExists])
async def test_what_asking_again_cannot_help_is_raised_at_once(
    inner: MemoryObjectStore, time: Time, error: type[ObjectStoreError]
) -> None:
    store = Scripted(inner, error("put", "a"))
    with pytest.raises(error):
        await retrying(store, time).put("a", [b"x"])
    assert (store.attempts, time.naps) == (1, [])


async def test_attempts_are_bounded(inner: MemoryObjectStore, time: Time) -> None:
    store = Scripted(inner, *[throttled() for _ in range(100)])
    with pytest.raises(ObjectStoreThrottled):
        await retrying(store, time, RetryPolicy(attempts_max=5)).put("a", [b"x"])
    assert store.attempts == 5


async def test_no_attempt_starts_after_the_deadline(inner: MemoryObjectStore, time: Time) -> None:
    store = Scripted(inner, *[throttled() for _ in range(1_000)])
    policy = RetryPolicy(attempts_max=1_000, deadline_ms=10_000, backoff_ms_max=1_000)
    with pytest.raises(ObjectStoreThrottled):
        await retrying(store, time, policy).put("a", [b"x"])
    assert 5 < time.now < 10
    assert store.attempts < 100


def test_waits_double_up_to_a_limit_and_are_longer_when_throttled() -> None:
    policy = RetryPolicy(backoff_ms_first=50, backoff_ms_max=1_000, throttled_factor=4)
    refused, slow = ObjectStoreUnavailable("get", "a"), throttled()
    assert [policy.backoff(refused).ceiling_ms(n) for n in (0, 1, 2, 5, 1_000_000)] == [50, 100, 200, 1_000, 1_000]
    assert [policy.backoff(slow).ceiling_ms(n) for n in (0, 1, 2, 5, 1_000_000)] == [200, 400, 800, 4_000, 4_000]


async def test_waits_are_drawn_from_the_whole_interval(inner: MemoryObjectStore, time: Time) -> None:
    policy = RetryPolicy(attempts_max=400, deadline_ms=10**9, backoff_ms_first=100, backoff_ms_max=100)
    await retrying(Scripted(inner, *[ObjectStoreUnavailable("put", "a") for _ in range(399)]), time, policy).put(
        "a", []
    )
    assert min(time.naps) < 0.01
    assert 0.09 < max(time.naps) <= 0.1


async def test_a_lost_answer_of_a_conditional_put_is_recognised_as_ones_own(
    inner: MemoryObjectStore, time: Time
) -> None:
    store = Scripted(inner, uncertain(), carried_out=True)
    await retrying(store, time).put("a", [b"mi", b"ne"], if_absent=True)
    assert bytes(await inner.get("a")) == b"mine"
    assert store.puts == 1, "seen to be there, so not put again"


async def test_a_conditional_put_that_did_not_happen_is_put_again(inner: MemoryObjectStore, time: Time) -> None:
    store = Scripted(inner, uncertain(), throttled())
    await retrying(store, time).put("a", [b"mine"], if_absent=True)
    assert bytes(await inner.get("a")) == b"mine"


@pytest.mark.parametrize("other", [b"longer than mine", b"MINE"], ids=["other length", "same length"])
async def test_another_writers_object_is_not_taken_for_ones_own(
    inner: MemoryObjectStore, time: Time, other: bytes
) -> None:
    await inner.put("a", [other])
    store = Scripted(inner, uncertain())
    with pytest.raises(ObjectAlreadyExists):
        await retrying(store, time).put("a", [b"mine"], if_absent=True)
    assert bytes(await inner.get("a")) == other


async def test_ones_own_write_that_lands_after_the_look_is_recognised(inner: MemoryObjectStore, time: Time) -> None:
    class LandsLate(Scripted):
        async def head(self, name: str) -> ObjectMeta:
            try:
                return await super().head(name)
            finally:
                await inner.put(name, [b"mine"])

    await retrying(LandsLate(inner, uncertain()), time).put("a", [b"mine"], if_absent=True)
    assert bytes(await inner.get("a")) == b"mine"


async def test_a_refusal_at_the_first_attempt_is_not_questioned(inner: MemoryObjectStore, time: Time) -> None:
    await inner.put("a", [b"mine"])
    with pytest.raises(ObjectAlreadyExists):
        await retrying(inner, time).put("a", [b"mine"], if_absent=True)


@pytest.mark.parametrize("last", [throttled(), ObjectStoreDenied("put", "a")], ids=["throttled", "denied"])
@pytest.mark.parametrize("if_absent", [False, True])
async def test_once_uncertain_always_uncertain(
    inner: MemoryObjectStore, time: Time, last: ObjectStoreError, if_absent: bool
) -> None:
    store = Scripted(inner, uncertain(), last, last, last)
    with pytest.raises(ObjectStoreUncertain) as raised:
        await retrying(store, time, RetryPolicy(attempts_max=3)).put("a", [b"x"], if_absent=if_absent)
    assert raised.value.__cause__ is last


async def test_deletes_are_repeated_after_a_lost_answer(inner: MemoryObjectStore, time: Time) -> None:
    await inner.put("a", [b"x"])
    store = Scripted(inner, uncertain(), carried_out=True)
    await retrying(store, time).delete("a")
    assert store.attempts == 2


async def test_a_listing_goes_on_where_it_broke_off(inner: MemoryObjectStore, time: Time) -> None:
    names = [f"{i:03d}" for i in range(50)]
    for name in names:
        await inner.put(name, [])
    # Every third step fails, far more often in sum than the attempts allowed without progress.
    script = [ObjectStoreTimeout("list", "") if i % 3 == 2 else None for i in range(200)]
    store = retrying(Scripted(inner, *script), time, RetryPolicy(attempts_max=3))
    assert [m.name async for m in store.list()] == names


async def test_a_slow_reader_of_a_listing_does_not_use_up_the_deadline(inner: MemoryObjectStore, time: Time) -> None:
    for i in range(4):
        await inner.put(f"a/{i}", [b"x"])
    store = retrying(Scripted(inner, None, None, ObjectStoreTimeout("list", "")), time)
    seen = []
    async for meta in store.list():
        seen.append(meta.name)
        time.now += 3_600.0
    assert seen == [f"a/{i}" for i in range(4)]


async def test_a_listing_that_makes_no_progress_ends(inner: MemoryObjectStore, time: Time) -> None:
    await inner.put("a", [])
    store = retrying(Scripted(inner, *[throttled()] * 10), time, RetryPolicy(attempts_max=3))
    with pytest.raises(ObjectStoreThrottled):
        [m async for m in store.list()]
