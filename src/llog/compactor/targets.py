"""The logs that the service works on, kept current: what changed is read again, everything else is remembered.

    a topic changed            that topic is read, together with others that changed within a pause
    a watch began or missed    every topic is read, and every log inspected
    every discovery interval   topics being deleted are read again; without a watch, every topic
    a sweep is due             as after a gap, in case the report of a change was lost

A refresh that fails changes nothing, and the next one reads the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple

from llog.compactor.discovery import Catalogue, Discovered, DyingTopic, plan_left_behind
from llog.compactor.pace import Pause
from llog.compactor.plan import plan_sweep_interval_ms
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.config import TopicConfig

# Shortest pause between two readings of everything: a watch that misses changes again and again is slower than that.
COMPACTOR_READ_ALL_PAUSE_MS: Final = 5_000


class Refreshed(NamedTuple):
    """The result of one refresh."""

    inspect: Collection[Log]
    """Logs to inspect: the new ones, or all of them."""
    others: bool = False
    """The targets are not the same as before."""
    reconfigured: Collection[str] = ()
    """Topics with another config than before."""
    left_behind: list[DyingTopic] | None = None
    """Topics that were being deleted an interval ago already; None: the interval is not over."""


class Targets:
    def __init__(self, context: LogContext, configured: Collection[Log], *, interval_ms: int) -> None:
        self._context, self._interval_ms = context, interval_ms
        self._catalogue = Catalogue(context, configured)
        self.discovered = Discovered(tuple(configured))
        self.logs: frozenset[Log] = frozenset(configured)
        self.fenced: frozenset[Log] = frozenset()
        self.changed = asyncio.Event()
        """A topic waits to be read."""
        self._stale: set[str] = set()
        self._all_stale = True
        self._interval, self._sweep, self._read_all = Pause(), Pause(), Pause()
        self._dying: frozenset[DyingTopic] = frozenset()
        """At the end of the last interval."""

    def by_key(self) -> dict[Log, TopicConfig]:
        return self._catalogue.by_key()

    def log_changed(self, log: Log) -> None:
        """A log that is no target changed: it may be a new one. A log that is left out is known."""
        if not self._catalogue.knows(log):
            self.topic_changed(log.topic)

    def topic_changed(self, topic: str) -> None:
        self._stale.add(topic)
        self.changed.set()

    def all_changed(self) -> None:
        self._all_stale = True
        self.changed.set()

    def wait_ms(self) -> int:
        """Time until the next refresh, if no topic changes."""
        now_ms = self._context.now_ms()
        left_ms = self._interval.left_ms(now_ms)
        return min(left_ms, self._read_all.left_ms(now_ms)) if self._all_stale else left_ms

    async def refresh(self, *, watched: bool) -> Refreshed:
        """Read what may have changed. `watched`: changes are reported."""
        now_ms = self._context.now_ms()
        is_over, sweep = not self._interval.left_ms(now_ms), not self._sweep.left_ms(now_ms)
        stale, everything = self._stale, (self._all_stale or sweep) and not self._read_all.left_ms(now_ms)
        self._stale, self._all_stale = set(), self._all_stale and not everything
        self._catalogue.reconfigured = frozenset()
        try:
            found = await self._read(stale, everything=everything, is_over=is_over, watched=watched)
        except BaseException:
            self._stale |= stale
            self._all_stale |= everything
            raise
        before = self.logs
        if found.logs is not self.discovered.logs:
            self.logs = frozenset(found.logs)
        self.discovered, self.fenced = found, frozenset(log for log, _ in found.fenced)
        left_behind = None
        if is_over:
            self._interval = Pause(now_ms, now_ms + self._interval_ms)
            left_behind, self._dying = plan_left_behind(self._dying, found.dying), found.dying
        if everything:
            self._sweep = Pause(now_ms, now_ms + plan_sweep_interval_ms(self._catalogue.topic_count, len(self.logs)))
            self._read_all = Pause(now_ms, now_ms + COMPACTOR_READ_ALL_PAUSE_MS)
        inspect = self.logs if everything else self.logs - before
        return Refreshed(inspect, self.logs is not before, self._catalogue.reconfigured, left_behind)

    async def _read(self, stale: set[str], *, everything: bool, is_over: bool, watched: bool) -> Discovered:
        if everything:
            return await self._catalogue.read_all()
        if is_over and not watched:
            return await self._catalogue.read_all(thorough=bool(stale))
        if is_over:
            stale = stale | {dying.topic for dying in self.discovered.dying}
        if stale:
            return await self._catalogue.read(stale)
        if self.discovered.left_out:
            return self._catalogue.discovered()
        return self.discovered._replace(at_ms=self._context.now_ms())
