"""What this process knows of logs: control at a version, producers, and whose turn it is to append.

None of it is ever trusted for a decision: a conditional write or a strict read confirms it (R7). It saves reading.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Final

from llog.formats.values import ControlRecord
from llog.log.append.fairness import Fairness
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.producers.state import KnownProducers
from llog.log.topics.create import initialize

LOG_KNOWN_MAX: Final = 100_000


class Known:
    """One log: control at a version, and whether its pending append is settled."""

    __slots__ = (
        "control",
        "fairness",
        "fresh",
        "pins",
        "producers",
        "settled_append_id",
        "settling",
        "turn",
        "version",
    )

    def __init__(self, control: ControlRecord, version: int) -> None:
        self.control, self.version = control, version
        self.fresh = True
        """False once the log turned out to have another life than we knew."""
        self.pins = 0
        """Appends under way; what is pinned is not forgotten."""
        self.settled_append_id: str | None = None
        self.settling: asyncio.Task[None] | None = None
        self.producers = KnownProducers()
        self.fairness = Fairness()
        self.turn = asyncio.Lock()
        """Appends of one log commit one after the other, in the order of their calls."""

    def move(self, control: ControlRecord, version: int) -> None:
        self.control, self.version = control, version

    def is_settled(self) -> bool:
        """May the next append replace what is pending (R2)?"""
        pending = self.control.pending
        return pending is None or pending.append_id == self.settled_append_id


class KnownLogs:
    """Bounded: logs that nobody appends to are forgotten, oldest first, and read again when they are met again."""

    def __init__(self, context: LogContext, *, first_offset: int) -> None:
        self._context, self._first_offset = context, first_offset
        self._known: dict[Log, Known] = {}

    def __getitem__(self, log: Log) -> Known:
        return self._known[log]

    def get(self, log: Log) -> Known | None:
        return self._known.get(log)

    def logs(self) -> list[Log]:
        return list(self._known)

    async def know(self, log: Log) -> int:
        """The incarnation under which the log can be appended to; initialized if need be. Pinned until `release`."""
        known = self._known.get(log)
        if known is None or not known.fresh:
            found = await initialize(self._context, log, first_offset=self._first_offset)
            if len(self._known) >= LOG_KNOWN_MAX:
                self._forget_idle()
            # Another call may have been faster; its lock is the one that orders appends.
            known = self._known.setdefault(log, Known(*found))
            if not known.fresh or found.version > known.version:
                known.move(*found)
                known.producers.forget()
                known.fresh = True
        known.pins += 1
        return known.control.incarnation

    def release(self, logs: Iterable[Log]) -> None:
        """Undo one `know` of each."""
        for log in logs:
            self._known[log].pins -= 1

    def _forget_idle(self) -> None:
        idle = (log for log, known in self._known.items() if not known.pins and not known.turn.locked())
        for log in list(itertools.islice(idle, LOG_KNOWN_MAX // 10 + 1)):
            del self._known[log]
