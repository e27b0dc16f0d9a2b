"""Streams into logs, exactly once: `df.writeStream.format("llog").option("topic", "orders")…start()`.

A batch is known by the query's id and Spark's number for it. The id is the option `queryId`, else the one that Spark
keeps in the checkpoint; so a restart from that checkpoint replays the last batch, and adds nothing that is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from llog.errors import InvalidArgument
from llog.pipeline.sink.query import SinkBatch
from llog.spark.sink.driver import checkpoint_of, committed, ordered, uploaded
from llog.spark.sink.options import check_columns, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa


class LlogStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise InvalidArgument("outputMode", "complete: a log is only ever appended to; use append")
        self._options = parse_sink_options(options, streaming=True)
        check_columns(schema, self._options)
        self._order: bytes | None = None

    def __getstate__(self) -> dict[str, object]:
        # Spark makes a writer before the tasks of a batch and sends it to them, and makes another to commit: only the
        # first needs to know the logs, and it must know them before any task begins.
        if self._order is None:
            self._order = ordered(self._options)
        return dict(self.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self._order is not None
        return uploaded(self._order, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        checkpoint = checkpoint_of(messages)
        query = self._options.query or checkpoint
        if not query and not messages:
            return  # no task, so no row
        if not query:
            raise InvalidArgument("queryId", "Spark did not tell which query this is: give it as an option")
        committed(self._options, SinkBatch(query, batchId, checkpoint), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what was uploaded is an orphan, or belongs to a commit that took effect."""


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> LlogStreamWriter:
    return LlogStreamWriter(options, schema, overwrite)
