"""Stores are counted from the moment they are opened, one row per tier and kind."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from llog.broker.broker import Broker
from llog.broker.consume.consume import ConsumeRequest, PartitionFetch
from llog.errors import ObjectNotFound
from llog.log.keys import Log
from llog.settings import Settings
from llog.stores.metering import RequestCounts
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import ObjectMeter
from llog.telemetry.billing import Billing
from llog.telemetry.metering import Meters, tier_of
from llog.telemetry.metrics import BrokerMetrics
from tests.unit.broker.batching_bench import group
from tests.unit.telemetry.metric_pages import samples_of

ORDERS = Log("orders", 0)


@pytest.fixture
def settings() -> Settings:
    name = uuid4().hex
    return Settings.from_env(
        {}, metadata_url="memory://", wal_url=f"memory://wal-{name}", objects_url=f"memory://objects-{name}"
    )


def test_a_store_is_known_by_what_it_is_for(settings: Settings) -> None:
    assert tier_of(settings.wal_url, settings) == "wal"
    assert tier_of(settings.objects_url + "/", settings) == "objects"
    assert tier_of("s3://a-bucket-used-before", settings) == "elsewhere"
    assert tier_of(settings.wal_url, settings.replaced(objects_url=settings.wal_url)) == "objects"


async def test_stores_that_are_opened_later_appear_later_and_share_a_row(settings: Settings) -> None:
    metrics = BrokerMetrics()
    meters = Meters(settings, metrics)
    billing = Billing(meters.stores, root_prefix="llog", now_ms=lambda: 1)

    def opened(url: str) -> ObjectStore:
        return meters.wrapping.objects(MemoryObjectStore(url))

    await opened(settings.wal_url).put("llog/a", [b"x"])
    for _ in range(2):  # opened, closed for want of room, opened again
        await opened(settings.objects_url).put(f"llog/{uuid4().hex}", [b"xy"])
    for bucket in ("one", "two"):
        await opened(f"memory://{bucket}-{uuid4().hex}").put("llog/b", [b"xyz"])
    await billing.refresh()
    answer = samples_of(metrics.prometheus().decode())
    carried = {dict(labels)["tier"]: value for (name, labels), value in answer.items()
               if name == "llog_s3_bytes_total" and dict(labels)["operation"] == "put"}  # fmt: skip
    assert carried == {"wal": 1, "objects": 4, "elsewhere": 6}
    page = metrics.snapshot()["s3"]
    assert page["operations"]["put"]["calls"] == 5
    assert page["operations"]["list"]["calls"] == 2, "what is neither the WAL's nor the segments' is not listed"
    assert page["billing"]["tiers"]["objects"]["object_count"] == 2
    assert "object_count" not in page["billing"]["tiers"]["elsewhere"]


async def test_requests_of_tasks_in_other_processes_are_counted_with_those_of_this_one(settings: Settings) -> None:
    metrics = BrokerMetrics()
    meters = Meters(settings, metrics)
    await meters.wrapping.objects(MemoryObjectStore(settings.objects_url)).put("llog/a", [b"xy"])
    there = ObjectMeter()
    store = there.wrap(MemoryObjectStore(settings.objects_url))
    await store.put("llog/b", [b"xyz"])
    with pytest.raises(ObjectNotFound):
        await store.get("llog/missing")
    await there.wrap(MemoryObjectStore("memory://used-before")).put("llog/c", [b"x"])
    assert there.requests() == {"put": 2, "get": 1}
    sent = msgspec.msgpack.encode(there.take())
    assert there.take() == {}, "each request is reported once"
    meters.add_requests(msgspec.msgpack.decode(sent, type=RequestCounts))
    answer = samples_of(metrics.prometheus().decode())

    def value(name: str, tier: str, operation: str, **more: str) -> float:
        labels = {"tier": tier, "store": "memory", "operation": operation, **more}
        return next(value for (found, of), value in answer.items() if found == name and dict(of) == labels)

    assert value("llog_s3_requests_total", "objects", "put") == 2
    assert value("llog_s3_bytes_total", "objects", "put") == 5
    assert value("llog_s3_calls_total", "objects", "get", outcome="not_found") == 1
    assert value("llog_s3_call_seconds_count", "objects", "put") == 2
    assert value("llog_s3_requests_total", "elsewhere", "put") == 1, "a store that only tasks have opened"
    [objects, elsewhere] = meters.stores
    assert objects.requests_usd == pytest.approx(2 * 0.005 / 1_000 + 0.004 / 10_000)
    assert elsewhere.store is None, "never listed"


async def test_a_broker_that_only_reads_shows_the_stores_it_reads_from(settings: Settings) -> None:
    both = settings.replaced(metadata_url=f"memory://{uuid4().hex}")
    writer = await Broker.open(both)
    try:
        await writer.produce([group(ORDERS, b"x")])
        reader = await Broker.open(both, role="read")
        try:
            [fetched] = await reader.consume(ConsumeRequest((PartitionFetch(ORDERS, 1),)))
            assert fetched.error is None
            page = reader.metrics.snapshot()
        finally:
            await reader.close()
    finally:
        await writer.close()
    assert page["s3"]["tiers"] == {"wal": {"store": "memory"}}
    assert page["s3"]["operations"]["range_get"]["calls"] + page["s3"]["operations"]["get"]["calls"] == 1
    assert page["log"]["read_records"] == 1
