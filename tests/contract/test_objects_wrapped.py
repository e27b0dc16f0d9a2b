"""The object contract on every wrapper around a memory store: a wrapper must not change what a store promises."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from llog.stores.objects import memory
from llog.stores.objects.faulty import FaultyObjectStore, ObjectFaults
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore, RetryingObjectStore, RetryPolicy
from llog.testing.object_contract import ObjectStoreContract


@pytest.fixture
async def inner() -> AsyncIterator[ObjectStore]:
    url = f"memory://{uuid4().hex}"
    yield MemoryObjectStore(url)
    memory.forget(url)


async def no_sleep(seconds: float) -> None:
    return None


class TestMetered(ObjectStoreContract):
    @pytest.fixture
    async def store(self, inner: ObjectStore) -> ObjectStore:
        return MeteredObjectStore(inner)


class TestRetrying(ObjectStoreContract):
    @pytest.fixture
    async def store(self, inner: ObjectStore) -> ObjectStore:
        return RetryingObjectStore(inner)


class TestFaultyWithoutFaults(ObjectStoreContract):
    @pytest.fixture
    async def store(self, inner: ObjectStore) -> ObjectStore:
        return FaultyObjectStore(inner, 1, ObjectFaults())


@pytest.mark.parametrize("seed", [1, 2, 3])
class TestRetryingOverAStoreThatFailsHalfOfTheTime(ObjectStoreContract):
    """Retries hide every fault: throttling, lost answers, stalls, also of conditional puts."""

    @pytest.fixture
    async def store(self, inner: ObjectStore, seed: int) -> ObjectStore:
        faults = ObjectFaults(throttled=0.2, lost_answer=0.2, stalled=0.1, delayed=0.5)
        faulty = FaultyObjectStore(inner, seed, faults, sleep=no_sleep)
        # At one failure in two, 60 attempts leave no chance to a run of bad luck.
        policy = RetryPolicy(attempts_max=60)
        metered = MeteredObjectStore(faulty)
        return RetryingObjectStore(metered, policy, sleep=no_sleep, rng=random.Random(seed))
