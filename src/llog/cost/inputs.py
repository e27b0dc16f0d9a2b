"""What the cost model is given: the load, the brokers, the compaction service, and prices. Each has a default and can
be changed; the names are those of `llog cost --json` and, with dashes, of its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from llog.broker.tail.batches import READ_AHEAD_WINDOW_BYTES
from llog.cost.kafka import BYTES_PER_MB
from llog.cost.network import NETWORK_US_EAST_1, NetworkPrices
from llog.errors import InvalidArgument
from llog.limits import COMPACT_WINDOW_BYTES_IN_SERVICE, MIB
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1, Prices

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]

Pacing = Literal["adaptive", "fixed"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    records_per_s: Positive = 1_000.0
    """Of all producers together."""
    record_bytes: Positive = 1_024.0
    """Of a record's value."""
    records_per_group: Positive = 32.0
    """Records of one partition in one request."""
    partitions_per_request: Count = 1
    partitions: Count = 16
    owners: Count = 1
    """Brokers that get the records of one partition: 1 with Kafka clients, which write to the partition's leader; as
    many as there are brokers behind a load balancer."""
    retention_hours: Positive = 168.0
    consumers_fanout: NotNegative = 1.0
    """How many times each record is read at the tail."""
    tail_cache_share: Share = 1.0
    """Part of these reads that brokers serve from memory."""
    cold_reads: NotNegative = 0.0
    """How many times each record is read again later, from object storage."""
    cold_get_bytes: Positive = float(READ_AHEAD_WINDOW_BYTES)
    """Bytes that a cold reader gets per request, unless a segment is smaller."""
    stored_bytes_per_byte: Positive = 1.0
    """Bytes in storage per byte of a value: below 1 with compression."""

    @property
    def mb_per_s(self) -> float:
        return self.records_per_s * self.record_bytes / BYTES_PER_MB


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    brokers: Count = 1
    """Those that take writes."""
    readers: NotNegative = 0
    """Further brokers, which only serve reads."""
    delay_ms: NotNegative = 500.0
    """LLOG_BATCH_MAX_DELAY_MS."""
    batch_max_bytes: Positive = float(8 * MIB)
    """LLOG_BATCH_MAX_BYTES."""
    store: Literal["s3", "local"] = "s3"
    """Where blobs go; brokers wait less where a put costs nothing."""
    pacing: Pacing = "adaptive"
    """`adaptive`: as our brokers flush; `fixed`: only after the delay or at the size."""
    upload_ms: NotNegative = 200.0
    """Of one blob; the next flush that is not full waits for it."""
    metadata_store: Literal["separate", "atomic"] = "separate"
    """`separate`: one write per record (Oxia). `atomic`: one transaction per flush (LMDB, PostgreSQL)."""
    cores: NotNegative = 2.0
    """Of one broker or compactor; counts only with a price per core hour."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    compactors: Annotated[int, Meta(ge=0)] = 1
    segment_bytes: Positive = float(64 * MIB)
    """LLOG_COMPACTOR_TRIGGER_BYTES."""
    segment_age_s: Positive = 60.0
    """LLOG_COMPACTOR_TRIGGER_AGE_MS."""
    min_age_s: NotNegative = 20.0
    """LLOG_COMPACTOR_MIN_AGE_MS."""
    window_bytes: Positive = float(COMPACT_WINDOW_BYTES_IN_SERVICE)
    """Bytes over all partitions that one task rewrites; a segment ends with it."""
    merge: bool = True
    """Small neighbouring segments are merged."""
    segment_records: Positive | None = None
    """Records of a segment, instead of the three limits above."""
    records_per_segment_key: Positive | None = None
    """Records that an index key of a segment covers; without it, a segment has one key."""
    vacuum_grace_s: Positive = 3_600.0
    """LLOG_VACUUM_GRACE_MS: compacted blobs are deleted after it."""
    list_page_ms: Positive = 100.0
    """Time of one list request, of 1,000 names."""


PRICE_NAMES: Final[Mapping[str, str]] = {
    "put": "dollars per 1,000 PUT and LIST requests",
    "get": "dollars per 10,000 GET requests",
    "storage": "dollars per GiB and month of stored objects",
    "wal-storage": "dollars per GiB and month of stored WAL blobs",
    "cross-zone": "dollars per GiB from one zone to another",
    "core-hour": "dollars per core and hour of brokers and compactors",
}


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars."""

    objects: Prices = S3_STANDARD_US_EAST_1
    wal_storage_per_gib_month: NotNegative = S3_STANDARD_US_EAST_1.storage_per_gib_month
    network: NetworkPrices = NETWORK_US_EAST_1
    core_hour: NotNegative = 0.0
    """0: machines are not counted."""

    def by_name(self) -> dict[str, float]:
        prices = self.objects
        return {
            "put": prices.per_1000_puts_and_lists,
            "get": prices.per_10000_gets_and_others,
            "storage": prices.storage_per_gib_month,
            "wal-storage": self.wal_storage_per_gib_month,
            "cross-zone": self.network.cross_zone_per_gib,
            "core-hour": self.core_hour,
        }

    def changed(self, changes: Iterable[str]) -> PriceList:
        """With prices given as `name=value`. Raises `InvalidArgument`."""
        prices = self.by_name()
        for change in changes:
            name, _, text = change.partition("=")
            if name not in prices:
                raise InvalidArgument("--price", f"no price is called {name!r}; there are {', '.join(prices)}")
            prices[name] = _price(name, text)
        return PriceList(
            objects=Prices(prices["storage"], prices["put"], prices["get"]),
            wal_storage_per_gib_month=prices["wal-storage"],
            network=replace(self.network, cross_zone_per_gib=prices["cross-zone"]),
            core_hour=prices["core-hour"],
        )


def _price(name: str, text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise InvalidArgument("--price", f"write {name}=0.01; {text!r} is no price in dollars")
    return price


class CostInputs(msgspec.Struct, frozen=True, kw_only=True):
    load: Load = Load()
    brokers: Brokers = Brokers()
    compaction: Compaction = Compaction()

    def __post_init__(self) -> None:
        if self.load.owners > self.brokers.brokers:
            raise InvalidArgument(
                "owners", f"{self.load.owners} of {self.brokers.brokers} brokers cannot own a partition"
            )
        if self.load.partitions_per_request > self.load.partitions:
            raise InvalidArgument("partitions_per_request", f"there are only {self.load.partitions} partitions")


_PARTS: Final = {"load": Load, "brokers": Brokers, "compaction": Compaction}


def input_names() -> tuple[str, ...]:
    return tuple(name for kind in _PARTS.values() for name in kind.__struct_fields__)


def inputs_of(values: Mapping[str, object], base: CostInputs | None = None) -> CostInputs:
    """`base` with these fields changed, by their names, whichever part has them. Raises `InvalidArgument`."""
    document: dict[str, dict[str, object]] = msgspec.to_builtins(base or CostInputs())
    for name, value in values.items():
        [part] = [part for part, kind in _PARTS.items() if name in kind.__struct_fields__]
        document[part][name] = value
    try:
        return msgspec.convert(document, CostInputs, strict=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").rpartition(".")[2]
        if isinstance(error.__cause__, InvalidArgument):
            raise error.__cause__ from None
        raise InvalidArgument(field or "inputs", reason) from None
