"""The LMDB store keeps the contract."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llog.limits import METADATA_SESSION_TIMEOUT_MS_MAX
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.lmdb.layout import BootClock
from llog.stores.metadata.port import MetadataStore
from llog.testing.metadata_contract import MetadataStoreContract, OpenStore, StoreLink


class JumpingClock(BootClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class SleepyLink(StoreLink):
    """No connection to break: replies are lost by the fault wrapper; a clock that jumps past every lease between two
    heartbeats is what a process meets that was stopped for a while."""

    networked = False

    def __init__(self, inner: LmdbStore, clock: JumpingClock) -> None:
        self.clock = clock
        self.store = self.faulty = FaultyMetadataStore(inner, random_source=random.Random(1))

    async def lose_replies(self) -> None:
        self.faulty.rates = FaultRates(lost_reply=1.0)

    async def cut(self) -> None:
        pytest.fail("there is no connection to cut")

    async def silence(self) -> None:
        self.clock.ahead_ms += METADATA_SESSION_TIMEOUT_MS_MAX

    async def heal(self) -> None:
        self.faulty.rates = FaultRates()


class TestLmdbStore(MetadataStoreContract):
    @pytest.fixture
    def clock(self) -> JumpingClock:
        return JumpingClock()

    @pytest.fixture
    async def open_store(self, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[OpenStore]:
        opened: list[LmdbStore] = []

        async def open_another() -> MetadataStore:
            opened.append(await LmdbStore.open(tmp_path / "metadata", clock=clock))
            return opened[-1]

        yield open_another
        for store in opened:
            await store.close()

    @pytest.fixture
    async def link(self, tmp_path: Path, clock: JumpingClock) -> AsyncIterator[StoreLink]:
        async with await LmdbStore.open(tmp_path / "metadata", clock=clock) as store:
            yield SleepyLink(store, clock)
