"""Logs that this process meets for the first time: known before their records go into a flush.

Why it exists: a log must be initialized before the blob's id is drawn (h04), and that may take long or fail: its shard
is away, its topic is being deleted, a newer release wrote its record. Inside a flush that would hold up, or fail, all
the other logs of it. Here it concerns only those who wait for that log.

What must stay true: of one log nothing overtakes; while it is waited for, everything that comes for it waits behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from llog.broker.produce.requests import Entry, refuse
from llog.errors import AppendNotCommitted, InconsistentReadState, LlogError, LogError, StoreError
from llog.limits import BATCH_NEW_LOGS_IN_FLIGHT_MAX
from llog.log.append.known import KnownLogs
from llog.log.keys import Log

# How long the new logs of one request wait for each other, so as to share a blob.
BATCH_NEW_LOGS_TOGETHER_MS: Final = 500


logger = logging.getLogger(__name__)
Lookup = asyncio.Task[LogError | None]


class Newcomers:
    def __init__(self, known: KnownLogs, on_known: Callable[[Sequence[Entry]], None]) -> None:
        self._known, self._on_known = known, on_known
        self._waiting: dict[Log, list[Entry]] = {}
        self._met: list[Log] = []
        """Since the last `look_up`."""
        self._lookups: set[Lookup] = set()
        self._meetings: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)

    def is_known(self, log: Log) -> bool:
        """It was met before, so its name is right; it may be waited for again."""
        return self._known.get(log) is not None

    def take(self, entry: Entry) -> bool:
        """False: its log is known, and nothing of it waits here. `look_up` must follow."""
        waiting = self._waiting.get(entry.log)
        if waiting is not None:
            waiting.append(entry)
            return True
        known = self._known.get(entry.log)
        if known is not None and known.fresh:
            return False
        self._waiting[entry.log] = [entry]
        self._met.append(entry.log)
        return True

    def look_up(self) -> None:
        """Those that were met together go on together, so that one request becomes one blob; nobody waits for the
        slowest of them for long."""
        if self._met:
            logs, self._met = self._met, []
            meeting = asyncio.create_task(self._meet(logs))
            self._meetings.add(meeting)
            meeting.add_done_callback(self._meetings.discard)

    async def _meet(self, logs: Sequence[Log]) -> None:
        lookups = {asyncio.create_task(self._look_up(log)): log for log in logs}
        self._lookups |= lookups.keys()
        try:
            done, left = await asyncio.wait(lookups, timeout=BATCH_NEW_LOGS_TOGETHER_MS / 1_000)
            self._go_on(lookups, done)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                self._go_on(lookups, done)
        finally:
            self._lookups -= lookups.keys()

    def _go_on(self, lookups: Mapping[Lookup, Log], done: Collection[Lookup]) -> None:
        found = {log: _error_of(lookup, log) for lookup, log in lookups.items() if lookup in done}
        self._on_known([entry for log, error in found.items() if error is None for entry in self._waiting.pop(log)])
        for log, error in found.items():
            if error is not None:
                refuse(self._waiting.pop(log), error)

    async def _look_up(self, log: Log) -> LogError | None:
        """Why nothing can be appended to it; None: it can."""
        try:
            async with self._slots:
                await self._known.know(log)
        except LogError as refused:
            return refused
        except StoreError as trouble:
            return AppendNotCommitted(*log, f"it could not be looked up: {trouble}")
        except LlogError as damage:
            return InconsistentReadState(*log, str(damage))
        except Exception as bug:
            logger.exception("looking up %s failed", log)
            return AppendNotCommitted(*log, f"it could not be looked up: {bug!r}")
        self._known.release([log])
        return None

    async def give_up(self) -> None:
        """Answer all who wait here."""
        for lookup in list(self._lookups):
            lookup.cancel()
        if self._meetings:
            await asyncio.wait(self._meetings)


def _error_of(lookup: Lookup, log: Log) -> LogError | None:
    if lookup.cancelled():
        return AppendNotCommitted(*log, "the broker is closing, and the log was not known yet")
    return lookup.result()
