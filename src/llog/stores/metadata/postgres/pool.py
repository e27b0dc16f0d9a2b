"""A bounded set of connections, lent for one statement at a time.

psycopg_pool connects in the background with growing pauses, and its callers learn only of a timeout. Here a caller
without an idle connection opens one within its own deadline, so a wrong password is reported as such and a server that
returns is used at once. At most POSTGRES_CONNECTIONS_MAX connections exist, and at most POSTGRES_CONNECTION_WAITERS_MAX
callers wait. A connection is not reused after an error or a missed deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from llog.errors import MetadataUnavailable, StoreClosed
from llog.stores.metadata.postgres.connection import Connector, PostgresLink

POSTGRES_CONNECTIONS_MAX: Final = 8
POSTGRES_CONNECTION_WAITERS_MAX: Final = 4_096


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
