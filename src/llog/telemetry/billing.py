"""The cost of the objects and of the requests for them: the figures behind `s3.billing`.

Requests are counted as they happen (`MeteredObjectStore`), those of Spark tasks when their results arrive. Stored bytes
are only known by listing the bucket, which costs requests itself, so a listing is used for BILLING_LIST_INTERVAL_MS,
longer where it takes long, and its requests are counted like all others (operation `list`). A reader opens a store when
an entry names it, so a store may join at any time. A listing that fails keeps the last figures and is counted; one
listing runs at a time per process. The figures carry the kind of the store, because for a directory they are no bill.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from llog.errors import StoreError
from llog.stores.metering import ObjectStoreStats
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.pricing import Prices, StorageFootprint, measure_footprint

BILLING_LIST_INTERVAL_MS: Final = 300_000
"""The shortest time between two listings of a store; each costs a request per thousand objects."""
BILLING_LIST_TIME_SHARE: Final = 100
"""Listing takes at most 1/100 of the time, however large the bucket is."""
BILLING_CHECK_MS: Final = 5_000
"""How often `run` checks which stores are due; checking costs no request."""

_log = logging.getLogger("llog.telemetry.billing")

Tier = Literal["wal", "objects", "elsewhere"]

ASSUMPTIONS: Final = "S3 Standard, us-east-1"
"""The price list of the estimate."""


@dataclass(slots=True)
class BilledStore:
    """One object store of this process; where one store serves as WAL and for segments, its tier is `objects`."""

    tier: Tier
    kind: str
    stats: ObjectStoreStats
    store: ObjectStore | None = None
    """The metered one, or a wrapper of it: listing it must count in `stats`. None: its objects do not belong to this
    cluster, so they are never listed."""
    footprint: StorageFootprint | None = None
    """None: it was never listed."""
    listed_at_ms: int = 0
    listed_mark: int | None = None
    due_ms: int = 0
    """When its objects are listed next."""
    list_failures: int = 0

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
    """When to list again, so that listing takes at most 1 / BILLING_LIST_TIME_SHARE of the time."""
    return ended_at_ms + max(BILLING_LIST_INTERVAL_MS, took_ms * BILLING_LIST_TIME_SHARE)


class Billing:
    """Keeps the footprints of stores fresh. `now_ms` is wall-clock time."""

    def __init__(
        self,
        stores: Sequence[BilledStore],
        *,
        root_prefix: str,
        now_ms: Callable[[], int],
        mark: Callable[[], int] | None = None,
    ) -> None:
        """`mark`: equal marks mean that no object came or went in between, so a listing still holds; None: unknown."""
        self.stores = stores
        """May grow, because a reader opens stores as entries name them."""
        self._prefix, self._now_ms, self._mark = f"{root_prefix}/", now_ms, mark
        self._one_at_a_time = asyncio.Lock()

    async def refresh(self) -> bool:
        """List every store that is due; return whether one was."""
        async with self._one_at_a_time:
            due = [
                (billed, billed.store)
                for billed in self.stores
                if billed.store is not None and billed.due_ms <= self._now_ms()
            ]
            for billed, store in due:
                began_ms, mark = self._now_ms(), None if self._mark is None else self._mark()
                if mark is not None and mark == billed.listed_mark:
                    billed.due_ms = plan_next_listing_ms(began_ms, 0)
                    continue
                try:
                    await self._measure(billed, store, mark)
                finally:
                    ended_ms = self._now_ms()
                    billed.due_ms = plan_next_listing_ms(ended_ms, max(0, ended_ms - began_ms))
            return bool(due)

    async def run(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        """Refresh for ever; `sleep` takes seconds. Cancel it to stop."""
        while True:
            await self.refresh()
            await sleep(BILLING_CHECK_MS / 1_000)

    async def _measure(self, billed: BilledStore, store: ObjectStore, mark: int | None) -> None:
        try:
            billed.footprint = await measure_footprint(store, self._prefix)
        except StoreError as error:
            billed.list_failures += 1
            _log.warning("listing the objects of the %s store failed, its last figures stay: %s", billed.tier, error)
        else:
            billed.listed_at_ms, billed.listed_mark = self._now_ms(), mark
