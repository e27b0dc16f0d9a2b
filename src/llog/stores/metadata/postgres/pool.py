"""A bounded set of connections, lent for one statement at a time, and calls through it (`Caller`).

psycopg_pool connects in the background with growing pauses, and its callers learn only of a timeout. Here a caller
without an idle connection opens one within its own deadline, so a wrong password is reported as such and a server that
returns is used at once. At most POSTGRES_CONNECTIONS_MAX connections exist, and at most POSTGRES_CONNECTION_WAITERS_MAX
callers wait. A connection is not reused after an error or a missed deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from llog.errors import MetadataTimeout, MetadataUnavailable, MetadataUncertain, StoreClosed
from llog.stores.metadata.postgres.connection import Connector, NoAnswer, PostgresLink, Row
from llog.stores.metadata.postgres.failures import READ_ONLY_STATE, RETRIED_STATES, translate

POSTGRES_CONNECTIONS_MAX: Final = 8
POSTGRES_CONNECTION_WAITERS_MAX: Final = 4_096
POSTGRES_READ_ATTEMPTS_MAX: Final = 3
# Attempts of a write that the server rolls back because of a deadlock.
POSTGRES_WRITE_ATTEMPTS_MAX: Final = 5


class ConnectionPool:
    def __init__(self, connector: Connector, *, connections_max: int = POSTGRES_CONNECTIONS_MAX) -> None:
        self._connector = connector
        self._connections_max = connections_max
        self._free = asyncio.Semaphore(connections_max)
        self._idle: list[PostgresLink] = []
        self._lent: set[PostgresLink] = set()
        self._all_returned = asyncio.Event()
        self._waiting = 0
        self._closed = False

    @asynccontextmanager
    async def link(self, *, deadline: float) -> AsyncIterator[PostgresLink]:
        """A working connection. Raises `MetadataUnavailable` or the error of connecting; nothing was sent."""
        await self._wait_for_turn(deadline)
        link: PostgresLink | None = None
        try:
            self._check_open()
            link = self._idle_link() or await self._connector.connect(deadline=deadline)
            self._check_open()
            self._lent.add(link)
            yield link
        finally:
            if link is not None:
                self._take_back(link)
            self._free.release()

    async def _wait_for_turn(self, deadline: float) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        if self._waiting >= POSTGRES_CONNECTION_WAITERS_MAX:
            raise self._busy(f"{self._waiting} calls already wait for a connection")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
        except TimeoutError:
            raise self._busy(f"all {self._connections_max} connections stayed busy") from None
        finally:
            self._waiting -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("connect", self._connector.address.url)

    def _busy(self, reason: str) -> MetadataUnavailable:
        return MetadataUnavailable("connect", self._connector.address.url, reason)

    def _idle_link(self) -> PostgresLink | None:
        while self._idle:
            link = self._idle.pop()
            if not link.stale():
                return link
            link.close()
        return None

    def _take_back(self, link: PostgresLink) -> None:
        self._lent.discard(link)
        if self._closed or not link.idle:
            link.close()
        else:
            self._idle.append(link)
        if not self._lent:
            self._all_returned.set()

    async def close(self, *, seconds: float) -> None:
        """Wait up to `seconds` for connections in use, then cut them: their statements get no answer."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        if not self._lent:
            return
        self._all_returned.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._all_returned.wait()
        except TimeoutError:
            for link in self._lent:
                link.cut()


class Caller:
    """Statements through the pool, within the deadline of the request. A write is sent once, and again only if the
    server rolled it back because of a deadlock. All other statements can be repeated."""

    def __init__(self, pool: ConnectionPool, *, url: str, request_timeout_ms: int) -> None:
        self.pool, self.url = pool, url
        self.request_timeout_ms = request_timeout_ms

    async def ask(
        self,
        operation: str,
        subject: str,
        statement: bytes,
        parameters: Sequence[object],
        *,
        timeout_ms: int | None = None,
    ) -> list[Row]:
        """Run a statement that can be repeated; tried again on another connection if one breaks."""
        deadline = self._deadline(self.request_timeout_ms if timeout_ms is None else timeout_ms)
        for attempt in range(1, POSTGRES_READ_ATTEMPTS_MAX + 1):
            try:
                return await self._once(operation, subject, statement, parameters, deadline, writing=False)
            except MetadataUnavailable:
                if attempt == POSTGRES_READ_ATTEMPTS_MAX or asyncio.get_running_loop().time() >= deadline:
                    raise
        raise AssertionError("unreachable")

    async def change(self, operation: str, subject: str, statement: bytes, parameters: Sequence[object]) -> list[Row]:
        """Run a write. Raises `MetadataUncertain` if it may have happened; after any other error it has not."""
        deadline = self._deadline(self.request_timeout_ms)
        for attempt in range(1, POSTGRES_WRITE_ATTEMPTS_MAX + 1):
            try:
                return await self._once(operation, subject, statement, parameters, deadline, writing=True)
            except MetadataUnavailable as error:
                cause = error.__cause__
                rolled_back = isinstance(cause, psycopg.Error) and cause.sqlstate in RETRIED_STATES
                if not rolled_back or attempt == POSTGRES_WRITE_ATTEMPTS_MAX:
                    raise
            # Let the winner finish, and spread out the losers.
            await asyncio.sleep(random.uniform(0.001, 0.005) * attempt)
        raise AssertionError("unreachable")

    @staticmethod
    def _deadline(timeout_ms: int) -> float:
        return asyncio.get_running_loop().time() + timeout_ms / 1000

    async def _once(
        self,
        operation: str,
        subject: str,
        statement: bytes,
        parameters: Sequence[object],
        deadline: float,
        *,
        writing: bool,
    ) -> list[Row]:
        async with self.pool.link(deadline=deadline) as link:
            if asyncio.get_running_loop().time() >= deadline:
                raise MetadataUnavailable(operation, subject, "the deadline passed before the statement was sent")
            try:
                rows = await link.run(statement, parameters, deadline=deadline)
            except NoAnswer:
                reason = f"no answer within {self.request_timeout_ms} ms"
                raise (MetadataUncertain if writing else MetadataTimeout)(operation, subject, reason) from None
            except psycopg.Error as error:
                if error.sqlstate == READ_ONLY_STATE:
                    link.close()  # no longer the primary: the next connection finds the new one
                    raise MetadataUnavailable(operation, subject, str(error)) from error
                raise translate(error, operation, subject, writing=writing, connection_lost=not link.idle) from error
            if writing and link.warning:
                # The server warns if it did not wait for its standby; our statement has no other warning.
                raise MetadataUncertain(operation, subject, link.warning)
            return rows
