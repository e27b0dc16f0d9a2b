"""Logs that this process meets for the first time: known before their records go into a flush.

Why it exists: a log must be initialized before the blob's id is drawn (h04), and that may take long or fail: its shard
is away, its topic is being deleted, a newer release wrote its record. Inside a flush that would hold up, or fail, all
the other logs of it. Here it concerns only those who wait for that log.

What must stay true: of one log nothing overtakes; while it is waited for, everything that comes for it waits behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from llog.broker.batching_requests import Entry, refuse
from llog.errors import AppendNotCommitted, InconsistentReadState, LlogError, LogError, StoreError
from llog.limits import BATCH_NEW_LOGS_IN_FLIGHT_MAX
from llog.log.keys import Log
from llog.log.known import KnownLogs

logger = logging.getLogger(__name__)


class Newcomers:
    def __init__(self, known: KnownLogs, on_known: Callable[[Sequence[Entry]], None]) -> None:
        self._known, self._on_known = known, on_known
        self._waiting: dict[Log, list[Entry]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)

    def is_known(self, log: Log) -> bool:
        """It was met before, so its name is right; it may be waited for again."""
        return self._known.get(log) is not None

    def take(self, entry: Entry) -> bool:
        """False: its log is known, and nothing of it waits here."""
        waiting = self._waiting.get(entry.log)
        if waiting is not None:
            waiting.append(entry)
            return True
        known = self._known.get(entry.log)
        if known is not None and known.fresh:
            return False
        self._waiting[entry.log] = [entry]
        task = asyncio.create_task(self._meet(entry.log))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _meet(self, log: Log) -> None:
        error: LogError
        try:
            async with self._slots:
                await self._known.know(log)
        except LogError as refused:
            error = refused
        except StoreError as trouble:
            error = AppendNotCommitted(*log, f"it could not be looked up: {trouble}")
        except LlogError as damage:
            error = InconsistentReadState(*log, str(damage))
        except asyncio.CancelledError:
            error = AppendNotCommitted(*log, "the broker is closing, and the log was not known yet")
        except Exception as bug:
            logger.exception("looking up %s failed", log)
            error = AppendNotCommitted(*log, f"it could not be looked up: {bug!r}")
        else:
            self._known.release([log])
            self._on_known(self._waiting.pop(log))
            return
        refuse(self._waiting.pop(log), error)

    async def give_up(self) -> None:
        """Answer all who wait here."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # One that was cancelled before its first step could not answer.
        for log in list(self._waiting):
            refuse(self._waiting.pop(log), AppendNotCommitted(*log, "the broker is closing"))
