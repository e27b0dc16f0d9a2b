"""What the objects and the requests for them cost: the figures behind `s3.billing`.

Why it exists: a diskless log is paid for by the request and by the byte kept. Requests are counted as they happen
(`stores.objects.metered`); bytes kept are only known by listing the bucket, which costs requests itself. So a listing
is good for BILLING_LIST_INTERVAL_MS, longer where it takes long, and its requests are counted like all others
(operation `list`). A reader opens a store when an entry names it, so that one may come to be listed at any time.

What must stay true: a listing that fails leaves the last figures standing and is counted; one listing at a time per
process; the kind of the store is told beside the figures, so that nobody takes a directory's for a bill.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from llog.errors import StoreError
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.pricing import Prices, StorageFootprint, measure_footprint
from llog.stores.objects.stats import ObjectStoreStats

# How long a count of the bucket's objects is good for: each costs a list request per thousand objects …
BILLING_LIST_INTERVAL_MS: Final = 300_000
# … and in a large bucket counting takes at most one part in so many of the time.
BILLING_LIST_TIME_SHARE: Final = 100
# How soon a store that is opened while the process runs is counted for the first time; looking costs no request.
BILLING_LOOK_MS: Final = 5_000


__all__ = ["ASSUMPTIONS", "BilledStore", "Billing", "Tier", "plan_next_listing_ms"]

_log = logging.getLogger("llog.telemetry.billing")

Tier = Literal["wal", "objects", "elsewhere"]

ASSUMPTIONS: Final = "S3 Standard, us-east-1"
"""What the prices are those of."""


@dataclass(slots=True)
class BilledStore:
    """One object store of this process; where fresh bytes land in the same store as all others, `objects` alone.

    `store` is the metered one, or a wrapper of it: listing it must count in `stats`.
    """

    tier: Tier
    store: ObjectStore
    stats: ObjectStoreStats
    listed: bool = True
    """Its objects are ours, and counted from time to time."""
    footprint: StorageFootprint | None = None
    """None: never listed."""
    listed_at_ms: int = 0
    due_ms: int = 0
    """When its objects are counted next."""
    list_failures: int = 0

    @property
    def kind(self) -> str:
        return self.store.kind

    @property
    def prices(self) -> Prices:
        return self.stats.prices

    @property
    def requests_usd(self) -> float:
        return self.stats.requests_usd

    @property
    def storage_usd_per_month(self) -> float:
        return 0.0 if self.footprint is None else self.prices.storage_usd_per_month(self.footprint.stored_bytes)


def plan_next_listing_ms(ended_at_ms: int, took_ms: int) -> int:
    """When to list again: at most a hundredth of the time is spent on it, however large the bucket is."""
    return ended_at_ms + max(BILLING_LIST_INTERVAL_MS, took_ms * BILLING_LIST_TIME_SHARE)


class Billing:
    """Keeps the footprints of some stores fresh enough. `now_ms` is wall-clock time."""

    def __init__(self, stores: Sequence[BilledStore], *, root_prefix: str, now_ms: Callable[[], int]) -> None:
        self.stores = stores
        """May grow: a reader opens stores as entries name them."""
        self._prefix, self._now_ms = f"{root_prefix}/", now_ms
        self._one_at_a_time = asyncio.Lock()

    async def refresh(self) -> bool:
        """List every store whose last count is no longer good; whether there was one."""
        async with self._one_at_a_time:
            due = [billed for billed in self.stores if billed.listed and billed.due_ms <= self._now_ms()]
            for billed in due:
                began_ms = self._now_ms()
                try:
                    await self._measure(billed)
                finally:
                    ended_ms = self._now_ms()
                    billed.due_ms = plan_next_listing_ms(ended_ms, max(0, ended_ms - began_ms))
            return bool(due)

    async def run(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Refresh for ever; `sleep` takes seconds. Cancel it to stop."""
        while True:
            await self.refresh()
            await sleep(BILLING_LOOK_MS / 1_000)

    async def _measure(self, billed: BilledStore) -> None:
        try:
            billed.footprint = await measure_footprint(billed.store, self._prefix)
        except StoreError as error:
            billed.list_failures += 1
            _log.warning("the objects of %s could not be counted: %s", billed.tier, error)
        else:
            billed.listed_at_ms = self._now_ms()
