"""Asking a metadata store that is away for a while: by streams, which run for weeks, and by writes before they fail.

Why it exists: nobody starts a query again by itself that ended because a store restarted, and a write that is given up
has uploaded its rows for nothing. Spark asks its readers and writers once.

What must stay true: only what may be asked twice is asked here; a store that never answered is not waited for, since
whoever asks has opened the log before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from llog.errors import MetadataStoreError
from llog.log.context import LogContext

# How often streams and writes of Spark's ask it, and how long they wait at most before they ask again: about half a
# minute together, in which a store restarts.
SPARK_ASKS_MAX: Final = 16
SPARK_ASK_BACKOFF_MS_MAX: Final = 10_000


_log: Final = logging.getLogger("llog.spark")
T = TypeVar("T")


async def answered(context: LogContext, question: Callable[[], Awaitable[T]]) -> T:
    """Raises what came of the last time."""
    for round_number in range(SPARK_ASKS_MAX - 1):
        try:
            return await question()
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            _log.warning("waiting for the metadata store: %s", error)
        await context.back_off(round_number, longest_ms=SPARK_ASK_BACKOFF_MS_MAX)
    return await question()
