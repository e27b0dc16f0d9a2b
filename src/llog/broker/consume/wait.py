"""Wait at the end of logs: long polls that cost nothing but one shared refresh.

Appends of this process, or of one that shares the tail cache, wake waiting requests by event. Appends of other brokers
are found by one task that reads the control records of all logs with waiters, each about every `refresh_ms`, whatever
the number of waiters.

No append between a lookup and the wait is missed: both run on the event loop, and `wait` compares before it sleeps. A
waiter that times out or is cancelled leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from llog.broker.tail.cache import LONG_AGO, TailCache
from llog.concurrency import batched
from llog.errors import LlogError
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.read.view import view_of
from llog.log.topics.known_topics import KnownTopics

# Requests that wait at the same time; one more is answered at once with the records at hand.
CONSUME_WAITERS_MAX: Final = 100_000
# Logs that are compared or read before other tasks get their turn.
WATCH_LOGS_PER_TURN: Final = 512

_log = logging.getLogger(__name__)


class Woken(NamedTuple):
    moved: set[Log]
    """Logs with a moved end or another change of state; none on a timeout."""
    waited: bool
    """False: they had moved before the wait began."""
    at_ms: float
    """When the first of them moved; the waiter may get its turn later."""


class _Waiter:
    __slots__ = ("at_ms", "moved", "woken")

    def __init__(self) -> None:
        self.moved: set[Log] = set()
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.at_ms: float | None = None

    def wake(self, log: Log, at_ms: float) -> None:
        self.moved.add(log)
        if not self.woken.done():
            self.at_ms = at_ms
            self.woken.set_result(None)


class TailWatch:
    def __init__(
        self,
        context: LogContext,
        cache: TailCache,
        configs: KnownTopics,
        *,
        refresh_ms: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._context, self._cache, self._configs = context, cache, configs
        self._refresh_ms, self._sleep = refresh_ms, sleep
        self._waiters: dict[Log, set[_Waiter]] = {}
        self._read_at_ms: dict[Log, float] = {}
        """When the refresh last read each log that has waiters."""
        self.waiter_count = 0
        self._confirming: dict[Log, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False
        self.control_reads = 0
        """Control records read by this watch, for confirmation and refresh together."""

    @property
    def is_full(self) -> bool:
        """No further request may wait."""
        return self.waiter_count >= CONSUME_WAITERS_MAX

    async def wait(self, next_offsets: Mapping[Log, int], timeout_ms: float) -> Woken:
        """Wait until one of these logs has records at its next offset or changed otherwise, or until the timeout."""
        waiter = _Waiter()
        self.waiter_count += 1
        self._cache.on_moved = self._wake
        registered: list[Log] = []
        try:
            for some in batched(list(next_offsets), WATCH_LOGS_PER_TURN):
                if registered:
                    await asyncio.sleep(0)  # appends to the logs so far wake the waiter already
                moved = self._moved(some, next_offsets)
                if self._closed or moved:
                    return Woken(moved, waited=False, at_ms=self._cache.clock())
                registered += some
                for log in some:
                    self._waiters.setdefault(log, set()).add(waiter)
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh_while_waited())
            await asyncio.wait([waiter.woken], timeout=timeout_ms / 1_000)
        finally:
            self._leave(waiter, registered)
        return Woken(waiter.moved, True, self._cache.clock() if waiter.at_ms is None else waiter.at_ms)

    def _leave(self, waiter: _Waiter, logs: Iterable[Log]) -> None:
        self.waiter_count -= 1
        for log in logs:
            waiters = self._waiters[log]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[log]
                self._read_at_ms.pop(log, None)
        if not self._waiters and not self.waiter_count:
            self._cache.on_moved = None

    async def confirm(self, logs: Iterable[Log]) -> dict[Log, LlogError]:
        """Confirm the cached state of these logs by reading their control records, once for all concurrent callers. A
        deleted log is forgotten. Returns the logs that could not be read, with the error."""
        wanted = list(dict.fromkeys(logs))
        fresh = [log for log in wanted if log not in self._confirming]
        if fresh:
            task = asyncio.create_task(self._read(fresh))
            for log in fresh:
                self._confirming[log] = task
            task.add_done_callback(lambda done: self._confirmed(fresh, done))
        tasks = {log: self._confirming[log] for log in wanted}
        await asyncio.wait(set(tasks.values())) if tasks else None
        failed: dict[Log, LlogError] = {}
        for log, task in tasks.items():
            error = None if task.cancelled() else task.exception()
            if isinstance(error, LlogError):
                failed[log] = error
            elif error is not None:
                raise error
        return failed

    async def close(self) -> None:
        """Wake all waiters; they answer with the records at hand."""
        self._closed = True
        for log in list(self._waiters):
            self._wake(log)
        tasks = {task for task in (self._refreshing, *self._confirming.values()) if task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- inside --------------------------------------------------------------------------------------------------
    def _moved(self, logs: Iterable[Log], next_offsets: Mapping[Log, int]) -> set[Log]:
        moved: set[Log] = set()
        for log in logs:
            tail = self._cache.known(log)
            if tail is None or tail.next_offset != next_offsets[log]:
                moved.add(log)
        return moved

    def _wake(self, log: Log) -> None:
        waiters = self._waiters.get(log)
        if waiters:
            at_ms = self._cache.clock()
            for waiter in waiters:
                waiter.wake(log, at_ms)

    def _confirmed(self, logs: Sequence[Log], task: asyncio.Task[None]) -> None:
        for log in logs:
            self._confirming.pop(log, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved: all callers may be gone

    async def _refresh_while_waited(self) -> None:
        """Read each log about `refresh_ms` after its end was last known; logs that are nearly due are read along."""
        slack_ms = self._refresh_ms / 8
        failing = False
        try:
            while self._waiters:
                pause_ms = min([at_ms for at_ms, _ in await self._all_due_ms()]) - self._cache.clock()
                await self._sleep(max(pause_ms, slack_ms / 2) / 1_000)
                now = self._cache.clock()
                due = [log for at_ms, log in await self._all_due_ms() if at_ms <= now + slack_ms]
                self._read_at_ms.update(dict.fromkeys(due, now))
                try:
                    await self._read(due)
                    failing = False
                except LlogError as error:
                    # Waiters go on waiting: appends of this process wake them, or they time out.
                    if not failing:
                        _log.warning("control records of logs with waiting consumers cannot be read: %s", error)
                    failing = True
                    await self._sleep(self._refresh_ms / 1_000)
        finally:
            self._refreshing = None

    def _due_ms(self, log: Log) -> float:
        """When to read a log next. A read that returned a stale record counts too, so it is not repeated at once."""
        tail = self._cache.known(log)
        seen_at_ms = LONG_AGO if tail is None else tail.end_at_ms
        seen_at_ms = max(seen_at_ms, self._read_at_ms.get(log, LONG_AGO))
        return max(seen_at_ms + self._refresh_ms, self._cache.clock() - self._refresh_ms)

    async def _all_due_ms(self) -> list[tuple[float, Log]]:
        due_ms: list[tuple[float, Log]] = []
        for some in batched(list(self._waiters), WATCH_LOGS_PER_TURN):
            if due_ms:
                await asyncio.sleep(0)
            due_ms += [(self._due_ms(log), log) for log in some]
        return due_ms

    async def _read(self, logs: Sequence[Log]) -> None:
        for some in batched(logs, WATCH_LOGS_PER_TURN):
            if some[0] is not logs[0]:
                await asyncio.sleep(0)
            await self._read_some(some)

    async def _read_some(self, logs: Sequence[Log]) -> None:
        as_of_ms = self._cache.clock()
        self.control_reads += len(logs)
        keyed = await self._configs.compacted_by_key({log.topic for log in logs})
        keys = [self._context.keys.control(log) for log in logs]
        # Compaction records matter only for topics compacted by key; most logs need one record.
        keys += [self._context.keys.compaction(log) for log in logs if log.topic in keyed]
        records = await get_all(self._context.metadata, keys, strict=False) if keys else []
        compactions = iter(records[len(logs) :])
        for log, record in zip(logs, records, strict=False):
            by_key = log.topic in keyed
            if not by_key and record is not None and self._cache.confirm_again(log, record.version, as_of_ms):
                continue
            seen = view_of(record, next(compactions) if by_key else None)
            if seen is None:
                self._cache.forget(log)
            else:
                self._cache.see(log, seen, as_of_ms, by_key=by_key)
