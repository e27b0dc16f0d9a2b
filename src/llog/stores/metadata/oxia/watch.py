"""Changes below a prefix, from the notifications of the shards that may hold it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llog.stores.metadata.changes import ChangeQueue
from llog.stores.metadata.oxia.client import Changed, Deleted, Event, OxiaClient, ShardNotifications
from llog.stores.metadata.port import Change, ChangeKind


class OxiaWatcher(ChangeQueue):
    def __init__(self, client: OxiaClient, url: str, prefix: str, route: str, ignored: Callable[[str], bool]) -> None:
        super().__init__(url, prefix)
        self._client, self._route, self._ignored = client, route, ignored
        self._shards: dict[int, ShardNotifications] = {}
        self._forget: Callable[[], None] | None = None
        self._retired: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all later changes will be seen."""
        self._follow(self._wanted())
        await asyncio.gather(*(notifications.started() for notifications in self._shards.values()))
        self._forget = self._client.listen(self._assignments_changed)

    def _wanted(self) -> set[int]:
        return {self._client.shard_of(self._route)} if self._route else set(self._client.shards)

    def _follow(self, shards: set[int]) -> None:
        for shard in shards - self._shards.keys():
            self._shards[shard] = self._client.notifications(shard, self._take)
        for shard in self._shards.keys() - shards:
            self._retired.append(asyncio.create_task(self._shards.pop(shard).close()))

    def _assignments_changed(self) -> None:
        if self._ended or self._wanted() == self._shards.keys():
            return
        # Shards were split or merged: changes in between were not reported.
        self._follow(self._wanted())
        self.resync()

    def _take(self, event: Event) -> None:
        if not isinstance(event, Changed | Deleted):
            self.resync()
        elif not self._ignored(event.key):
            if isinstance(event, Changed):
                self.offer(Change(ChangeKind.PUT, event.key, event.version_id))
            else:
                self.offer(Change(ChangeKind.DELETED, event.key))

    async def close(self) -> None:
        self.end()
        if self._forget is not None:
            self._forget()
            self._forget = None
        shards, self._shards = list(self._shards.values()), {}
        await asyncio.gather(*(notifications.close() for notifications in shards), *self._retired)
