"""One connection to a primary with the settings of the store, and statements with a deadline.

psycopg reacts to a cancelled task by asking the server to cancel, for up to ten seconds, but our callers have
deadlines. So a caller that gives up cuts the socket: the connection is closed and the statement has no answer
(`failures` says what that means for a write).
- Every connection is READ COMMITTED, on a primary, in UTF-8, and waits until commits are durable (`synchronous_commit`
  at least `on`). Replication must be synchronous if a standby may take over, or a fail-over loses acknowledged writes;
  the store cannot check which standby would be promoted.
- Planner settings are fixed, because all statements use the primary key with one plan. Otherwise the planner would use
  the statistics of a table that was empty when it collected them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus

from llog.errors import MetadataMisconfigured, MetadataStoreError, MetadataUnavailable
from llog.limits import POSTGRES_CONNECT_PAUSE_MS
from llog.stores.metadata.postgres.address import PostgresAddress
from llog.stores.metadata.postgres.failures import READ_ONLY_STATE, refused_connection, state_of_refusal
from llog.stores.metadata.postgres.wire import adapters

# The server gives up this much earlier than the client, so that its answer ("nothing happened") still arrives.
POSTGRES_ANSWER_MARGIN_MS: Final = 500

log = logging.getLogger(__name__)

Row = tuple[Any, ...]

SERVER_VERSION_MIN: Final = 130_000

_SET_UP: Final = b"""
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'), pg_is_in_recovery(),
       current_setting('transaction_read_only') = 'on', current_setting('fsync') = 'on',
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END,
                  false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('statement_timeout', %(statement_timeout_ms)s, false),
       set_config('lock_timeout', %(lock_timeout_ms)s, false),
       set_config('idle_in_transaction_session_timeout', %(statement_timeout_ms)s, false),
       set_config('client_min_messages', 'warning', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
       set_config('jit', 'off', false)
"""


class NotPrimary(MetadataUnavailable):
    """The server accepts no writes: a standby, or a fail-over in progress."""


class NoAnswer(Exception):
    """The deadline passed before the server answered; the connection was cut."""


class PostgresLink:
    """One psycopg connection. One statement at a time."""

    def __init__(self, connection: AsyncConnection[Row]) -> None:
        self.connection = connection
        self.warning = ""
        """The last warning of the server during a statement."""
        connection.add_notice_handler(self._noticed)

    def _noticed(self, diagnostic: Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self.warning = diagnostic.message_primary or "WARNING"

    @property
    def broken(self) -> bool:
        return bool(self.connection.closed)

    @property
    def idle(self) -> bool:
        return self.connection.pgconn.transaction_status == TransactionStatus.IDLE

    def stale(self) -> bool:
        """Whether an idle connection has received data, nearly always because its server has closed it.

        Checked before a statement is sent, so that an earlier disconnect does not look like a lost answer.
        """
        if self.broken:
            return True
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))

    async def run(self, query: bytes, parameters: Sequence[object], *, deadline: float) -> list[Row]:
        """One statement, which is one transaction. Raises psycopg's errors, or `NoAnswer` at the deadline."""
        self.warning = ""
        statement = asyncio.ensure_future(self._execute(query, parameters))
        try:
            await asyncio.wait([statement], timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        except asyncio.CancelledError:
            await self._abandon(statement)
            raise
        if not statement.done():
            await self._abandon(statement)
            raise NoAnswer
        return statement.result()

    async def _execute(self, query: bytes, parameters: Sequence[object]) -> list[Row]:
        cursor = await self.connection.execute(query, parameters, prepare=True, binary=True)
        return await cursor.fetchall() if cursor.description is not None else []

    async def _abandon(self, statement: asyncio.Future[list[Row]]) -> None:
        """Cut the socket, which ends the statement at once."""
        self.cut()
        statement.add_done_callback(_forget)
        try:
            await asyncio.wait([statement], timeout=1.0)
        finally:
            self.close()

    def cut(self) -> None:
        if self.broken:
            return
        with socket.socket(fileno=os.dup(self.connection.fileno())) as duplicate:
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                log.debug("the socket was gone already: %s", error)

    def close(self) -> None:
        """Close at once; closing a connection of libpq does not wait."""
        self.connection.pgconn.finish()


def _forget(statement: asyncio.Future[list[Row]]) -> None:
    if not statement.cancelled():
        statement.exception()


class Connector:
    """Makes links to one database."""

    def __init__(self, address: PostgresAddress, *, request_timeout_ms: int) -> None:
        self.address = address
        self.request_timeout_ms = request_timeout_ms
        self._adapters = adapters()
        self._warned_of_fsync = False
        margin_ms = min(POSTGRES_ANSWER_MARGIN_MS, request_timeout_ms // 4)
        server_timeout_ms = max(1, request_timeout_ms - margin_ms)
        self._limits = {
            "statement_timeout_ms": str(server_timeout_ms),
            # The lock timeout comes first, and means that nothing happened.
            "lock_timeout_ms": str(max(1, server_timeout_ms * 3 // 4)),
        }

    async def connect(self, *, deadline: float) -> PostgresLink:
        """Connect, with retries until `deadline` while no server answers. Nothing has been sent when it raises."""
        loop = asyncio.get_running_loop()
        # The error of an earlier attempt says more than the timeout of the last one.
        last_error = MetadataUnavailable("connect", self.address.url, "no answer in time")
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._connect_once()
            except TimeoutError:
                raise last_error from None
            except MetadataUnavailable as error:
                last_error = error
                if loop.time() + POSTGRES_CONNECT_PAUSE_MS / 1000 >= deadline:
                    raise
            await asyncio.sleep(POSTGRES_CONNECT_PAUSE_MS / 1000)

    async def _connect_once(self) -> PostgresLink:
        try:
            connection: AsyncConnection[Row] = await AsyncConnection.connect(
                "",
                autocommit=True,
                context=self._adapters,
                **self.address.conninfo,  # type: ignore[arg-type]
            )
        except psycopg.Error as error:
            refused = refused_connection(error, self.address.url)
            if state_of_refusal(error) == READ_ONLY_STATE:
                refused = NotPrimary("connect", self.address.url, refused.reason)
            raise refused from error
        link = PostgresLink(connection)
        try:
            await self._set_up(connection)
        except BaseException:
            link.close()
            raise
        return link

    async def _set_up(self, connection: AsyncConnection[Row]) -> None:
        try:
            cursor = await connection.execute(_SET_UP, self._limits)
            row = await cursor.fetchone()
        except psycopg.Error as error:
            raise refused_connection(error, self.address.url) from error
        assert row is not None
        version, encoding, in_recovery, read_only, fsync = row[:5]
        if version < SERVER_VERSION_MIN:
            raise self._misconfigured(f"server version {version}; at least {SERVER_VERSION_MIN} is needed")
        if encoding != "UTF8":
            raise self._misconfigured(f"the database's encoding is {encoding}; it must be UTF8")
        if in_recovery or read_only:
            raise NotPrimary("connect", self.address.url, "a standby or read-only; only a primary can be used")
        if not fsync and not self._warned_of_fsync:
            self._warned_of_fsync = True
            log.warning("%s runs with fsync=off: a crash of its machine loses acknowledged writes", self.address.url)

    def _misconfigured(self, reason: str) -> MetadataStoreError:
        return MetadataMisconfigured("connect", self.address.url, reason)
