"""Fenced logs that this broker met, with the reason of each, for its health page.

The owner of refused producers asks the broker that refuses them. A broker knows the logs it was asked to append to
or to fence; the compactor reports all of the cluster. The page shows what the last read returned, so a log unfenced
elsewhere disappears with the next check. Nothing is read while no log is fenced.
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

# Fenced logs that are shown, and how often their control records are read.
BROKER_FENCED_LOGS_MAX: Final = 100
BROKER_FENCED_CHECK_MS: Final = 2_000


_log: Final = logging.getLogger("llog.broker")


class FencedLogs:
    """One per broker, on its event loop."""

    def __init__(self, context: LogContext, *, check_ms: int = BROKER_FENCED_CHECK_MS) -> None:
        self._context, self._check_ms = context, check_ms
        self._watched: dict[Log, str | None] = {}
        """Each with its fence reason, once it was read."""
        self._more = asyncio.Event()

    def refused(self, outcomes: Sequence[object]) -> None:
        """Note the logs of outcomes that are `LogFenced`."""
        for outcome in outcomes:
            if isinstance(outcome, LogFenced):
                log = Log(outcome.topic, outcome.partition)
                if log not in self._watched:  # a producer may keep trying
                    self.check(log)

    def check(self, log: Log) -> None:
        """Read the log's state soon: it may have been fenced or unfenced."""
        if log in self._watched or len(self._watched) < BROKER_FENCED_LOGS_MAX:
            self._watched.setdefault(log, None)
            self._more.set()

    def shown(self) -> list[str]:
        return [f"{log}: {reason}" for log, reason in sorted(self._watched.items()) if reason is not None]

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_ms / 1_000 if self._watched else None):
                    await self._more.wait()
            self._more.clear()
            try:
                await self.refresh()
            except LlogError as error:
                _log.debug("control records of fenced logs cannot be read: %s", error)

    async def refresh(self) -> None:
        logs = list(self._watched)
        records = await self._context.metadata.get_many([self._context.keys.control(log) for log in logs], strict=True)
        for log, record in zip(logs, records, strict=True):
            control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
            if control is not None and control.log_state == "FENCED":
                self._watched[log] = control.fence_reason
            else:
                del self._watched[log]
