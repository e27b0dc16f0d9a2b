"""A broker's registration: an ephemeral record with its addresses, for clients, the console and operators.

Nothing depends on it for safety.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from llog.errors import StoreError
from llog.formats.values import BrokerRegistration, encode_value
from llog.log.context import LogContext
from llog.stores.metadata.port import Session

REGISTRATION_RETRY_MS: Final = 1_000

_log = logging.getLogger("llog.broker.membership")


class Registration:
    def __init__(self, context: LogContext, broker_id: str, *, session_timeout_ms: int) -> None:
        self._context, self._broker_id, self._timeout_ms = context, broker_id, session_timeout_ms
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    @property
    def lost(self) -> bool:
        """Whether the record existed and was lost."""
        return self._task is not None and (self._session is None or self._session.lost)

    async def start(self, addresses: Mapping[str, str], *, roles: tuple[str, ...], started_at_ms: int) -> None:
        """Register and stay registered. The first attempt ends before this returns; a task makes further ones."""
        value = BrokerRegistration(
            broker_id=self._broker_id, addresses=dict(addresses), roles=roles, started_at_ms=started_at_ms
        )
        await self._register(value)
        self._task = asyncio.create_task(self._keep(value), name="llog-registration")

    async def _keep(self, value: BrokerRegistration) -> None:
        while True:
            await self._lost.wait()
            while self.lost:
                await self._register(value)
                if self.lost:
                    await self._context.sleep(REGISTRATION_RETRY_MS / 1_000)

    async def _register(self, value: BrokerRegistration) -> None:
        self._lost.clear()
        try:
            session = await self._context.metadata.open_session(timeout_ms=self._timeout_ms, on_lost=self._lost.set)
            # The latest broker with an id owns its record; an earlier one is gone or about to go.
            key = self._context.keys.broker(self._broker_id)
            await self._context.metadata.put(key, encode_value(value, key.path), session=session)
            self._session = session
        except StoreError as error:
            _log.warning("registration of broker %s failed, trying again: %s", self._broker_id, error)
            self._lost.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._session is not None:
            await self._session.close()
            self._session = None
