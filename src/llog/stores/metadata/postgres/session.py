"""Sessions: a row with an expiry by the clock of the server, extended by heartbeats.

The client gives up first: the server counts the timeout from the arrival of a heartbeat, the client from its sending.
So a session that the server dropped is already `lost` here, if both clocks run at the same speed. An expired session is
not revived, not even by a late heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from psycopg.types.numeric import Int8

from llog.errors import StoreError
from llog.stores.metadata.port import Session
from llog.stores.metadata.postgres.pool import Caller
from llog.stores.metadata.postgres.schema import Statements

POSTGRES_HEARTBEATS_PER_TIMEOUT: Final = 4
POSTGRES_HEARTBEAT_RETRIES_PER_TIMEOUT: Final = 16

log = logging.getLogger(__name__)


class PostgresSession(Session):
    """`open_session` creates it and starts the heartbeats."""

    def __init__(
        self,
        caller: Caller,
        statements: Statements,
        number: int,
        timeout_ms: int,
        on_lost: Callable[[], None] | None,
        expires_at: float,
    ) -> None:
        self.id = str(number)
        self.number = number
        self.url = caller.url
        self.timeout_ms = timeout_ms
        self._caller, self._statements, self._on_lost = caller, statements, on_lost
        self._loop = asyncio.get_running_loop()
        self._expires_at = expires_at
        self._ended = False
        self._heartbeats = self._loop.create_task(self._keep_alive(), name=f"llog session {number}")

    @property
    def lost(self) -> bool:
        return self._ended or self._loop.time() >= self._expires_at

    async def _keep_alive(self) -> None:
        seconds = self.timeout_ms / 1000
        pause = seconds / POSTGRES_HEARTBEATS_PER_TIMEOUT
        while not self.lost:
            await asyncio.sleep(min(pause, self._expires_at - self._loop.time()))
            renewed = await self._renew()
            if renewed is False:
                break
            pause = seconds / (POSTGRES_HEARTBEATS_PER_TIMEOUT if renewed else POSTGRES_HEARTBEAT_RETRIES_PER_TIMEOUT)
        self._ended = True
        if self._on_lost is not None:
            self._on_lost()

    async def _renew(self) -> bool | None:
        """True: alive. False: the server dropped it. None: no answer."""
        sent_at = self._loop.time()
        timeout_ms = min(int((self._expires_at - sent_at) * 1000), self._caller.request_timeout_ms)
        if timeout_ms <= 0:
            return None
        parameters = (Int8(self.timeout_ms), Int8(self.number))
        try:
            rows = await self._caller.ask(
                "heartbeat", f"session {self.id}", self._statements.renew_session, parameters, timeout_ms=timeout_ms
            )
        except StoreError as error:
            log.warning("%s", error)
            return None
        if not rows:
            return False
        if self._loop.time() < self._expires_at:
            self._expires_at = sent_at + self.timeout_ms / 1000
        return True

    async def close(self) -> None:
        """End the session on the server; if that fails, it ends when it expires."""
        if self._ended and self._heartbeats.done():
            return
        self._ended = True
        self._heartbeats.cancel()
        await asyncio.wait([self._heartbeats])
        try:
            await self._caller.ask("close", f"session {self.id}", self._statements.end_session, (Int8(self.number),))
        except StoreError as error:
            log.warning("session %s could not be closed and ends at its timeout: %s", self.id, error)


async def open_session(
    caller: Caller, statements: Statements, *, client: str, timeout_ms: int, on_lost: Callable[[], None] | None
) -> PostgresSession:
    sent_at = asyncio.get_running_loop().time()
    parameters = (client, Int8(timeout_ms), Int8(timeout_ms))
    [[number]] = await caller.ask("open", "session", statements.open_session, parameters)
    return PostgresSession(caller, statements, number, timeout_ms, on_lost, sent_at + timeout_ms / 1000)
