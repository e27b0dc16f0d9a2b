"""The queue between a store's notifications and the reader of a watch, for every adapter with a watch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from llog.errors import StoreClosed
from llog.limits import METADATA_WATCH_QUEUE_MAX
from llog.stores.metadata.port import Change, ChangeKind

RESYNC = Change(ChangeKind.RESYNC)


def is_below(path: str, prefix: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix + "/")


class ChangeQueue(AsyncIterator[Change]):
    """Unread changes below `prefix` of one reader; too many of them become one RESYNC."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url, self.prefix = url, prefix
        self._changes: deque[Change] = deque()
        self._wake = asyncio.Event()
        self._ended = False

    def offer(self, change: Change) -> None:
        if not is_below(change.path, self.prefix):
            return
        if len(self._changes) >= METADATA_WATCH_QUEUE_MAX:
            self.resync()
        self._changes.append(change)
        self._wake.set()

    def offer_all(self, changes: list[Change]) -> None:
        """`offer` of at most METADATA_WATCH_QUEUE_MAX changes, all of them below the prefix."""
        if len(self._changes) + len(changes) > METADATA_WATCH_QUEUE_MAX:
            self.resync()
        if changes:
            self._changes.extend(changes)
            self._wake.set()

    def resync(self) -> None:
        self._changes.clear()
        self._changes.append(RESYNC)
        self._wake.set()

    def end(self) -> None:
        """After the unread changes, the reader gets `StoreClosed`."""
        self._ended = True
        self._wake.set()

    async def __anext__(self) -> Change:
        while not self._changes:
            if self._ended:
                raise StoreClosed("watch", self.url)
            self._wake.clear()
            await self._wake.wait()
        return self._changes.popleft()
