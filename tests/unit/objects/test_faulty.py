"""The faulty store has the given frequency of faults, repeats with its seed, and keeps the guarantees of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from llog.errors import (
    InvalidArgument,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    ObjectStoreUncertain,
)
from llog.stores.objects import memory
from llog.stores.objects.faulty import FaultyObjectStore, ObjectFaults
from llog.stores.objects.memory import MemoryObjectStore


@pytest.fixture
async def inner() -> AsyncIterator[MemoryObjectStore]:
    url = f"memory://{uuid4().hex}"
    yield MemoryObjectStore(url)
    memory.forget(url)


class Naps:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def history(store: FaultyObjectStore, calls: int = 300) -> list[str]:
    outcomes = []
    for i in range(calls):
        try:
            await store.put(f"{i}", [b"x"])
            outcomes.append("ok")
        except ObjectStoreError as error:
            outcomes.append(type(error).__name__)
    return outcomes


MIXED = ObjectFaults(throttled=0.2, lost_answer=0.2, stalled=0.1, delayed=0.3)


async def test_one_seed_gives_one_history(inner: MemoryObjectStore) -> None:
    naps = [Naps(), Naps(), Naps()]
    runs = [
        await history(FaultyObjectStore(inner, seed, MIXED, sleep=nap.sleep))
        for seed, nap in zip((7, 7, 8), naps, strict=True)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert naps[0].seconds == naps[1].seconds


async def test_faults_have_the_given_frequency(inner: MemoryObjectStore) -> None:
    outcomes = await history(FaultyObjectStore(inner, 1, MIXED, sleep=Naps().sleep), 2_000)
    assert outcomes.count("ObjectStoreThrottled") == pytest.approx(400, rel=0.2)
    assert outcomes.count("ObjectStoreUncertain") == pytest.approx(600, rel=0.2)


async def test_throttled_writes_did_not_happen(inner: MemoryObjectStore) -> None:
    store = FaultyObjectStore(inner, 1, ObjectFaults(throttled=1))
    with pytest.raises(ObjectStoreThrottled):
        await store.put("a", [b"x"])
    with pytest.raises(ObjectNotFound):
        await inner.get("a")


async def test_a_lost_answer_means_done_but_uncertain(inner: MemoryObjectStore) -> None:
    store = FaultyObjectStore(inner, 1, {"put": ObjectFaults(lost_answer=1), "get": ObjectFaults(lost_answer=1)})
    with pytest.raises(ObjectStoreUncertain):
        await store.put("a", [b"x"], if_absent=True)
    assert bytes(await inner.get("a")) == b"x"
    with pytest.raises(ObjectStoreUncertain):
        await store.put("a", [b"y"], if_absent=True)
    assert bytes(await inner.get("a")) == b"x"
    with pytest.raises(ObjectStoreTimeout):
        await store.get("a")


async def test_a_stalled_write_has_happened_or_not_and_lasts_until_the_timeout(inner: MemoryObjectStore) -> None:
    naps = Naps()
    store = FaultyObjectStore(inner, 1, ObjectFaults(stalled=1, stall_ms=2_500), sleep=naps.sleep)
    assert set(await history(store, 40)) == {"ObjectStoreUncertain"}
    assert set(naps.seconds) == {2.5}
    assert 5 < len([m async for m in inner.list()]) < 35


async def test_only_chosen_operations_fail_and_the_store_can_be_healed(inner: MemoryObjectStore) -> None:
    store = FaultyObjectStore(inner, 1, {"get": ObjectFaults(throttled=1)})
    await store.put("a", [b"x"])
    with pytest.raises(ObjectStoreThrottled):
        await store.get("a")
    store.faults = {}
    assert bytes(await store.get("a")) == b"x"


async def test_a_listing_can_fail_in_the_middle(inner: MemoryObjectStore) -> None:
    for i in range(1_000):
        await inner.put(f"{i:04d}", [])
    seen = []

    async def read(store: FaultyObjectStore) -> None:
        async for meta in store.list():
            seen.append(meta.name)  # noqa: PERF401  what came before the fault must be kept

    with pytest.raises(ObjectStoreThrottled):
        await read(FaultyObjectStore(inner, 2, {"list": ObjectFaults(throttled=0.3)}))
    assert 0 < len(seen) < 1_000


def test_impossible_faults_are_refused(inner: MemoryObjectStore) -> None:
    for bad in ({"throttled": -0.1}, {"throttled": 0.6, "stalled": 0.6}, {"delayed": 1.1}):
        with pytest.raises(InvalidArgument):
            ObjectFaults(**bad)
    with pytest.raises(InvalidArgument, match="unknown operations"):
        FaultyObjectStore(inner, 1, {"putt": ObjectFaults()})
