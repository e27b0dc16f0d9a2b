"""Settling off the path of the acknowledgement, and clearing what is settled on logs that fell silent.

Only for compare-and-set stores. The entries of a flush are written in one call by a task of their own. A log's next
append replaces its settled `pending` for nothing; on a log that nobody appends to any more a timer takes it away, so
that its control record stays small and nobody has to ask about it again. What must stay true: only a `pending` whose
entry we have seen written is cleared (R2), by compare-and-set; the timer ends when nothing is left to clear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from llog.errors import LogError, MetadataStoreError, StoreClosed, StoreError, UnsupportedFormat
from llog.formats.values import ControlRecord, Pending, encode_value
from llog.limits import LOG_IDLE_CLEAR_MS
from llog.log.append.known import Known, KnownLogs
from llog.log.append.settle import StaleSelf, settle
from llog.log.context import LogContext, write_all
from llog.log.control import settled
from llog.log.index import index_entry_of
from llog.log.keys import Log
from llog.log.metrics import AppendCounters
from llog.stores.metadata.port import ABSENT, Put

# Flushes whose index entries are still being written, off the path of the acknowledgement.
LOG_SETTLEMENTS_MAX: Final = 64
LOG_IDLE_CLEAR_ATTEMPTS_MAX: Final = 3
# Logs whose `pending` is taken away in one call.
LOG_IDLE_CLEAR_LOGS_MAX: Final = 1_000


class _Uncleared(NamedTuple):
    """A settled append that still stands as pending, as far as we know."""

    append_id: str
    attempts: int = 0


class _Clearing(NamedTuple):
    log: Log
    known: Known
    cleared: ControlRecord
    write: list[Put]


class Settlements:
    def __init__(self, context: LogContext, known: KnownLogs, counters: AppendCounters) -> None:
        self._context, self._known, self._counters = context, known, counters
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(LOG_SETTLEMENTS_MAX)
        self._uncleared: dict[Log, _Uncleared] = {}
        self._timer: asyncio.Task[None] | None = None

    async def later(self, landed: Sequence[tuple[Log, Pending]]) -> None:
        """Write the entries of these appends in the background; waits only when too many flushes are there already."""
        await self._slots.acquire()
        task = asyncio.create_task(self._settle(landed))
        for log, _ in landed:
            self._known[log].settling = task
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _settle(self, landed: Sequence[tuple[Log, Pending]]) -> None:
        """All entries of a flush in one call; what does not go smoothly takes the careful way."""
        keys = self._context.keys
        groups = [
            [Put(keys.index_entry(log, pending.end_offset), encode_value(index_entry_of(pending)), ABSENT)]
            for log, pending in landed
        ]
        try:
            answers = await write_all(self._context.metadata, groups)
        except StoreClosed:
            return  # whoever opens the log next settles it
        for (log, pending), answer in zip(landed, answers, strict=True):
            known = self._known.get(log)
            try:
                if not isinstance(answer, tuple):
                    await settle(self._context, log, pending)
            except (StaleSelf, StoreError, LogError):
                continue  # whoever appends next finds it pending, and settles it or says why not
            self._counters.settles += 1
            if known is not None:
                known.settled_append_id = pending.append_id
                self._uncleared[log] = _Uncleared(pending.append_id)
        if self._uncleared and (self._timer is None or self._timer.done()):
            self._timer = asyncio.create_task(self._clear_idle())

    # -- clearing -----------------------------------------------------------------------------------------------------
    async def _clear_idle(self) -> None:
        """The timer: clears a log once it stood still from one look to the next."""
        seen: dict[Log, str] = {}
        while self._uncleared:
            await self._context.sleep(LOG_IDLE_CLEAR_MS / 1_000)
            now = {log: mark.append_id for log, mark in self._uncleared.items()}
            idle = [log for log, append_id in now.items() if seen.get(log) == append_id]
            seen = now
            try:
                await self.clear_settled(idle)
            except StoreClosed:
                return

    async def clear_settled(self, logs: Iterable[Log] | None = None) -> None:
        """Take away what is settled and still stands as pending; of all logs, unless some are named."""
        waiting = self._known.logs() if logs is None else list(logs)
        for first in range(0, len(waiting), LOG_IDLE_CLEAR_LOGS_MAX):
            await self._clear(waiting[first : first + LOG_IDLE_CLEAR_LOGS_MAX])

    async def _clear(self, logs: Sequence[Log]) -> None:
        held: list[_Clearing] = []
        try:
            for log in logs:
                known = self._known.get(log)
                if known is not None and known.turn.locked():
                    continue  # somebody appends: it is not idle, and replaces what is pending by itself
                clearing = None if known is None else self._plan(log, known)
                if clearing is None:
                    self._uncleared.pop(log, None)
                    continue
                await clearing.known.turn.acquire()  # nobody holds it, so this does not wait
                held.append(clearing)
            answers = await write_all(self._context.metadata, [clearing.write for clearing in held])
            for clearing, answer in zip(held, answers, strict=True):
                self._cleared(clearing, answer)
        finally:
            for clearing in held:
                clearing.known.turn.release()

    def _plan(self, log: Log, known: Known) -> _Clearing | None:
        """None: nothing of ours stands there, or it is not ours to write."""
        cleared = None if known.settled_append_id is None else settled(known.control, known.settled_append_id)
        if cleared is None:
            return None
        key = self._context.keys.control(log)
        try:
            return _Clearing(log, known, cleared, [Put(key, encode_value(cleared, key.path), known.version)])
        except UnsupportedFormat:
            return None  # a newer release wrote it (h18)

    def _cleared(self, clearing: _Clearing, answer: tuple[int, ...] | MetadataStoreError) -> None:
        mark = self._uncleared.pop(clearing.log, None)
        if isinstance(answer, tuple):
            clearing.known.move(clearing.cleared, answer[0])
            clearing.known.settled_append_id = None
            self._counters.cleared += 1
        elif mark is not None and answer.retriable and mark.attempts + 1 < LOG_IDLE_CLEAR_ATTEMPTS_MAX:
            # Nobody knows, or nobody was there: tried again at the same version, where only one of the two applies.
            self._uncleared[clearing.log] = mark._replace(attempts=mark.attempts + 1)

    async def close(self) -> None:
        """Finish what is being settled, and leave no `pending` behind that is known to be settled."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        await self.clear_settled()
