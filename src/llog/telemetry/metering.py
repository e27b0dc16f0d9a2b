"""Counters around the stores of a process, whatever process it is: a broker, the compaction service.

    meters = Meters(settings, metrics)
    opened = await open_log(settings, …, wrapping=meters.wrapping)
    billing = Billing(meters.stores, …)

A store is counted from its first call on and shown from the moment it is opened, which for stores that entries name may
be much later than the start. There is one row per tier and kind: stores that are neither the WAL's nor the segments' (a
bucket used before) are counted together as `elsewhere` and are never listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llog.settings import Settings
from llog.settings.urls import scheme_of
from llog.stores.metadata.port import MetadataStore
from llog.stores.metadata.wrappers import MeteredMetadataStore
from llog.stores.metering import ObjectStoreStats, RequestCounts
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore
from llog.telemetry.billing import BilledStore, Tier
from llog.telemetry.metrics import BrokerMetrics
from llog.wiring import Wrapping

STORE_NAMES: Final[Mapping[Tier, str]] = {"objects": "the object store", "wal": "the WAL store"}


def tier_of(url: str, settings: Settings) -> Tier:
    """`objects` where one store serves as WAL and for segments."""
    if url.rstrip("/") == settings.objects_url.rstrip("/"):
        return "objects"
    return "wal" if url.rstrip("/") == settings.wal_url.rstrip("/") else "elsewhere"


class Meters:
    def __init__(self, settings: Settings, metrics: BrokerMetrics) -> None:
        self._settings, self._metrics = settings, metrics
        self.stores: list[BilledStore] = []
        """Grows as stores are opened."""
        self.metered_metadata: MeteredMetadataStore | None = None
        self.named: dict[str, MeteredObjectStore] = {}
        """The stores that the settings name, by their names in messages; grows as they are opened."""

    @property
    def wrapping(self) -> Wrapping:
        return Wrapping(self.metadata, self.objects)

    def metadata(self, store: MetadataStore) -> MetadataStore:
        self.metered_metadata = MeteredMetadataStore(store)
        self._metrics.attach_metadata(self._settings.metadata_url, self.metered_metadata.stats)
        return self.metered_metadata

    def objects(self, store: ObjectStore) -> ObjectStore:
        """A store that was closed and is opened again continues its row."""
        tier = tier_of(store.url, self._settings)
        row = self._row(tier, store.kind)
        metered = MeteredObjectStore(store, row.stats)
        if row.store is None and tier != "elsewhere":
            row.store = metered
        if tier in STORE_NAMES:
            self.named[STORE_NAMES[tier]] = metered
        return metered

    def add_requests(self, requests: RequestCounts) -> None:
        """Count the requests that tasks made in other processes for this one."""
        for url, counts in requests.items():
            self._row(tier_of(url, self._settings), scheme_of(url)).stats.add(counts)

    def _row(self, tier: Tier, kind: str) -> BilledStore:
        row = next((billed for billed in self.stores if (billed.tier, billed.kind) == (tier, kind)), None)
        if row is None:
            row = BilledStore(tier, kind, ObjectStoreStats())
            self.stores.append(row)
            self._metrics.attach_objects([row])
        return row
