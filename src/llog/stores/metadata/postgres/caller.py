"""Statements through the pool, within the deadline of the request.

A write is sent once, and again only if the server rolled it back because of a deadlock. All other statements can be
repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

import psycopg

from llog.errors import MetadataTimeout, MetadataUnavailable, MetadataUncertain
from llog.stores.metadata.postgres.connection import NoAnswer, Row
from llog.stores.metadata.postgres.failures import READ_ONLY_STATE, RETRIED_STATES, translate
from llog.stores.metadata.postgres.pool import ConnectionPool

POSTGRES_READ_ATTEMPTS_MAX: Final = 3
# Attempts of a write that the server rolls back because of a deadlock.
POSTGRES_WRITE_ATTEMPTS_MAX: Final = 5


class Caller:
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
