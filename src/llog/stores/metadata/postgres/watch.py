"""Watching: one listening connection per store, shared by all its watchers.

Commits with NOTIFY wait for each other in the whole server, so only watched changes are announced: each store has a
lease, a row with its watched prefixes, which writers read.
- No change is missed. A prefix is registered and committed; then the barrier lock is taken once, exclusively. Writers
  hold it shared from before they read the prefixes until they have committed. So a writer that read the prefixes too
  early has committed when we get the lock, and a later writer sees the prefix. Only then the watch begins.
- A gap is reported. After a broken connection, or a lost lease (the row is missing, so writers may not have announced
  changes), there is a new connection, a new lease, the barrier, and a RESYNC for every watcher.
- A lease is valid while its row exists, expired or not, so a heartbeat cannot succeed on a lease that a writer already
  treated as ended.
- Only the listening connection removes prefixes, and a failure there ends the lease; other connections only add. So an
  abandoned statement that arrives late cannot remove a watched prefix.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import psycopg
from psycopg.types.numeric import Int8

from llog.errors import MetadataUnavailable, StoreClosed, StoreError
from llog.limits import POSTGRES_CONNECT_PAUSE_MS
from llog.stores.metadata.changes import ChangeQueue
from llog.stores.metadata.port import Change, ChangeKind
from llog.stores.metadata.postgres.connection import Connector, NoAnswer, PostgresLink, Row
from llog.stores.metadata.postgres.failures import translate
from llog.stores.metadata.postgres.pool import Caller
from llog.stores.metadata.postgres.schema import Statements
from llog.stores.metadata.postgres.wire import TextArray, text_array

# How often a listener checks that its connection still receives notifications.
POSTGRES_WATCH_RENEW_INTERVAL_MS: Final = 5_000
POSTGRES_WATCH_LEASE_MS: Final = 60_000
POSTGRES_WATCH_RECONNECT_PAUSE_MS_MAX: Final = 2_000

log = logging.getLogger(__name__)


def parse_payload(payload: str) -> list[Change]:
    """Lines of `version path`; version 0 means that the record was deleted."""
    changes = []
    for line in payload.split("\n"):
        version, _, path = line.partition(" ")
        number = int(version)
        changes.append(Change(ChangeKind.PUT, path, number) if number else Change(ChangeKind.DELETED, path))
    return changes


class LeaseGone(Exception):
    """The lease of this store does not exist any more."""


class Listener:
    def __init__(self, connector: Connector, caller: Caller, statements: Statements, *, client: str) -> None:
        self._connector, self._caller, self._statements, self._client = connector, caller, statements, client
        self._url = connector.address.url
        self._watchers: set[ChangeQueue] = set()
        self._task: asyncio.Task[None] | None = None
        self._link: PostgresLink | None = None
        self._lease: int | None = None
        self._covered: frozenset[str] = frozenset()
        self._established = asyncio.Event()
        self._changing_lease = asyncio.Lock()
        self._last_error: StoreError | None = None
        self._closed = False

    # -- for the store ------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        watcher = ChangeQueue(self._url, prefix)
        self._watchers.add(watcher)
        try:
            await self._cover(prefix)
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def close(self) -> None:
        """End the lease; if that fails, it expires."""
        self._closed = True
        for watcher in self._watchers:
            watcher.end()
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._established.set()  # wakes callers that wait to begin a watch
        if self._lease is not None:
            try:
                await self._caller.ask("close", "watch", self._statements.end_session, (Int8(self._lease),))
            except StoreError as error:
                log.warning("a watch could not be closed and ends at its timeout: %s", error)

    # -- registering --------------------------------------------------------------------------------------------
    async def _cover(self, prefix: str) -> None:
        """Return once every change below `prefix` that commits from now on will be announced."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen_for_ever(), name="llog watch")
        try:
            async with asyncio.timeout(self._caller.request_timeout_ms / 1000):
                while not await self._is_covered(prefix):
                    pass
        except TimeoutError:
            raise self._last_error or MetadataUnavailable("watch", self._url, "no connection in time") from None

    async def _is_covered(self, prefix: str) -> bool:
        await self._established.wait()
        if self._closed:
            raise StoreClosed("watch", self._url)
        async with self._changing_lease:
            lease = self._lease
            if lease is None:
                return False
            if prefix in self._covered:
                return True
            parameters = (text_array([prefix]), Int8(lease))
            if not await self._caller.ask("watch", prefix, self._statements.extend_lease, parameters):
                self._drop_lease()
                return False
            await self._caller.ask("watch", prefix, self._statements.barrier, ())
            if self._lease != lease:
                return False
            self._covered |= {prefix}
            return True

    def _drop_lease(self) -> None:
        self._lease = None
        self._established.clear()
        if self._link is not None:
            self._link.cut()  # wakes the listening task, which starts again

    # -- listening ----------------------------------------------------------------------------------------------
    async def _listen_for_ever(self) -> None:
        pause_ms = POSTGRES_CONNECT_PAUSE_MS
        gap = False
        while True:
            try:
                async with self._listening(gap=gap) as link:
                    pause_ms, gap = POSTGRES_CONNECT_PAUSE_MS, True
                    await self._hear(link)
            except LeaseGone:
                log.warning("%s dropped our watch; watching again", self._url)
                continue
            except StoreError as error:
                self._last_error = error
                log.warning("watch interrupted: %s", error)
            except Exception:
                # A bug; but it is better that watchers read everything again than that they get no more changes.
                log.exception("watch interrupted")
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, POSTGRES_WATCH_RECONNECT_PAUSE_MS_MAX)

    @asynccontextmanager
    async def _listening(self, *, gap: bool) -> AsyncIterator[PostgresLink]:
        deadline = self._deadline()
        link = await self._connector.connect(deadline=deadline)
        try:
            await self._run(link, self._statements.listen, ())
            async with self._changing_lease:
                prefixes = self._prefixes()
                lease_ms = Int8(POSTGRES_WATCH_LEASE_MS)
                parameters = (self._client, lease_ms, lease_ms, text_array(sorted(prefixes)))
                [[lease]] = await self._run(link, self._statements.open_lease, parameters)
                await self._run(link, self._statements.barrier, ())
                self._link, self._lease, self._covered, self._last_error = link, lease, prefixes, None
            if gap:
                for watcher in self._watchers:
                    watcher.resync()
            self._established.set()
            yield link
        finally:
            self._established.clear()
            link.close()
            if not self._closed:
                self._link = self._lease = None

    async def _hear(self, link: PostgresLink) -> None:
        """Pass on notifications, and check from time to time that the connection still receives them."""
        seconds = POSTGRES_WATCH_RENEW_INTERVAL_MS / 1000
        while True:
            try:
                # Not left early: notifications of the same packet would be lost.
                async with aclosing(link.connection.notifies(timeout=seconds)) as notifications:
                    async for notification in notifications:
                        self._publish(notification.payload)
                        await asyncio.sleep(0)  # one large commit has many notifications
            except psycopg.Error as error:
                raise translate(error, "watch", self._url, writing=False, connection_lost=True) from error
            await self._renew(link)

    def _publish(self, payload: str) -> None:
        try:
            changes = parse_payload(payload)
        except ValueError:
            log.warning("ignored a notification of another program on our channel: %r", payload[:80])
            for watcher in self._watchers:
                watcher.resync()
            return
        for watcher in self._watchers:
            for change in changes:
                watcher.offer(change)

    async def _renew(self, link: PostgresLink) -> None:
        async with self._changing_lease:
            if self._lease is None:
                raise LeaseGone
            prefixes = self._prefixes()
            parameters = (Int8(POSTGRES_WATCH_LEASE_MS), _or_none(prefixes), Int8(self._lease))
            self._covered &= prefixes
            if not await self._run(link, self._statements.renew_lease, parameters):
                raise LeaseGone

    def _prefixes(self) -> frozenset[str]:
        return frozenset(watcher.prefix for watcher in self._watchers)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._caller.request_timeout_ms / 1000

    async def _run(self, link: PostgresLink, statement: bytes, parameters: tuple[object, ...]) -> list[Row]:
        try:
            return await link.run(statement, parameters, deadline=self._deadline())
        except NoAnswer:
            raise MetadataUnavailable("watch", self._url, "no answer in time") from None
        except psycopg.Error as error:
            raise translate(error, "watch", self._url, writing=False, connection_lost=link.broken) from error


def _or_none(prefixes: frozenset[str]) -> TextArray | None:
    return text_array(sorted(prefixes)) if prefixes else None
