"""Strict gets of many coroutines in few calls: as strict as asked, and none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llog.errors import MetadataUnavailable
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import Key, MetadataStore, Record
from llog.stores.metadata.shared_reads import SHARED_CALL_KEYS, SHARED_CALLS_AT_ONCE, sharing_reads
from llog.stores.metadata.wrappers import ForwardingMetadataStore

KEYS = [Key(f"a/{number:04d}", "a") for number in range(600)]


class Slow(ForwardingMetadataStore):
    """Each call waits until `go` is set."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.go = asyncio.Event()
        self.calls: list[int] = []
        self.under_way = self.under_way_max = 0
        self.error: Exception | None = None

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        self.calls.append(len(keys))
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            await self.go.wait()
            if self.error is not None:
                raise self.error
            return await self.inner.get_many(keys, strict=strict)
        finally:
            self.under_way -= 1


@pytest.fixture
async def slow() -> Slow:
    store = MemoryStore(MemoryBacking())
    for key in KEYS[::2]:
        await store.put(key, key.path.encode())
    return Slow(store)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def found(record: Record | None) -> bytes | None:
    return None if record is None else record.value


async def test_gets_that_wait_go_together_and_each_caller_has_its_own_records(slow: Slow) -> None:
    async with sharing_reads(slow) as shared:
        reads = [asyncio.ensure_future(shared.get(key, strict=True)) for key in KEYS]
        pair = asyncio.ensure_future(shared.get_many(KEYS[:2], strict=True))
        await turns()
        slow.go.set()
        records = await asyncio.gather(*reads)
        assert [found(one) for one in await pair] == [KEYS[0].path.encode(), None]
    assert [found(one) for one in records] == [
        key.path.encode() if number % 2 == 0 else None for number, key in enumerate(KEYS)
    ]
    assert len(slow.calls) <= 2


async def test_a_get_never_joins_a_call_that_began_before_it(slow: Slow) -> None:
    async with sharing_reads(slow) as shared:
        first = asyncio.ensure_future(shared.get(KEYS[1], strict=True))
        await turns()
        await slow.inner.put(KEYS[1], b"new")
        second = asyncio.ensure_future(shared.get(KEYS[1], strict=True))
        await turns()
        slow.go.set()
        await first
        assert found(await second) == b"new"
    assert slow.calls == [1, 1]


async def test_calls_are_bounded_in_number_and_size(slow: Slow) -> None:
    async with sharing_reads(slow) as shared:
        reads = []
        for _ in range(20):
            reads += [asyncio.ensure_future(shared.get_many(KEYS[:500], strict=True)) for _ in range(5)]
            await turns()
        slow.go.set()
        await asyncio.gather(*reads)
    assert slow.under_way_max == SHARED_CALLS_AT_ONCE
    assert sum(slow.calls) == 20 * 5 * 500
    assert max(slow.calls) < SHARED_CALL_KEYS + 500


async def test_other_gets_and_large_ones_are_passed_on(slow: Slow) -> None:
    slow.go.set()
    async with sharing_reads(slow) as shared:
        assert found(await shared.get(KEYS[0])) == KEYS[0].path.encode()
        many = [KEYS[0]] * SHARED_CALL_KEYS
        assert len(await shared.get_many(many, strict=True)) == SHARED_CALL_KEYS


async def test_an_error_reaches_every_caller_of_the_call_and_the_next_call_is_made(slow: Slow) -> None:
    slow.error = MetadataUnavailable("get", "a", "away")
    async with sharing_reads(slow) as shared:
        reads = [asyncio.ensure_future(shared.get(key, strict=True)) for key in KEYS[:3]]
        await turns()
        slow.go.set()
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(one, MetadataUnavailable) for one in outcomes)
        slow.error = None
        assert found(await shared.get(KEYS[0], strict=True)) == KEYS[0].path.encode()


async def test_a_caller_that_is_cancelled_takes_no_other_along_and_the_end_leaves_no_call(slow: Slow) -> None:
    async with sharing_reads(slow) as shared:
        gone, stays = [asyncio.ensure_future(shared.get(key, strict=True)) for key in KEYS[:2]]
        await turns()
        gone.cancel()
        await turns()
        assert slow.under_way == 1
        later = asyncio.ensure_future(shared.get(KEYS[2], strict=True))
        await turns()
    assert slow.under_way == 0
    for read in (stays, later):
        with pytest.raises(asyncio.CancelledError):
            await read
