"""A session of the port: one Oxia session per shard with records of it, opened on first use.

If one of them is lost, the whole session is lost, and the sessions on the other shards are closed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from llog.stores.metadata.oxia.client import OxiaClient, SessionExpired, ShardSession
from llog.stores.metadata.port import Session


class OxiaSession(Session):
    def __init__(self, client: OxiaClient, timeout_ms: int, on_lost: Callable[[], None] | None) -> None:
        self.id = uuid.uuid4().hex
        self._client, self._timeout_ms, self._on_lost = client, timeout_ms, on_lost
        self._shards: dict[int, asyncio.Task[ShardSession]] = {}
        self._lost = False
        self._closed = False
        self._ending: asyncio.Task[None] | None = None

    def belongs_to(self, client: OxiaClient) -> bool:
        return self._client is client

    @property
    def lost(self) -> bool:
        return self._lost or self._closed or any(session.lost for session in self._opened())

    def _opened(self) -> list[ShardSession]:
        done = [task for task in self._shards.values() if task.done() and not task.cancelled()]
        return [task.result() for task in done if task.exception() is None]

    async def on_shard(self, shard: int) -> ShardSession:
        """The session on `shard`. Raises `SessionExpired` if this session has ended."""
        if self.lost:
            raise SessionExpired(f"session {self.id} has ended")
        opening = self._shards.get(shard)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = asyncio.create_task(self._client.open_session(shard, self._timeout_ms, self._shard_lost))
            self._shards[shard] = opening
        found = await asyncio.shield(opening)
        if self.lost:
            raise SessionExpired(f"session {self.id} has ended")
        return found

    def _shard_lost(self) -> None:
        if self._lost or self._closed:
            return
        self._lost = True
        self._ending = asyncio.create_task(self._end_all())
        if self._on_lost is not None:
            self._on_lost()

    def expired(self, shard: int, reason: str) -> None:
        """A write to `shard` failed because the session does not exist."""
        for session in self._opened():
            if session.shard == shard:
                session.mark_lost(reason)

    async def _end_all(self) -> None:
        opened = await asyncio.gather(*self._shards.values(), return_exceptions=True)
        await asyncio.gather(*(session.close() for session in opened if isinstance(session, ShardSession)))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ending is not None:
            await self._ending
        else:
            await self._end_all()
