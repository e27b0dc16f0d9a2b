"""Rows of a job while it still runs.

Why it exists: `collect` answers when the last task has ended. A driver wants each outcome at once: it publishes one
window while the next is being written. A Connect session streams results by itself; a classic one streams Arrow batches
as partitions end, but its public functions gather them first. So the same socket is read here, batch by batch. That
needs a session of its own, in which every row is a batch: a batch is sent whole, but the end of it may wait in a buffer
until the next (`task_source.options_of` sees to that one).

What must stay true: errors of the JVM come out as pyspark's own exceptions, also when rows came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llog.spark.sessions.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def own_session(spark: SparkSession) -> SparkSession:
    """The session in which rows come as they are known; what is set or registered in it, the caller's never sees."""
    if is_connect(spark):
        return spark
    own = spark.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    return own


def rows_as_they_come(frame: DataFrame) -> Iterator[tuple[int, bytes]]:
    """(number, outcome) of each row, in the order in which they are known. The session is `own_session`'s."""
    if is_connect(frame.sparkSession):
        for row in frame.toLocalIterator():
            yield row["number"], bytes(row["outcome"])
        return
    for batch in _arrow_batches(frame):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _arrow_batches(frame: Any) -> Iterator[Any]:
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.util import _load_from_socket

    port, secret, server = frame._jdf.collectAsArrowToPython()
    given_up = False
    try:
        with _load_from_socket((port, secret), ArrowStreamSerializer()) as batches:
            yield from batches
    except GeneratorExit:
        given_up = True  # nobody wants the rest, nor to hear that it could not be sent
        raise
    finally:
        if not given_up:
            with unwrap_spark_exception():
                server.getResult()
