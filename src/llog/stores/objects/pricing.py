"""Estimated cost of stored bytes and of requests, shown with the metrics.

Prices are those of S3 Standard in us-east-1, without data transfer, replication, lifecycle transitions, key management,
taxes and discounts. Request costs of several processes add up; a footprint describes the shared bucket, so take the
largest of several processes, not the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llog.limits import GIB
from llog.stores.objects.port import ObjectStore


@dataclass(frozen=True, slots=True)
class StorageFootprint:
    """Objects and bytes under a prefix at one moment."""

    object_count: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars."""

    storage_per_gib_month: float
    per_1000_puts_and_lists: float
    per_10000_gets_and_others: float

    def requests_usd(self, requests: Mapping[str, int]) -> float:
        """The price of requests counted by operation: `put`, `list`, `get`, `range_get`, `head`. Deletes are free."""
        first_class = requests.get("put", 0) + requests.get("list", 0)
        second_class = requests.get("get", 0) + requests.get("range_get", 0) + requests.get("head", 0)
        return (
            first_class / 1_000 * self.per_1000_puts_and_lists + second_class / 10_000 * self.per_10000_gets_and_others
        )

    def storage_usd_per_month(self, stored_bytes: int) -> float:
        """S3 counts a gigabyte as 2**30 bytes."""
        return stored_bytes / GIB * self.storage_per_gib_month


S3_STANDARD_US_EAST_1: Final = Prices(
    storage_per_gib_month=0.023, per_1000_puts_and_lists=0.005, per_10000_gets_and_others=0.004
)


async def measure_footprint(store: ObjectStore, prefix: str = "") -> StorageFootprint:
    """Count by listing, one request per thousand objects; callers should cache the result."""
    object_count = stored_bytes = 0
    async for meta in store.list(prefix):
        object_count += 1
        stored_bytes += meta.byte_length
    return StorageFootprint(object_count, stored_bytes)
