"""What the meter counts and what it would cost; and the memory store's sharing by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from llog import errors
from llog.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreThrottled,
    StoreClosed,
)
from llog.limits import GIB
from llog.stores.metering import OBJECT_OPERATIONS, OBJECT_OUTCOMES, outcome_of
from llog.stores.objects import memory
from llog.stores.objects.faulty import FaultyObjectStore, ObjectFaults
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import Buffer, ByteRange
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1, measure_footprint
from llog.stores.objects.wrappers import ForwardingObjectStore, MeteredObjectStore


@pytest.fixture
async def inner() -> AsyncIterator[MemoryObjectStore]:
    url = f"memory://{uuid4().hex}"
    yield MemoryObjectStore(url)
    memory.forget(url)


async def test_calls_are_counted_by_operation_outcome_and_bytes(inner: MemoryObjectStore) -> None:
    store = MeteredObjectStore(inner)
    await store.put("a", [b"12345", memoryview(b"678")])
    await store.get("a")
    await store.get_ranges("a", [ByteRange(0, 2), ByteRange(4, 2)])
    await store.get_tail("a", 3)
    await store.head("a")
    assert [m.name async for m in store.list()] == ["a"]
    await store.delete("a")
    for refused in (store.get("a"), store.head("a")):
        with pytest.raises(ObjectNotFound):
            await refused
    await store.put("b", [b"1"])
    with pytest.raises(ObjectAlreadyExists):
        await store.put("b", [b"1"], if_absent=True)
    seen = store.stats.operations
    assert {name: op.call_count for name, op in seen.items()} == {
        "put": 3, "get": 2, "range_get": 2, "head": 2, "list": 1, "delete": 1,
    }  # fmt: skip
    assert {name: op.byte_count for name, op in seen.items()} == {
        "put": 9, "get": 8, "range_get": 7, "head": 0, "list": 0, "delete": 0,
    }  # fmt: skip
    assert seen["put"].outcomes["already_exists"] == 1
    assert seen["get"].outcomes == {**dict.fromkeys(OBJECT_OUTCOMES, 0), "ok": 1, "not_found": 1}


async def test_latencies_fall_into_cumulative_buckets(inner: MemoryObjectStore) -> None:
    ticks = iter([0.0, 0.0005, 10.0, 10.015, 20.0, 80.0])
    store = MeteredObjectStore(inner, clock=lambda: next(ticks))
    for i in range(3):
        await store.put(f"{i}", [])
    put = store.stats.operations["put"]
    assert put.latency_ms_sum == pytest.approx(60_015.5)
    buckets = put.latency_ms_buckets()
    assert (buckets[1.0], buckets[10.0], buckets[20.0], buckets[10_000.0], buckets[float("inf")]) == (1, 1, 2, 2, 3)


async def test_requests_are_counted_as_the_bill_counts_them(inner: MemoryObjectStore) -> None:
    store = MeteredObjectStore(inner)
    await inner.put("a", [bytes(1_000_000)])
    await store.get_ranges("a", [ByteRange(0, 10), ByteRange(20, 10), ByteRange(900_000, 10)])
    await store.delete_many([f"absent-{i}" for i in range(1_001)])
    for i in range(2_000):
        await inner.put(f"many/{i}", [])
    assert len([m async for m in store.list("many/")]) == 2_000
    assert [m async for m in store.list("none/")] == []
    with pytest.raises(InvalidArgument):
        await store.get("../a")
    requests = {name: op.request_count for name, op in store.stats.operations.items()}
    assert requests == {"put": 0, "get": 0, "range_get": 2, "head": 0, "list": 3, "delete": 2}
    assert store.stats.requests_usd == pytest.approx(3 * 0.005 / 1_000 + 2 * 0.004 / 10_000)


async def test_a_throttled_and_a_cancelled_call_are_outcomes_too(inner: MemoryObjectStore) -> None:
    store = MeteredObjectStore(FaultyObjectStore(inner, 1, ObjectFaults(throttled=1)))
    with pytest.raises(ObjectStoreThrottled):
        await store.put("a", [b"x"])
    assert store.stats.operations["put"].outcomes == {**dict.fromkeys(OBJECT_OUTCOMES, 0), "throttled": 1}
    assert store.stats.operations["put"].byte_count == 0

    class Silent(ForwardingObjectStore):
        async def get(self, name: str) -> Buffer:
            await asyncio.sleep(60)
            return b""

    silent = MeteredObjectStore(Silent(inner))
    waiting = asyncio.create_task(silent.get("a"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert silent.stats.operations["get"].outcomes == {**dict.fromkeys(OBJECT_OUTCOMES, 0), "cancelled": 1}


def test_every_object_store_error_has_an_outcome_of_its_own() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    kinds = [k for k in kinds if ObjectStoreError in k.__bases__]  # a refinement of one counts as that one
    names = [outcome_of(kind("put", "a")) for kind in kinds]
    assert len(set(names)) == len(kinds)
    assert set(names) < set(OBJECT_OUTCOMES)
    assert "error" not in names
    assert outcome_of(StoreClosed("put", "a")) == "closed"
    assert outcome_of(RuntimeError()) == "error"
    assert outcome_of(None) == "ok"


def test_prices_are_those_of_the_list() -> None:
    prices = S3_STANDARD_US_EAST_1
    assert prices.requests_usd({"put": 1_000}) == pytest.approx(0.005)
    assert prices.requests_usd({"list": 2_000}) == pytest.approx(0.01)
    assert prices.requests_usd({"get": 5_000, "range_get": 4_000, "head": 1_000}) == pytest.approx(0.004)
    assert prices.requests_usd({"delete": 10**9}) == 0
    assert prices.requests_usd(dict.fromkeys(OBJECT_OPERATIONS, 0)) == 0
    assert prices.storage_usd_per_month(100 * GIB) == pytest.approx(2.3)


async def test_a_footprint_is_what_lies_under_the_prefix(inner: MemoryObjectStore) -> None:
    await inner.put("llog/a", [b"123"])
    await inner.put("llog/b/c", [b"4567"])
    await inner.put("other", [b"89"])
    assert await measure_footprint(inner, "llog/") == (await measure_footprint(inner, "llog"))
    footprint = await measure_footprint(inner, "llog/")
    assert (footprint.object_count, footprint.stored_bytes) == (2, 7)


async def test_two_openings_of_one_name_share_objects_until_it_is_forgotten() -> None:
    first = await memory.open_from_url("memory://shared-by-name")
    second = await memory.open_from_url("memory://shared-by-name/")
    other = await memory.open_from_url("memory://")
    await first.put("a", [b"x"])
    await first.close()
    assert bytes(await second.get("a")) == b"x"
    assert second.uri("a") == "memory://shared-by-name/a"
    assert other.uri("a") == "memory:///a"
    with pytest.raises(ObjectNotFound):
        await other.get("a")
    memory.forget("memory://shared-by-name")
    third = await memory.open_from_url("memory://shared-by-name")
    with pytest.raises(ObjectNotFound):
        await third.get("a")
    for bad in ("memory:x", "memory://a/b", "file:///x"):
        with pytest.raises(InvalidArgument):
            await memory.open_from_url(bad)
