"""Sizes of logs, for tools that show them: bytes that a log's index covers.

A size is a scan of the log's index in the metadata store. Consoles ask for all sizes every minute, so a size counts
for LOG_SIZE_FRESH_MS, and one request at a time reads sizes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from llog.errors import LlogError, PartitionNotInitialized
from llog.log.context import LogContext
from llog.log.inspect.describe import describe_log
from llog.log.keys import Log

LOG_SIZE_FRESH_MS: Final = 60_000
LOG_SIZES_MAX: Final = 100_000
"""Sizes that are remembered; at the limit, all are forgotten."""
LOG_SIZES_IN_FLIGHT_MAX: Final = 16
UNKNOWN_SIZE_BYTES: Final = -1


class LogSizes:
    def __init__(self) -> None:
        self._known: dict[tuple[str, Log], tuple[float, int]] = {}
        """By topic id and log: when it was read, and the size."""
        self._reading = asyncio.Lock()

    async def of(self, context: LogContext, logs: Sequence[tuple[str, Log]], now_ms: Callable[[], float]) -> list[int]:
        """The size in bytes of each log, given with its topic's id; -1 if it could not be read."""
        async with self._reading:
            oldest_ms = now_ms() - LOG_SIZE_FRESH_MS
            left = iter([log for log in logs if log not in self._known or self._known[log][0] < oldest_ms])
            if len(self._known) > LOG_SIZES_MAX:
                self._known.clear()
                left = iter(logs)

            async def work() -> None:
                for key in left:
                    self._known[key] = now_ms(), await _size(context, key[1])

            await asyncio.gather(*(work() for _ in range(LOG_SIZES_IN_FLIGHT_MAX)))
            return [self._known[log][1] for log in logs]


async def _size(context: LogContext, log: Log) -> int:
    try:
        return (await describe_log(context, log)).index.data_bytes
    except PartitionNotInitialized:
        return 0
    except LlogError:
        return UNKNOWN_SIZE_BYTES
