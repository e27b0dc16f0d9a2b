"""A session of the LMDB store: a lease in the database, renewed by a task of the event loop.

- The lease ends by the boot clock of the machine. A process that was paused longer notices at once, because `lost`
  reads the clock; the next renewal fails, and an ended lease is not revived.
- `on_lost` is called once, on the event loop, and not after `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from llog.errors import MetadataStoreError, StoreClosed
from llog.stores.metadata.lmdb.environment import Environment
from llog.stores.metadata.port import Session

# Pause before a failed renewal is tried again, while the lease still runs.
RENEWALS_PER_TIMEOUT: Final = 3
RETRIES_PER_TIMEOUT: Final = 10


class LmdbSession(Session):
    def __init__(
        self,
        environment: Environment,
        session_id: bytes,
        timeout_ms: int,
        expires_at_ms: int,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.id = session_id.hex()
        self.environment, self.timeout_ms = environment, timeout_ms
        self._key, self._expires_at_ms, self._on_lost = session_id, expires_at_ms, on_lost
        self._lost = self._closed = False
        self._heartbeat = asyncio.create_task(self._keep_alive(), name=f"lmdb session {self.id}")

    @property
    def lost(self) -> bool:
        return self._lost or (not self._closed and self._ran_out())

    @property
    def over(self) -> bool:
        return self._lost or self._closed

    def _ran_out(self) -> bool:
        return self.environment.clock.now_ms() >= self._expires_at_ms

    async def _keep_alive(self) -> None:
        wait_ms = self.timeout_ms / RENEWALS_PER_TIMEOUT
        while not self._lost:
            await asyncio.sleep(wait_ms / 1_000)
            try:
                renewed = await self.environment.writer.do(
                    "renew session", lambda transaction: transaction.renew_session(self._key, self.timeout_ms)
                )
            except StoreClosed:
                return
            except MetadataStoreError:
                if self._ran_out():
                    self.note_lost()
                wait_ms = self.timeout_ms / RETRIES_PER_TIMEOUT
                continue
            if renewed is None:
                self.note_lost()
                return
            self._expires_at_ms = renewed
            wait_ms = self.timeout_ms / RENEWALS_PER_TIMEOUT

    def note_lost(self) -> None:
        """The store or the clock ended the session."""
        if self.over:
            return
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()

    async def close(self) -> None:
        if self._closed:
            return
        was_lost, self._closed = self._lost, True
        self._heartbeat.cancel()
        if was_lost:
            return
        await self.environment.writer.do("close session", lambda transaction: transaction.close_session(self._key))
