"""Does a cluster have executors for us? Asked while a job waits for its rows.

Why it exists: a job on a cluster without free workers waits, for ever and without a word: Spark takes it that somebody
will bring some. A person should be told, and a service should do the work itself in the end.

What must stay true: a cluster that has one executor is left alone, however slow; the wait for the first, or for another
when all were lost, is bounded; where nobody can tell how many there are (Spark Connect), nobody is blamed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from llog.errors import SparkJobFailed
from llog.spark.sessions.session import is_connect, master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often a job that waits looks whether there is one, when it tells that there is none, and when it gives up. A
# scheduler that makes machines first needs minutes.
SPARK_STARVED_LOOK_MS: Final = 5_000
SPARK_STARVED_TOLD_MS: Final = 20_000
SPARK_STARVED_MS_MAX: Final = 300_000


_log: Final = logging.getLogger("llog.spark")
Count = Callable[[], int]
Sleep = Callable[[float], Awaitable[object]]


def count_of(spark: SparkSession) -> Count | None:
    """How to ask for the number of executors; None where there is nobody to ask, or no need to."""
    if is_connect(spark):
        return None
    master = master_of(spark)
    if master == "local" or master.startswith("local["):
        return None  # the driver itself
    context = spark.sparkContext
    # One of them is the driver.
    return lambda: int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


async def until_starved(count: Count, master: str, place: str, *, sleep: Sleep = asyncio.sleep) -> SparkJobFailed:
    """Returns, with what is to be raised, when there was no executor for too long at a stretch."""
    without_ms, told = 0, False
    why = f"{master} has no executor for it: are there workers with free cores and memory?"
    while without_ms < SPARK_STARVED_MS_MAX:
        await sleep(SPARK_STARVED_LOOK_MS / 1_000)
        if await asyncio.to_thread(count) > 0:
            without_ms, told = 0, False
            continue
        without_ms += SPARK_STARVED_LOOK_MS
        if without_ms >= SPARK_STARVED_TOLD_MS and not told:
            told = True
            _log.warning("the Spark job of %s waits: %s", place, why)
    return SparkJobFailed(place, f"{why} None came within {SPARK_STARVED_MS_MAX // 1_000} s")
