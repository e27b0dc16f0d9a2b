"""The billing estimate: the seeds' prices, a listing that is kept for a while, and the truth about the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from llog.errors import ObjectStoreUnavailable
from llog.limits import GIB
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectMeta
from llog.stores.objects.pricing import StorageFootprint
from llog.stores.objects.wrappers import MeteredObjectStore
from llog.telemetry.billing import (
    BILLING_CHECK_MS,
    BILLING_LIST_INTERVAL_MS,
    BilledStore,
    Billing,
    Tier,
    plan_next_listing_ms,
)
from llog.telemetry.metrics import BrokerMetrics


class Clock:
    now_ms = 1_760_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Bucket(MemoryObjectStore):
    """A memory store that can be away, or slow by our clock, or held."""

    away = False
    listing_takes_ms = 0

    def __init__(self, clock: Clock) -> None:
        super().__init__(f"memory://{uuid4().hex}")
        self.clock, self.listings, self.may_list = clock, 0, asyncio.Event()
        self.may_list.set()

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self.listings += 1
        await self.may_list.wait()
        self.clock.now_ms += self.listing_takes_ms
        if self.away:
            raise ObjectStoreUnavailable("list", prefix)
        async for meta in super().list(prefix, start_after=start_after):
            yield meta


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bucket(clock: Clock) -> Bucket:
    return Bucket(clock)


def billed(bucket: MemoryObjectStore, tier: Tier = "objects") -> BilledStore:
    store = MeteredObjectStore(bucket)
    return BilledStore(tier, store.kind, store.stats, store)


def made(clock: Clock, *stores: BilledStore) -> Billing:
    return Billing(stores, root_prefix="llog", now_ms=clock)


def page_of(billing: Billing) -> tuple[BrokerMetrics, dict[str, object]]:
    metrics = BrokerMetrics()
    metrics.attach_objects(billing.stores)
    return metrics, metrics.snapshot()["s3"]["billing"]


async def test_the_estimate_is_the_one_of_the_contract(bucket: Bucket, clock: Clock) -> None:
    store = billed(bucket)
    for operation, requests in {"put": 2_000, "list": 1_000, "get": 10_000, "range_get": 10_000}.items():
        store.stats.operations[operation].request_count = requests
    store.footprint = StorageFootprint(object_count=7, stored_bytes=100 * GIB)
    _, page = page_of(made(clock, store))
    assert page["request_cost_usd"] == pytest.approx(3 * 0.005 + 2 * 0.004)
    assert (page["object_count"], page["stored_bytes"], page["stored_gb"]) == (7, 100 * GIB, 100)
    assert page["storage_cost_usd_per_month"] == pytest.approx(2.3)
    assert page["prices_usd"] == {
        "gb_month": 0.023, "per_1000_put_copy_post_list": 0.005, "per_10000_get_and_other": 0.004,
    }  # fmt: skip
    assert page["assumptions"] == "S3 Standard, us-east-1"


async def test_the_figures_carry_the_kind_of_store(bucket: Bucket, clock: Clock) -> None:
    metrics, page = page_of(made(clock, billed(bucket)))
    assert page["store"] == "memory"
    assert 'llog_s3_billing_requests_usd_total{store="memory",tier="objects"} 0.0' in metrics.prometheus().decode()


async def test_only_the_root_prefix_is_counted_and_the_listing_is_a_list_request(bucket: Bucket, clock: Clock) -> None:
    for name, length in (("llog/a", 3), ("llog/b/c", 4), ("llogger/d", 5), ("other", 6)):
        await bucket.put(name, [b"x" * length])
    billing = made(clock, billed(bucket))
    assert "object_count" not in page_of(billing)[1], "not known is not zero"
    assert await billing.refresh()
    metrics, page = page_of(billing)
    assert (page["object_count"], page["stored_bytes"]) == (2, 7)
    assert page["request_cost_usd"] == pytest.approx(0.005 / 1_000)
    assert metrics.snapshot()["s3"]["operations"]["list"]["requests"] == 1
    assert page["tiers"]["objects"]["listed_at_seconds"] == clock.now_ms / 1_000  # type: ignore[index]


async def test_a_listing_is_kept_for_its_interval(bucket: Bucket, clock: Clock) -> None:
    billing = made(clock, billed(bucket))
    assert await billing.refresh()
    clock.now_ms += BILLING_LIST_INTERVAL_MS - 1
    assert not await billing.refresh()
    assert bucket.listings == 1
    clock.now_ms += 1
    assert await billing.refresh()
    assert bucket.listings == 2


async def test_a_listing_is_kept_while_no_object_comes_or_goes(bucket: Bucket, clock: Clock) -> None:
    mark = 1
    billing = Billing([billed(bucket)], root_prefix="llog", now_ms=clock, mark=lambda: mark)
    bucket.away = True
    await billing.refresh()
    bucket.away = False
    for _ in range(3):
        clock.now_ms += BILLING_LIST_INTERVAL_MS
        await billing.refresh()
    assert bucket.listings == 2, "the one that failed showed nothing"
    mark = 2
    clock.now_ms += BILLING_LIST_INTERVAL_MS
    await billing.refresh()
    assert bucket.listings == 3


def test_a_listing_that_takes_long_is_kept_longer() -> None:
    assert plan_next_listing_ms(1_000, took_ms=10) == 1_000 + BILLING_LIST_INTERVAL_MS
    assert plan_next_listing_ms(1_000, took_ms=60_000) == 1_000 + 6_000_000


async def test_a_slow_listing_is_waited_out_before_the_next(bucket: Bucket, clock: Clock) -> None:
    bucket.listing_takes_ms = BILLING_LIST_INTERVAL_MS
    billing = made(clock, billed(bucket))
    assert await billing.refresh()
    clock.now_ms += 2 * BILLING_LIST_INTERVAL_MS
    assert not await billing.refresh()


async def test_concurrent_refreshes_cause_one_listing(bucket: Bucket, clock: Clock) -> None:
    billing = made(clock, billed(bucket))
    bucket.may_list.clear()
    asking = [asyncio.create_task(billing.refresh()) for _ in range(20)]
    await asyncio.sleep(0)
    bucket.may_list.set()
    assert sum(await asyncio.gather(*asking)) == 1
    assert bucket.listings == 1


async def test_a_listing_that_fails_leaves_the_last_figures_and_is_counted(bucket: Bucket, clock: Clock) -> None:
    await bucket.put("llog/a", [b"123"])
    billing = made(clock, billed(bucket))
    await billing.refresh()
    listed_at = clock.now_ms / 1_000
    bucket.away = True
    clock.now_ms += BILLING_LIST_INTERVAL_MS
    assert await billing.refresh()
    assert not await billing.refresh(), "nor is it tried again at once"
    _, page = page_of(billing)
    assert page["stored_bytes"] == 3
    assert page["tiers"]["objects"]["list_failures"] == 1  # type: ignore[index]
    assert page["tiers"]["objects"]["listed_at_seconds"] == listed_at  # type: ignore[index]


async def test_tiers_are_shown_separately_and_added_up(clock: Clock) -> None:
    wal, objects = Bucket(clock), Bucket(clock)
    await wal.put("llog/wal-shared/1", [b"12345"])
    await objects.put("llog/a/1", [b"123"])
    billing = made(clock, billed(wal, "wal"), billed(objects))
    await billing.refresh()
    _, page = page_of(billing)
    assert (page["object_count"], page["stored_bytes"], page["store"]) == (2, 8, "memory")
    tiers = page["tiers"]
    assert isinstance(tiers, dict)
    assert (tiers["wal"]["stored_bytes"], tiers["objects"]["stored_bytes"]) == (5, 3)


async def test_it_refreshes_by_itself_until_it_is_cancelled(bucket: Bucket, clock: Clock) -> None:
    billing, ends_ms = made(clock, billed(bucket)), clock.now_ms + 2 * BILLING_LIST_INTERVAL_MS

    async def sleep(seconds: float) -> None:
        assert seconds >= 1, "looking is cheap, not free"
        clock.now_ms += int(seconds * 1_000)
        if clock.now_ms > ends_ms:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await billing.run(sleep)
    assert bucket.listings == 3


async def test_a_store_opened_later_is_counted_soon_and_the_others_when_they_are_due(
    bucket: Bucket, clock: Clock
) -> None:
    stores = [billed(bucket)]
    billing = Billing(stores, root_prefix="llog", now_ms=clock)
    assert await billing.refresh()
    later = Bucket(clock)
    await later.put("llog/a", [b"123"])
    stores.append(billed(later, "wal"))
    clock.now_ms += BILLING_CHECK_MS
    assert await billing.refresh()
    assert (bucket.listings, later.listings) == (1, 1)
    assert stores[1].footprint == StorageFootprint(object_count=1, stored_bytes=3)
