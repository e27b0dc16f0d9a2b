"""The stores of a process, and what is put around them."""

from __future__ import annotations

import gc
import uuid
import weakref
from collections.abc import Callable

import pytest

from llog import wiring
from llog.settings import Settings
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore
from llog.telemetry.metering import Meters
from llog.telemetry.metrics import BrokerMetrics
from llog.wiring import OBJECT_STORES_OPEN_MAX, Use, Wrapping, opened_log

BUCKETS = 3 * OBJECT_STORES_OPEN_MAX


@pytest.fixture
def settings() -> Settings:
    own = f"memory://{uuid.uuid4().hex}"
    return Settings.from_env({"HOME": "/nonexistent"}, metadata_url=own, objects_url=own)


@pytest.fixture
def closing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is not in use is closed when another needs its place."""
    monkeypatch.setattr(wiring, "OBJECT_STORES_IDLE_MS_MIN", -1)


def counting(living: weakref.WeakSet[ObjectStore]) -> Callable[[ObjectStore], ObjectStore]:
    def wrap(store: ObjectStore) -> ObjectStore:
        metered = MeteredObjectStore(store)
        living.add(metered)
        return metered

    return wrap


async def test_stores_that_blobs_name_are_forgotten_beyond_a_limit(settings: Settings, closing_at_once: None) -> None:
    living: weakref.WeakSet[ObjectStore] = weakref.WeakSet()
    wrapping = Wrapping(lambda metadata: metadata, counting(living))
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT, wrapping=wrapping) as opened:
        for number in range(BUCKETS):
            store, name = await opened.context.find_object(f"memory://bucket-{number}/llog/blob")
            assert (store.url, name) == (f"memory://bucket-{number}", "llog/blob")
        del store
        gc.collect()
        assert len(living) == OBJECT_STORES_OPEN_MAX, "as many as are open"


async def test_one_that_is_asked_for_again_and_again_is_wrapped_once(settings: Settings, closing_at_once: None) -> None:
    async with opened_log(settings, blobs=Use.PUT) as opened:
        find = opened.context.find_object
        first, _ = await find("memory://often/llog/blob")
        for number in range(BUCKETS):
            await find(f"memory://once-{number}/llog/blob")
            again, _ = await find("memory://often/llog/blob")
            assert again is first


async def test_the_settings_own_store_keeps_its_wrapper_and_the_watch_on_it(
    settings: Settings, closing_at_once: None
) -> None:
    meters = Meters(settings, BrokerMetrics())
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT, wrapping=meters.wrapping) as opened:
        watched = meters.named["the object store"]
        for number in range(BUCKETS):
            await opened.context.find_object(f"memory://bucket-{number}/llog/blob")
        store, _ = await opened.context.find_object(f"{settings.objects_url}/llog/blob")
        assert store is opened.context.wal is opened.context.segments
        assert meters.named["the object store"] is watched
        assert [(row.tier, row.kind) for row in meters.stores] == [("objects", "memory"), ("elsewhere", "memory")]
