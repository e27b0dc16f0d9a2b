"""Tables into logs: `df.write.format("llog").mode("append").option("topic", "orders").save()`.

With `queryId` (and `batchId`, 0 by default) a write that is repeated adds nothing, however its rows are split then: for
jobs that are retried, and for `foreachBatch`. A queryId belongs to one topic. Without it each write is its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from llog.errors import InvalidArgument
from llog.pipeline.sink.query import SinkBatch
from llog.spark.sink.driver import committed, ordered, uploaded
from llog.spark.sink.options import check_columns, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa


class LlogWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise InvalidArgument("mode", "overwrite: a log is only ever appended to; use append")
        self._options = parse_sink_options(options, streaming=False)
        check_columns(schema, self._options)
        self._query = self._options.query or f"write-{uuid.uuid4().hex}"
        self._order = ordered(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return uploaded(self._order, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        batch = SinkBatch(self._query, self._options.batch, self._owner())
        committed(self._options, batch, messages, forget=self._options.query is None)

    def _owner(self) -> str:
        """Another topic's write is no repeat of this one, whatever its number."""
        return f"writes to topic {self._options.topic}" if self._options.topic else "writes to the topics of their rows"

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing: what was uploaded is an orphan, or belongs to a commit that took effect."""


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> LlogWriter:
    return LlogWriter(options, schema, overwrite)
