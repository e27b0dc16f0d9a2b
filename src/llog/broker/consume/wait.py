"""Waiting at the end of logs: long polls that cost nothing but the shared refresh.

Why it exists: a thousand consumers may wait on the same few logs. Appends of this process (or of one that shares the
tail cache) wake them by event; what other brokers appended is found by ONE task that reads the control records of all
logs with waiters, each at most about every `refresh_ms`, whoever and how many wait.

What must stay true: nobody reads metadata per waiter; an append that the tail cache learns of between a look and the
wait is not missed (both happen on the event loop, and `wait` compares before it sleeps); a waiter that leaves, by
timeout or cancellation, leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from llog.broker.tail.cache import LONG_AGO, TailCache
from llog.broker.topic_configs import TopicConfigs
from llog.errors import LlogError
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.read.view import view_of

# Requests that wait for records at the same time; one more is answered with what there is.
CONSUME_WAITERS_MAX: Final = 100_000


_log = logging.getLogger(__name__)


class Woken(NamedTuple):
    moved: set[Log]
    """Whose end moved, or which changed otherwise; none when time was up."""
    waited: bool
    """False: that was so already."""
    at_ms: float
    """When the first of them moved; it may take a while until the waiter gets its turn."""


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
        configs: TopicConfigs,
        *,
        refresh_ms: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._context, self._cache, self._configs = context, cache, configs
        self._refresh_ms, self._sleep = refresh_ms, sleep
        self._waiters: dict[Log, set[_Waiter]] = {}
        self._read_at_ms: dict[Log, float] = {}
        """When the refresh last read a log that has waiters."""
        self._waiter_count = 0
        self._confirming: dict[Log, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False
        self.control_reads = 0
        """Control records read by this watch, for confirmation and refresh together."""
        cache.on_moved = self._wake

    @property
    def waiter_count(self) -> int:
        return self._waiter_count

    @property
    def is_full(self) -> bool:
        """Nobody else may wait: who would is answered with what there is."""
        return self._waiter_count >= CONSUME_WAITERS_MAX

    async def wait(self, positions: Mapping[Log, int], timeout_ms: float) -> Woken:
        """Until one of these logs has more than it had at that position, or changed otherwise, or time is up."""
        moved = self._moved(positions)
        if self._closed or moved:
            return Woken(moved, waited=False, at_ms=self._cache.clock())
        waiter = _Waiter()
        self._waiter_count += 1
        for log in positions:
            self._waiters.setdefault(log, set()).add(waiter)
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh_while_waited())
        try:
            await asyncio.wait([waiter.woken], timeout=timeout_ms / 1_000)
        finally:
            self._waiter_count -= 1
            for log in positions:
                waiters = self._waiters[log]
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[log]
                    self._read_at_ms.pop(log, None)
        return Woken(waiter.moved, True, self._cache.clock() if waiter.at_ms is None else waiter.at_ms)

    async def confirm(self, logs: Iterable[Log]) -> dict[Log, LlogError]:
        """Make what the cache knows of these logs count again: their control records are read, once for all who ask
        at the same time. A log that is gone is forgotten. Returns the logs that could not be asked for."""
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
        """Everybody who waits is woken and answers with what there is."""
        self._closed = True
        for log in list(self._waiters):
            self._wake(log)
        tasks = {task for task in (self._refreshing, *self._confirming.values()) if task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- inside --------------------------------------------------------------------------------------------------
    def _moved(self, positions: Mapping[Log, int]) -> set[Log]:
        moved: set[Log] = set()
        for log, offset in positions.items():
            tail = self._cache.known(log)
            if tail is None or tail.next_offset != offset:
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
            task.exception()  # whoever waited has it; nobody may wait any more

    async def _refresh_while_waited(self) -> None:
        """Each log when its end was last seen about `refresh_ms` ago; those that are nearly due go along."""
        slack_ms = self._refresh_ms / 8
        failing = False
        try:
            while self._waiters:
                due_ms = {log: self._due_ms(log) for log in self._waiters}
                pause_ms = min(due_ms.values()) - self._cache.clock()
                await self._sleep(max(pause_ms, slack_ms / 2) / 1_000)
                now = self._cache.clock()
                due = [log for log in self._waiters if self._due_ms(log) <= now + slack_ms]
                self._read_at_ms.update(dict.fromkeys(due, now))
                try:
                    await self._read(due)
                    failing = False
                except LlogError as error:
                    # Waiters wait on: they are woken by appends here, and time out otherwise.
                    if not failing:
                        _log.warning("logs with waiting consumers could not be refreshed: %s", error)
                    failing = True
                    await self._sleep(self._refresh_ms / 1_000)
        finally:
            self._refreshing = None

    def _due_ms(self, log: Log) -> float:
        """A read that brought no news of the end (it was from the past) counts too: it is not repeated at once."""
        tail = self._cache.known(log)
        seen_at_ms = LONG_AGO if tail is None else tail.end_at_ms
        seen_at_ms = max(seen_at_ms, self._read_at_ms.get(log, LONG_AGO))
        return max(seen_at_ms + self._refresh_ms, self._cache.clock() - self._refresh_ms)

    async def _read(self, logs: Sequence[Log]) -> None:
        as_of_ms = self._cache.clock()
        self.control_reads += len(logs)
        keyed = await self._configs.compacted_by_key({log.topic for log in logs})
        keys = [self._context.keys.control(log) for log in logs]
        # What was rewritten is asked for only where it matters: for most topics this stays one record a log.
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
