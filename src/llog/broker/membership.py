"""A broker's membership in the cluster: its node id and its registration, ephemeral records of one session.

The registration tells clients, other brokers, the console and operators where the broker listens. Nothing depends on it
for safety. When the store drops the session (the process was paused, the store was away), the broker registers again
and keeps its node id, or gets another one if that was taken meanwhile and no setting fixes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from llog.broker.node_ids import claim_node_id
from llog.errors import SettingsError, StoreError
from llog.formats.values import BrokerRegistration, encode_value
from llog.log.context import LogContext
from llog.stores.metadata.port import Session

REGISTRATION_RETRY_MS: Final = 1_000
NODE_ID_WAIT_MARGIN_MS: Final = 2_000
"""A node id that the settings demand is waited for as long as a session lives, and this much longer."""
DRAIN_NOTICE_MS_MAX: Final = 1_000
"""A store that does not answer must not delay the stop of a broker."""

_log = logging.getLogger("llog.broker.membership")


class Membership:
    def __init__(
        self,
        context: LogContext,
        registration: BrokerRegistration,
        *,
        session_timeout_ms: int,
        node_id: int | None = None,
        on_node_id: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`node_id` is the one that the settings demand; `on_node_id` gets the one that the broker has, at the start
        and whenever it changes."""
        self._context, self._value, self._timeout_ms = context, registration, session_timeout_ms
        self._wanted, self._on_node_id = node_id, on_node_id
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    @property
    def node_id(self) -> int:
        """-1 before `join`."""
        return self._value.node_id

    @property
    def lost(self) -> bool:
        """Whether the registration existed and was lost."""
        return self._task is not None and (self._session is None or self._session.lost)

    async def join(self) -> None:
        """Get a node id. Raises errors of the store, and `SettingsError` if another broker has the demanded id."""
        session = await self._context.metadata.open_session(timeout_ms=self._timeout_ms, on_lost=self._lost.set)
        try:
            await self._claim(session, self._wanted, wait_ms=self._timeout_ms + NODE_ID_WAIT_MARGIN_MS)
        except BaseException:
            await session.close()
            raise
        self._session = session

    async def register(self, addresses: Mapping[str, str]) -> None:
        """Register and stay registered. The first attempt ends before this returns; a task makes further ones."""
        self._value = replace(self._value, addresses=dict(addresses))
        assert self._session is not None, "join comes first"
        try:
            await self._put(self._session)
        except StoreError as error:
            self._failed(error)
        self._task = asyncio.create_task(self._keep(), name="llog-registration")

    async def drain(self) -> None:
        """Tell the cluster that this broker is about to stop."""
        self._value = replace(self._value, draining=True)
        if self._session is None:
            return  # it is being registered again, with this value
        try:
            await asyncio.wait_for(self._put(self._session), DRAIN_NOTICE_MS_MAX / 1_000)
        except (StoreError, TimeoutError) as error:
            _log.warning("the other brokers do not learn that %s stops: %s", self._value.broker_id, error)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- registering again ---------------------------------------------------------------------------------------------
    async def _keep(self) -> None:
        while True:
            await self._lost.wait()
            while self._lost.is_set():
                self._lost.clear()
                try:
                    await self._rejoin()
                except (StoreError, SettingsError) as error:
                    self._failed(error)
                    await self._context.sleep(REGISTRATION_RETRY_MS / 1_000)

    async def _rejoin(self) -> None:
        if self._session is None or self._session.lost:
            self._session = None
            session = await self._context.metadata.open_session(timeout_ms=self._timeout_ms, on_lost=self._lost.set)
            try:
                await self._reclaim(session)
            except BaseException:
                await session.close()
                raise
            self._session = session
        await self._put(self._session)

    async def _reclaim(self, session: Session) -> None:
        try:
            await self._claim(session, self._value.node_id)
        except SettingsError:  # another broker has it now
            if self._wanted is not None:
                raise
            await self._claim(session, None)

    async def _claim(self, session: Session, wanted: int | None, *, wait_ms: int = 0) -> None:
        broker_id = self._value.broker_id
        node_id = await claim_node_id(self._context, session, broker_id, wanted=wanted, wait_ms=wait_ms)
        if node_id != self._value.node_id:
            self._value = replace(self._value, node_id=node_id)
            self._on_node_id(node_id)

    async def _put(self, session: Session) -> None:
        # The latest broker with an id owns its record; an earlier one is gone or about to go.
        key = self._context.keys.broker(self._value.broker_id)
        await self._context.metadata.put(key, encode_value(self._value, key.path), session=session)

    def _failed(self, error: Exception) -> None:
        _log.warning("registration of broker %s failed, trying again: %s", self._value.broker_id, error)
        self._lost.set()
