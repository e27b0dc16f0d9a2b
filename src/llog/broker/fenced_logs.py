"""Logs that this broker found closed to appends, each with the reason: for its health page.

Why it exists: whoever asks why producers are refused asks the broker that refuses them. A broker does not look at every
log of the cluster (the compactor does, and tells of all); it knows those that it was asked to append to, or to fence.

What must stay true: what is shown was read, not remembered: a log opened again elsewhere goes from the page with the
next look; nothing is read while none is closed; there are only so many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from llog.errors import LlogError, LogFenced
from llog.formats.values import ControlRecord, decode_value
from llog.log.context import LogContext
from llog.log.keys import Log

# How many of those that it met are shown, and how often it looks whether they are still closed.
BROKER_FENCED_LOGS_MAX: Final = 100
BROKER_FENCED_LOOK_MS: Final = 2_000


_log: Final = logging.getLogger("llog.broker")


class FencedLogs:
    """One per broker, on its event loop."""

    def __init__(self, context: LogContext, *, look_ms: int = BROKER_FENCED_LOOK_MS) -> None:
        self._context, self._look_ms = context, look_ms
        self._watched: dict[Log, str | None] = {}
        """With the reason, once it was read."""
        self._more = asyncio.Event()

    def refused(self, outcomes: Sequence[object]) -> None:
        """Take those among them that were closed."""
        for outcome in outcomes:
            if isinstance(outcome, LogFenced):
                log = Log(outcome.topic, outcome.partition)
                if log not in self._watched:  # a producer may go on trying
                    self.look_at(log)

    def look_at(self, log: Log) -> None:
        """It may be closed now, or open again."""
        if log in self._watched or len(self._watched) < BROKER_FENCED_LOGS_MAX:
            self._watched.setdefault(log, None)
            self._more.set()

    def shown(self) -> list[str]:
        return [f"{log}: {reason}" for log, reason in sorted(self._watched.items()) if reason is not None]

    async def run(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_ms / 1_000 if self._watched else None):
                    await self._more.wait()
            self._more.clear()
            try:
                await self.look()
            except LlogError as error:
                _log.debug("closed logs could not be looked at: %s", error)  # the store's trouble is told elsewhere

    async def look(self) -> None:
        logs = list(self._watched)
        found = await self._context.metadata.get_many([self._context.keys.control(log) for log in logs], strict=True)
        for log, record in zip(logs, found, strict=True):
            control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
            if control is not None and control.log_state == "FENCED":
                self._watched[log] = control.fence_reason
            else:
                del self._watched[log]
