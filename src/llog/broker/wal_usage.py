"""How full a separate WAL store is, and the refusal of records when it is full.

A WAL disk fills when compaction cannot move records away, for example while the bucket is unreachable. Records that
were accepted are safe; the broker refuses new ones with "try again" while the store holds `LLOG_WAL_MAX_BYTES`. The
compactor hurries at three quarters of it.

The store is listed from time to time, more often as it fills. Bytes that this broker has accepted or uploaded since are
added at once, so one broker passes the limit by one request at most; several brokers pass it by what the others upload
between two measurements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from llog.errors import StoreError
from llog.settings.units import format_bytes
from llog.stores.objects.wrappers import MeteredObjectStore

# How often brokers and compactors list the store: where listing is free; where each request is billed; and there from
# this share of the limit on.
WAL_MEASURE_LOCAL_MS: Final = 2_000
WAL_MEASURE_REMOTE_MS: Final = 60_000
WAL_MEASURE_FILLING_MS: Final = 5_000
WAL_FILLING_FRACTION: Final = 0.5

_log: Final = logging.getLogger("llog.broker")


def plan_measure_interval_ms(used_bytes: int, max_bytes: int, *, is_local: bool) -> int:
    if is_local:
        return WAL_MEASURE_LOCAL_MS
    return WAL_MEASURE_FILLING_MS if used_bytes >= WAL_FILLING_FRACTION * max_bytes else WAL_MEASURE_REMOTE_MS


class WalUsage:
    """One per broker with a separate WAL store, on its event loop."""

    def __init__(
        self,
        store: MeteredObjectStore,
        prefix: str,
        max_bytes: int,
        *,
        accepted_bytes: Callable[[], int] = lambda: 0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`prefix` is that of blobs in `store`; `accepted_bytes` are on their way to it."""
        self._store, self._prefix, self.max_bytes, self._sleep = store, prefix, max_bytes, sleep
        self._accepted_bytes = accepted_bytes
        self._measured_bytes = 0
        self._uploaded_before = self._uploaded_bytes()
        self._is_full = False

    def _uploaded_bytes(self) -> int:
        return self._store.stats.operations["put"].byte_count

    @property
    def used_bytes(self) -> int:
        return self._measured_bytes + self._uploaded_bytes() - self._uploaded_before

    def refusal(self) -> str:
        """Why no record can be accepted now; empty if records are accepted."""
        used_bytes = self.used_bytes + self._accepted_bytes()
        if used_bytes < self.max_bytes:
            return ""
        return (
            f"the WAL store holds {format_bytes(used_bytes)}, and its limit is {format_bytes(self.max_bytes)}"
            " (LLOG_WAL_MAX_BYTES): compaction and vacuum must free some of it first"
        )

    async def measure(self) -> None:
        # A blob that is uploaded during the listing may count twice until the next measurement.
        uploaded = self._uploaded_bytes()
        self._measured_bytes = sum([blob.byte_length async for blob in self._store.list(self._prefix)])
        self._uploaded_before = uploaded
        is_full = bool(self.refusal())
        if is_full != self._is_full:
            self._is_full = is_full
            event = "the WAL store is full: records are refused" if is_full else "the WAL store has room again"
            fields = {"wal_bytes": self.used_bytes, "wal_max_bytes": self.max_bytes}
            _log.log(logging.WARNING if is_full else logging.INFO, event, extra={"llog": fields})

    async def run(self) -> None:
        """Measure repeatedly, until cancelled."""
        is_local = self._store.kind in ("file", "memory")
        while True:
            try:
                await self.measure()
            except StoreError as error:
                _log.debug("the WAL store cannot be measured: %s", error)
            pause_ms = plan_measure_interval_ms(self.used_bytes, self.max_bytes, is_local=is_local)
            await self._sleep(pause_ms / 1_000)
