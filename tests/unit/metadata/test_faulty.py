"""The fault wrapper: what each failure means, and that a seed replays."""

from __future__ import annotations

import random

import pytest

from llog.errors import InvalidArgument, MetadataStoreError, MetadataTimeout, MetadataUnavailable, MetadataUncertain
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import Key, Put


def faulty(rates: FaultRates, seed: int = 1, *, atomic: bool = True) -> FaultyMetadataStore:
    return FaultyMetadataStore(MemoryStore(atomic_groups=atomic), random_source=random.Random(seed), rates=rates)


async def test_unavailable_means_nothing_happened() -> None:
    store = faulty(FaultRates(unavailable=1.0))
    with pytest.raises(MetadataUnavailable):
        await store.put(Key("a"), b"1")
    with pytest.raises(MetadataUnavailable):
        await store.get(Key("a"))
    assert await store.inner.get(Key("a")) is None


async def test_a_lost_reply_means_it_happened_and_a_lost_request_that_it_did_not() -> None:
    for rates, happened in ((FaultRates(lost_reply=1.0), True), (FaultRates(lost_request=1.0), False)):
        store = faulty(rates)
        with pytest.raises(MetadataUncertain):
            await store.put(Key("a"), b"1")
        assert (await store.inner.get(Key("a")) is not None) == happened
        with pytest.raises(MetadataTimeout):
            await store.get(Key("a"))


async def test_groups_share_one_fate_on_an_atomic_store_only() -> None:
    groups = [(Put(Key(f"k/{i}"), b"1"),) for i in range(64)]
    for atomic in (True, False):
        store = faulty(FaultRates(lost_reply=1.0), atomic=atomic)
        outcomes = await store.write(groups)
        assert all(isinstance(outcome, MetadataUncertain) for outcome in outcomes)
        landed = len(await store.inner.scan(Key("k")))
        assert landed == 64 if atomic else 0 < landed < 64


async def test_one_seed_gives_one_history() -> None:
    async def history(seed: int) -> list[str]:
        slept: list[str] = []

        async def sleep(seconds: float) -> None:
            slept.append(f"{seconds:.6f}")

        rates = FaultRates(delay=0.3, unavailable=0.2, lost_reply=0.2, lost_request=0.2)
        store = FaultyMetadataStore(MemoryStore(), random_source=random.Random(seed), rates=rates, sleep=sleep)
        for i in range(50):
            try:
                slept.append(str(await store.put(Key("a"), str(i).encode())))
            except MetadataStoreError as error:
                slept.append(repr(error))
        return slept

    assert await history(7) == await history(7)
    assert await history(7) != await history(8)


async def test_what_can_never_be_accepted_is_refused_before_it_can_be_lost() -> None:
    store = faulty(FaultRates(lost_reply=1.0))
    with pytest.raises(InvalidArgument):
        await store.put(Key("a//b"), b"1")


@pytest.mark.parametrize(
    "rates", [FaultRates(delay=1.5), FaultRates(unavailable=0.6, lost_reply=0.6), FaultRates(lost_request=-1)]
)
def test_impossible_rates_are_refused(rates: FaultRates) -> None:
    with pytest.raises(InvalidArgument):
        faulty(rates)
