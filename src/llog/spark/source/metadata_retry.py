"""Retries of metadata requests by streams and writes of Spark, while the store is unavailable for a while.

Spark calls a reader or writer once: without a retry, a restart of the store would end a query that nothing starts
again, and a failed write would have uploaded its rows for nothing. Only requests that may be repeated are retried. A
store that never answered is not waited for: the log was opened before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from llog.errors import MetadataStoreError
from llog.log.context import LogContext

# Attempts, and the longest wait between two: about half a minute together, enough for a restart of the store.
SPARK_METADATA_ATTEMPTS_MAX: Final = 16
SPARK_METADATA_BACKOFF_MS_MAX: Final = 10_000

_log: Final = logging.getLogger("llog.spark")
T = TypeVar("T")


async def with_metadata_retry(context: LogContext, request: Callable[[], Awaitable[T]]) -> T:
    """Raises the error of the last attempt."""
    for round_number in range(SPARK_METADATA_ATTEMPTS_MAX - 1):
        try:
            return await request()
        except MetadataStoreError as error:
            if not error.retriable:
                raise
            _log.warning("waiting for the metadata store: %s", error)
        await context.back_off(round_number, longest_ms=SPARK_METADATA_BACKOFF_MS_MAX)
    return await request()
