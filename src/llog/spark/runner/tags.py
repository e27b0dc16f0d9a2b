"""Which Spark jobs belong together, so that they can be ended together.

Why it exists: both kinds of session know tags, but not the same way. A classic session's own tags do not reach a job
that the JVM runs in a thread of its own (which is how Arrow batches are served); the context's do. A Connect session
has no context.

What must stay true: a tag belongs to the thread that set it, and is taken off again: threads are used for many jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llog.spark.sessions.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """What this thread starts meanwhile carries the tag."""
    if is_connect(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    # A pool per thread: with fair scheduling, a small job does not wait for all tasks of a large one.
    context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)


def interrupt(spark: SparkSession, tag: str) -> None:
    """End what carries the tag and runs now. Its tasks' Python processes are ended with it."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
