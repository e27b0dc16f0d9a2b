"""What the meter of a metadata store counts; and that a store behind it keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from llog import errors
from llog.errors import InvalidArgument, MetadataStoreError, MetadataUncertain, StoreClosed, VersionConflict
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import ABSENT, GroupOutcome, Key, MetadataStore, Put, Write
from llog.stores.metadata.wrappers import MeteredMetadataStore
from llog.stores.metering import METADATA_ERRORS, METADATA_OPERATIONS, MetadataStoreStats, OperationStats, outcome_of
from tests.contract.test_metadata_memory import MemoryContract
from tests.patience import PATIENCE_SECONDS

PARENT = Key("a")


@pytest.fixture
async def store() -> AsyncIterator[MeteredMetadataStore]:
    async with MeteredMetadataStore(MemoryStore(MemoryBacking())) as store:
        yield store


def calls(stats: MetadataStoreStats) -> dict[str, int]:
    return {name: operation.call_count for name, operation in stats.operations.items() if operation.call_count}


def items(stats: MetadataStoreStats) -> dict[str, int]:
    return {name: operation.item_count for name, operation in stats.operations.items() if operation.item_count}


def errors_of(operation: OperationStats) -> dict[str, int]:
    return {kind: count for kind, count in operation.outcomes.items() if count}


async def test_calls_and_what_they_carry_are_counted_by_operation(store: MeteredMetadataStore) -> None:
    await store.put(Key("a/1"), b"x")
    await store.write([(Put(Key("a/2"), b"y"), Put(Key("a/3"), b"y")), (Put(Key("a/4"), b"z"),)])
    await store.get(Key("a/1"))
    await store.get_many([Key("a/1"), Key("a/9")])
    await store.ceiling(PARENT, "2")
    assert len(await store.scan(PARENT)) == 4
    assert len([record async for record in store.scan_tree("a")]) == 4
    await store.delete(Key("a/1"))
    await store.server_time_ms()
    await store.raise_versions(1)
    await (await store.open_session(timeout_ms=2_000)).close()
    assert calls(store.stats) == {
        "get": 1, "get_many": 1, "ceiling": 1, "scan": 1, "scan_tree": 1, "put": 1, "delete": 1, "write": 1,
        "open_session": 1, "server_time": 1, "raise_versions": 1,
    }  # fmt: skip
    assert items(store.stats) == {
        "get": 1, "get_many": 2, "ceiling": 1, "scan": 4, "scan_tree": 4, "put": 1, "delete": 1, "write": 3,
    }  # fmt: skip
    assert not any(errors_of(operation) for operation in store.stats.operations.values())


async def test_a_long_scan_counts_its_pages(store: MeteredMetadataStore) -> None:
    await store.write([(Put(Key(f"a/{i:04}"), b"x"),) for i in range(1_500)])
    assert len([record async for record in store.scan_all(PARENT)]) == 1_500
    assert (calls(store.stats)["scan"], items(store.stats)["scan"]) == (2, 1_500)


async def test_each_refused_group_of_a_write_is_an_error_of_its_kind(store: MeteredMetadataStore) -> None:
    await store.put(Key("a/1"), b"x")
    with pytest.raises(VersionConflict):
        await store.put(Key("a/1"), b"y", expected=ABSENT)
    outcomes = await store.write([(Put(Key(f"a/{i}"), b"y", ABSENT),) for i in (1, 2)])
    assert [isinstance(outcome, VersionConflict) for outcome in outcomes] == [True, False]
    with pytest.raises(InvalidArgument):
        await store.get(Key("a//b"))
    seen = store.stats.operations
    assert seen["put"].outcomes == {**dict.fromkeys(METADATA_ERRORS, 0), "conflict": 1}
    assert seen["write"].outcomes == {**dict.fromkeys(METADATA_ERRORS, 0), "conflict": 1}
    assert seen["get"].outcomes == {**dict.fromkeys(METADATA_ERRORS, 0), "invalid": 1}
    assert (seen["put"].call_count, seen["write"].call_count) == (2, 1)


async def test_latencies_fall_into_cumulative_buckets() -> None:
    ticks = iter([0.0, 0.00005, 10.0, 10.015, 20.0, 80.0])
    store = MeteredMetadataStore(MemoryStore(MemoryBacking()), clock=lambda: next(ticks))
    for _ in range(3):
        await store.get(Key("a"))
    get = store.stats.operations["get"]
    assert get.latency_ms_sum == pytest.approx(60_015.05)
    buckets = get.latency_ms_buckets()
    assert (buckets[0.1], buckets[10.0], buckets[20.0], buckets[10_000.0], buckets[float("inf")]) == (1, 1, 2, 2, 3)


async def test_a_scan_that_is_left_early_is_no_failure_and_a_slow_reader_no_latency() -> None:
    now = [0.0]
    store = MeteredMetadataStore(MemoryStore(MemoryBacking()), clock=lambda: now[0])
    await store.write([(Put(Key(f"a/{i}"), b"x"),) for i in range(3)])
    records = store.scan_tree("a")
    await anext(records)
    now[0] += 60
    await records.aclose()  # type: ignore[attr-defined]
    scan = store.stats.operations["scan_tree"]
    assert (scan.call_count, scan.item_count, errors_of(scan), scan.latency_ms_sum) == (1, 1, {}, 0.0)


async def test_a_cancelled_call_is_counted_as_such() -> None:
    class Silent(MemoryStore):
        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            await asyncio.sleep(60)
            return []

    store = MeteredMetadataStore(Silent(MemoryBacking()))
    waiting = asyncio.create_task(store.put(Key("a"), b"x"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert errors_of(store.stats.operations["put"]) == {"cancelled": 1}


async def test_changes_of_a_watch_are_counted_and_a_cancelled_waiter_does_not_end_it(
    store: MeteredMetadataStore,
) -> None:
    async with store.watch("a") as changes:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(changes), 0.01)
        await store.put(Key("a/1"), b"x")
        assert (await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).path == "a/1"
    assert (calls(store.stats)["watch"], items(store.stats)["watch"]) == (1, 1)


async def test_a_lost_session_is_counted_and_its_owner_is_notified() -> None:
    now = [0]
    inner = MemoryStore(MemoryBacking(clock_ms=lambda: now[0]))
    store, lost = MeteredMetadataStore(inner), asyncio.Event()
    inner.freeze()
    session = await store.open_session(timeout_ms=2_000, on_lost=lost.set)
    now[0] += 10_000
    with pytest.raises(errors.SessionLost):
        await store.put(Key("a"), b"x", session=session)
    await asyncio.wait_for(lost.wait(), PATIENCE_SECONDS)
    assert store.stats.sessions_lost == 1
    assert errors_of(store.stats.operations["put"]) == {"session_lost": 1}
    await store.close()


def test_every_metadata_error_has_a_kind_of_its_own() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    classes = [c for c in classes if issubclass(c, MetadataStoreError) and c is not MetadataStoreError]
    names = [outcome_of(c("put", "a", 1) if c is VersionConflict else c("put", "a")) for c in classes]
    assert len(set(names)) == len(classes)
    assert set(names) < set(METADATA_ERRORS)
    assert "error" not in names
    assert outcome_of(StoreClosed("put", "a")) == "closed"
    assert outcome_of(RuntimeError()) == "error"
    assert outcome_of(MetadataUncertain("put", "a")) == "uncertain"


def test_every_operation_and_error_is_counted_before_it_happened() -> None:
    operations = MetadataStoreStats().operations
    assert tuple(operations) == METADATA_OPERATIONS
    assert all(tuple(operation.outcomes) == METADATA_ERRORS for operation in operations.values())


class TestMeteredMemoryStore(MemoryContract):
    def wrapped(self, store: MetadataStore) -> MetadataStore:
        return MeteredMetadataStore(store)
