"""The reference model keeps the contract it defines: as one atomic store, and as a sharded compare-and-set store."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable

import pytest

from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import MetadataStore
from llog.testing.metadata_contract import MetadataStoreContract, OpenStore, StoreLink

# The model's clock may run faster than ours: sessions run out in a tenth of the time.
CLOCK_SPEED = 10


def fast_clock() -> Callable[[], int]:
    """Begins now: one that ran since the first import would be hours ahead of ours."""
    start, start_ms = time.monotonic(), int(time.time() * 1_000)
    return lambda: start_ms + int((time.monotonic() - start) * 1_000 * CLOCK_SPEED)


class FaultyLink(StoreLink):
    networked = False

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.store = self.faulty = FaultyMetadataStore(inner, random_source=random.Random(1))

    async def lose_replies(self) -> None:
        self.faulty.rates = FaultRates(lost_reply=1.0)

    async def cut(self) -> None:
        pytest.fail("there is no connection to cut")

    async def silence(self) -> None:
        self.inner.freeze()

    async def heal(self) -> None:
        self.faulty.rates = FaultRates()


class MemoryContract(MetadataStoreContract):
    clock_speed = CLOCK_SPEED

    def wrapped(self, store: MetadataStore) -> MetadataStore:
        """A wrapper keeps the contract when the model in it does."""
        return store

    @pytest.fixture
    def backing(self) -> MemoryBacking:
        return MemoryBacking(clock_ms=fast_clock())

    @pytest.fixture
    async def open_store(self, backing: MemoryBacking) -> AsyncIterator[OpenStore]:
        opened: list[MetadataStore] = []

        async def open_another() -> MetadataStore:
            opened.append(self.wrapped(MemoryStore(backing)))
            return opened[-1]

        yield open_another
        for store in opened:
            await store.close()

    @pytest.fixture
    async def link(self, backing: MemoryBacking) -> AsyncIterator[StoreLink]:
        async with MemoryStore(backing) as store:
            link = FaultyLink(store)
            link.store = self.wrapped(link.faulty)
            yield link


class TestAtomicMemoryStore(MemoryContract):
    pass


class TestShardedMemoryStore(MemoryContract):
    @pytest.fixture
    def backing(self) -> MemoryBacking:
        return MemoryBacking(shards=4, atomic_groups=False, clock_ms=fast_clock())
