"""The metadata port on PostgreSQL: one table of records on one primary.

- Every statement goes to the primary, so every read is strict.
- A call of `write` is one statement, one transaction, one round trip (`schema.sql` has the function and explains why
  versions only increase; `failures` says when an outcome is uncertain).
- A session counts as ended from its expiry by the clock of the server. Every open store also deletes expired sessions,
  which notifies watchers. Setting back the clock of the server prolongs sessions.
- A store is bound to its event loop and not fork-safe. It does not work through a pooler that switches connections
  between statements, because LISTEN and the settings of the connection would be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from psycopg.types.numeric import Int8

from llog.errors import InvalidArgument, MetadataMisconfigured, MetadataStoreError, StoreClosed, StoreError
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.port import (
    Capabilities,
    Change,
    GroupOutcome,
    Key,
    MetadataStore,
    Record,
    Session,
    Write,
    check_get_many,
    check_groups,
    check_key,
    check_scan,
    check_session_timeout,
    check_version_floor,
)
from llog.stores.metadata.postgres import batch
from llog.stores.metadata.postgres.address import parse_url
from llog.stores.metadata.postgres.connection import Connector, NotPrimary
from llog.stores.metadata.postgres.pool import Caller, ConnectionPool
from llog.stores.metadata.postgres.schema import Names, Statements, open_schema
from llog.stores.metadata.postgres.session import PostgresSession, open_session
from llog.stores.metadata.postgres.watch import Listener
from llog.stores.metadata.postgres.wire import WireArray, text_array

# Encoding more than this takes milliseconds and runs in a thread.
POSTGRES_ENCODE_INLINE_GROUPS_MAX: Final = 2_048
POSTGRES_SWEEP_INTERVAL_MS: Final = 1_000
POSTGRES_CLOSE_TIMEOUT_MS: Final = 5_000

log = logging.getLogger(__name__)


class StoreSettings(Protocol):
    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def client_identifier(self) -> str: ...


class PostgresStore(MetadataStore):
    """One client of one table. `open_from_url` creates it."""

    capabilities = Capabilities(atomic_groups=True, watch=True, server_clock=True, shared=True)

    def __init__(self, connector: Connector, names: Names, *, client: str) -> None:
        self.url = connector.address.url
        self.names = names
        self._client = client
        self._statements = Statements(names)
        self._pool = ConnectionPool(connector)
        self._caller = Caller(self._pool, url=self.url, request_timeout_ms=connector.request_timeout_ms)
        self._listener = Listener(connector, self._caller, self._statements, client=client)
        self._sessions: set[PostgresSession] = set()
        self._closed = False
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_for_ever(), name="llog sweep")

    # -- reads ----------------------------------------------------------------------------------------------------
    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        check_get_many(keys)
        self._check_open("get")
        records: list[Record | None] = [None] * len(keys)
        if len(keys) == 1:
            rows = await self._caller.ask("get", keys[0].path, self._statements.get, batch.split(keys[0].path))
            return [Record(keys[0], *rows[0])] if rows else records
        if keys:
            pairs = [batch.split(key.path) for key in keys]
            parameters = (text_array([parent for parent, _ in pairs]), text_array([name for _, name in pairs]))
            rows = await self._caller.ask("get", _several(keys), self._statements.get_many, parameters)
            for position, *fields in rows:
                records[position - 1] = Record(keys[position - 1], *fields)
        return records

    async def scan(
        self,
        parent: Key,
        *,
        start: str = "",
        stop: str | None = None,
        limit: int = METADATA_SCAN_PAGE_RECORDS_MAX,
        strict: bool = False,
    ) -> list[Record]:
        check_scan(parent, start, stop, limit)
        self._check_open("scan")
        statement = self._statements.scan if stop is None else self._statements.scan_to
        bounds = (start,) if stop is None else (start, stop)
        rows = await self._caller.ask("scan", parent.path, statement, (parent.path, *bounds, Int8(limit)))
        return [Record(Key(f"{parent.path}/{name}", parent.route), *fields) for name, *fields in rows]

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        if prefix:
            check_key(Key(prefix))
            record = await self.get(Key(prefix))
            if record is not None:
                yield record
            # First the children of `prefix`, then everything below them, which sorts elsewhere: `a!/x` is between.
            async for record in self._tree(prefix, "", prefix + "\x01"):
                yield record
            async for record in self._tree(prefix + "/", "", prefix + "0"):
                yield record
        else:
            async for record in self._tree("", "", None):
                yield record

    async def _tree(self, parent: str, name: str, parent_stop: str | None) -> AsyncIterator[Record]:
        """Pages of records after (`parent`, `name`) with a parent below `parent_stop`."""
        while True:
            self._check_open("scan")
            statement = self._statements.tree if parent_stop is None else self._statements.tree_to
            stop = () if parent_stop is None else (parent_stop,)
            parameters = (parent, name, *stop, Int8(METADATA_SCAN_PAGE_RECORDS_MAX))
            rows = await self._caller.ask("scan", parent, statement, parameters)
            for parent, name, *fields in rows:  # the next page starts after the last record
                yield Record(Key(f"{parent}/{name}" if parent else name), *fields)
            if len(rows) < METADATA_SCAN_PAGE_RECORDS_MAX:
                return

    # -- writes ---------------------------------------------------------------------------------------------------
    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        if len(groups) > POSTGRES_ENCODE_INLINE_GROUPS_MAX:
            # A large call must not block the event loop.
            parameters = await asyncio.to_thread(self._encode, groups)
        else:
            parameters = self._encode(groups)
        self._check_open("write")
        if not groups:
            return []
        subject = _several([write.key for group in groups for write in group])
        try:
            [[numbers]] = await self._caller.change("write", subject, self._statements.write, parameters)
        except MetadataStoreError as error:
            # Each group gets its own error object, because callers raise them separately.
            return [type(error)("write", group[0].key.path, error.reason) for group in groups]
        return batch.decode(groups, numbers)

    def _encode(self, groups: Sequence[Sequence[Write]]) -> list[WireArray | None]:
        check_groups(groups, atomic=True, groups_max=METADATA_WRITE_GROUPS_MAX)
        return batch.encode(groups, self.url)

    # -- sessions, watch, clock ---------------------------------------------------------------------------------
    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        check_session_timeout(timeout_ms)
        self._check_open("open session")
        session = await open_session(
            self._caller, self._statements, client=self._client, timeout_ms=timeout_ms, on_lost=on_lost
        )
        self._sessions = {known for known in self._sessions if not known.lost}
        self._sessions.add(session)
        if self._closed:
            await session.close()
            raise StoreClosed("open session", self.url)
        return session

    def watch(self, prefix: str, *, route: str = "") -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        if prefix:
            check_key(Key(prefix))
        self._check_open("watch")
        return self._listener.watch(prefix)

    async def server_time_ms(self) -> int:
        self._check_open("time")
        [[now_ms]] = await self._caller.ask("time", self.url, self._statements.time, ())
        return int(now_ms)

    async def raise_versions(self, floor: int) -> bool:
        check_version_floor(floor)
        self._check_open("raise versions")
        parameters = (Int8(floor), Int8(floor))
        await self._caller.ask("raise versions", self.url, self._statements.raise_versions, parameters)
        return True

    async def _sweep_for_ever(self) -> None:
        """A failure is ignored: every open store tries again soon."""
        while True:
            await asyncio.sleep(POSTGRES_SWEEP_INTERVAL_MS / 1000)
            try:
                await self._caller.ask("sweep", self.url, self._statements.sweep, ())
            except StoreError as error:
                log.debug("%s", error)

    # -- life -----------------------------------------------------------------------------------------------------
    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise StoreClosed(operation, self.url)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        seconds = POSTGRES_CLOSE_TIMEOUT_MS / 1000
        self._sweeper.cancel()
        endings = [asyncio.ensure_future(session.close()) for session in self._sessions]
        endings.append(asyncio.ensure_future(self._listener.close()))
        _, late = await asyncio.wait([self._sweeper, *endings], timeout=seconds)
        for ending in late:
            ending.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
        await self._pool.close(seconds=seconds)


def _several(keys: Sequence[Key]) -> str:
    return keys[0].path if len(keys) == 1 else f"{keys[0].path} and {len(keys) - 1} more"


async def open_from_url(url: str, settings: StoreSettings) -> PostgresStore:
    """Connect and create or check the tables. Raises `SettingsError`, `MetadataMisconfigured`, `MetadataDenied`, …"""
    timeout_ms = settings.request_timeout_ms
    if timeout_ms < 1:
        raise InvalidArgument("request_timeout_ms", f"{timeout_ms}; at least 1")
    connector = Connector(parse_url(url, client_identifier=settings.client_identifier), request_timeout_ms=timeout_ms)
    return PostgresStore(connector, await _open_schema(connector), client=settings.client_identifier)


async def _open_schema(connector: Connector) -> Names:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + connector.request_timeout_ms / 1000
    try:
        link = await connector.connect(deadline=deadline)
    except NotPrimary as error:
        # Later this is a fail-over; at the start it is probably a wrong address.
        raise MetadataMisconfigured("open", connector.address.url, error.reason) from error
    giving_up = loop.call_at(deadline, link.cut)
    try:
        return await open_schema(link, connector.address)
    finally:
        giving_up.cancel()
        link.close()
