"""Commits of one log keep the order of flushes, although their uploads overlap.

Why it exists: `Appender` lets logs commit in the order in which their blobs are stored, and the second upload may end
first; and of two flushes that share some logs, one may get its turn at the shared one while the other waits for a
different log. A producer's records would overtake each other. So a flush begins to commit when every log that it has
in common with an earlier flush has got its outcome there.

What must stay true: a flush waits only for earlier ones, so nobody waits in a circle; an earlier flush that fails lets
the later ones go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from llog.log.append.append import Appender
from llog.log.append.attempt import PieceOutcomes
from llog.log.append.commit import Committer, OnDone
from llog.log.append.pieces import AppendSlice
from llog.log.keys import Log
from llog.stores.objects.port import Buffer, ObjectStore
from llog.stores.objects.wrapper import ForwardingObjectStore

# Logs of a flush that are committed at a time: each takes some 50 microseconds of the event loop; more would hold it.
BATCH_LOGS_PER_COMMIT: Final = 256


class Turn:
    """One flush's place in the order of all logs it has."""

    __slots__ = ("_before", "_latest", "_left", "_mine")

    def __init__(self, latest: dict[Log, asyncio.Future[None]], logs: Iterable[Log]) -> None:
        create = asyncio.get_running_loop().create_future
        self._latest = latest
        self._mine = {log: create() for log in logs}
        self._before = {log: latest[log] for log in self._mine if log in latest}
        self._left: set[Log] = set()
        latest.update(self._mine)

    async def come(self) -> None:
        """Until every earlier flush has decided the logs of this one."""
        waiting = [before for before in self._before.values() if not before.done()]
        if waiting:
            await asyncio.wait(waiting)

    def leave(self, log: Log) -> None:
        """The log has its outcome. Idempotent.

        One that fails early, before its turn has come, must not let the next one pass the one before it.
        """
        if log in self._left:
            return
        self._left.add(log)
        before = self._before.get(log)
        if before is None or before.done():
            self._open(log)
        else:
            before.add_done_callback(lambda _: self._open(log))

    def leave_all(self) -> None:
        for log in self._mine:
            self.leave(log)

    def _open(self, log: Log) -> None:
        mine = self._mine[log]
        mine.set_result(None)
        if self._latest.get(log) is mine:
            del self._latest[log]


class CommitOrder:
    def __init__(self) -> None:
        self._latest: dict[Log, asyncio.Future[None]] = {}

    def next(self, logs: Sequence[Log]) -> Turn:
        """Behind all that were given before."""
        return Turn(self._latest, logs)


class GatedStore(ForwardingObjectStore):
    """Its puts end when the blob is stored and `afterwards` is done."""

    def __init__(self, inner: ObjectStore, afterwards: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._afterwards = afterwards

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self.inner.put(name, buffers, if_absent=if_absent)
        await self._afterwards()


def gated(appender: Appender, afterwards: Callable[[], Awaitable[None]]) -> Appender:
    """The same appender, for one flush: between upload and commit it waits for `afterwards`.

    It shares all that is known of logs and their turns; only the store of its blobs is another, and very many logs are
    committed in steps.
    """
    wal = appender.context.wal
    assert wal is not None, "an appender has a store to put blobs into"
    one_flush = Appender(replace(appender.context, wal=GatedStore(wal, afterwards)))
    one_flush.committer = PacedCommitter(appender.committer)
    return one_flush


class PacedCommitter(Committer):
    """The committer that it is given, whose commits of very many logs let others have their turn at the event loop.

    Each log is committed for itself, so nothing hangs on their being written together: a step that fails leaves the
    logs of the steps before it committed, as they were told.
    """

    def __init__(self, inner: Committer) -> None:
        self.__dict__ = inner.__dict__

    async def commit(self, parts: Mapping[Log, AppendSlice], on_done: OnDone | None = None) -> dict[Log, PieceOutcomes]:
        if len(parts) <= BATCH_LOGS_PER_COMMIT:
            return await super().commit(parts, on_done)
        logs = sorted(parts)
        outcomes: dict[Log, PieceOutcomes] = {}
        for first in range(0, len(logs), BATCH_LOGS_PER_COMMIT):
            step = logs[first : first + BATCH_LOGS_PER_COMMIT]
            await asyncio.sleep(0)
            outcomes |= await super().commit({log: parts[log] for log in step}, on_done)
        return outcomes
