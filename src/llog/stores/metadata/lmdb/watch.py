"""A watch: reads the change feed whenever the environment has a new transaction.

No process tells another that it committed, so the watcher looks at the number of the last transaction, which lies in
the shared map: that is one load from memory, without a transaction or a system call. Only a new number makes it read
the feed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

import lmdb

from llog.errors import MetadataStoreError, StoreClosed
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.changes import ChangeQueue
from llog.stores.metadata.lmdb.environment import Environment
from llog.stores.metadata.lmdb.feed import LMDB_WATCH_LEASE_MS, FeedPage, FeedStart, read_feed

# How often a watcher looks for a new transaction: the longest delay of a change.
LMDB_WATCH_POLL_MS: Final = 200
# Pause after an error of the store.
LMDB_WATCH_RETRY_MS: Final = 5_000
# A lease with less time left than this is extended.
LMDB_WATCH_RENEW_MS: Final = LMDB_WATCH_LEASE_MS // 2

_log = logging.getLogger(__name__)


class FeedAccess(Protocol):
    """What a watcher needs of its store."""

    async def extend_feed(self) -> FeedStart: ...

    async def read_feed(self, work: Callable[[lmdb.Transaction[bytes]], FeedPage]) -> FeedPage: ...


class LmdbWatcher(ChangeQueue):
    def __init__(self, store: FeedAccess, environment: Environment, prefix: str) -> None:
        super().__init__(environment.url, prefix)
        self._store, self._environment = store, environment
        self._version = 0
        self._expires_at_ms = 0
        self._transaction = -1
        """Number of the last transaction whose changes were read."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when all later changes will be seen."""
        started = await self._store.extend_feed()
        self._version, self._expires_at_ms = started.version, started.expires_at_ms
        self._task = asyncio.create_task(self._follow(), name=f"lmdb watch of {self.prefix}")

    async def _follow(self) -> None:
        pause_ms = LMDB_WATCH_POLL_MS
        while True:
            await asyncio.sleep(pause_ms / 1_000)
            pause_ms = LMDB_WATCH_POLL_MS
            try:
                await self._extend()
                await self._read()
            except StoreClosed:
                self.end()
                return
            except MetadataStoreError as error:
                # The feed still holds what was not read, or shows a gap.
                _log.warning("a watch could not read its changes, and tries again: %s", error)
                pause_ms = LMDB_WATCH_RETRY_MS

    async def _extend(self) -> None:
        if self._expires_at_ms - self._environment.clock.now_ms() > LMDB_WATCH_RENEW_MS:
            return
        extended = await self._store.extend_feed()
        self._expires_at_ms = extended.expires_at_ms
        if not extended.unbroken:
            self._version = extended.version
            self.resync()

    async def _read(self) -> None:
        transaction = self._environment.last_transaction()
        if transaction is not None and transaction == self._transaction:
            return
        page = await self._store.read_feed(
            lambda txn: read_feed(txn, self._version, self.prefix, changes_max=METADATA_WATCH_QUEUE_MAX)
        )
        self._version, self._transaction = page.version, -1 if transaction is None else transaction
        if page.gap:
            self.resync()
        self.offer_all(page.changes)

    async def close(self) -> None:
        self.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
