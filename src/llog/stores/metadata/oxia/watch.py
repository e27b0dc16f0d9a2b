"""Changes below a prefix, from the notifications of the shards that may hold it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from llog.errors import StoreClosed
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.oxia.client import Changed, Deleted, Event, OxiaClient, ShardNotifications
from llog.stores.metadata.port import Change, ChangeKind


class OxiaWatcher(AsyncIterator[Change]):
    """Unread changes of one reader; too many of them become one RESYNC."""

    def __init__(self, client: OxiaClient, url: str, prefix: str, route: str, ignored: Callable[[str], bool]) -> None:
        self._client, self._url, self._prefix, self._route = client, url, prefix, route
        self._ignored = ignored
        self._changes: deque[Change] = deque()
        self._wake = asyncio.Event()
        self._closed = False
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
        if self._closed or self._wanted() == self._shards.keys():
            return
        # Shards were split or merged: changes in between were not reported.
        self._follow(self._wanted())
        self._resync()

    def _take(self, event: Event) -> None:
        if isinstance(event, Changed | Deleted):
            path = event.key
            if self._ignored(path) or not is_below(path, self._prefix):
                return
            if len(self._changes) >= METADATA_WATCH_QUEUE_MAX:
                self._resync()
            if isinstance(event, Changed):
                self._changes.append(Change(ChangeKind.PUT, path, event.version_id))
            else:
                self._changes.append(Change(ChangeKind.DELETED, path))
        else:
            self._resync()
        self._wake.set()

    def _resync(self) -> None:
        self._changes.clear()
        self._changes.append(Change(ChangeKind.RESYNC))
        self._wake.set()

    async def __anext__(self) -> Change:
        while not self._changes:
            if self._closed:
                raise StoreClosed("watch", self._url)
            self._wake.clear()
            await self._wake.wait()
        return self._changes.popleft()

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._forget is not None:
            self._forget()
            self._forget = None
        shards, self._shards = list(self._shards.values()), {}
        await asyncio.gather(*(notifications.close() for notifications in shards), *self._retired)


def is_below(path: str, prefix: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix + "/")
