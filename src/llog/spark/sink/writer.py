"""The writers of the data source.

    df.write.format("llog").mode("append").option("topic", "orders").save()
    df.writeStream.format("llog").option("topic", "orders").option("checkpointLocation", …).start()

With `queryId` (and `batchId`, 0 by default) a repeated batch write adds nothing, however its rows are split then: for
retried jobs and for `foreachBatch`. A queryId belongs to one topic. Without it each write is its own, and one that
fails while it commits may leave some of its rows visible; the error says so.

A stream's batch has the query's id and Spark's batch number. The id is the option `queryId`, else the one in the
checkpoint, so a restart from that checkpoint replays the last batch and adds nothing twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from llog.errors import InvalidArgument, LogError, StoreError
from llog.pipeline.sink.query import SinkBatch
from llog.spark.sink.driver import (
    TaskMessage,
    checkpoint_of,
    commit,
    creates_table,
    make_order,
    refuse_table,
    upload_task,
)
from llog.spark.sink.options import check_columns, parse_sink_options
from llog.spark.source.options import HOW_TO_WRITE
from llog.spark.user_errors import in_one_sentence

if TYPE_CHECKING:
    import pyarrow as pa


PARTLY_WRITTEN: Final = (
    "rows of this write may be visible, and a repeated write would add them again: give a write the options queryId and"
    " batchId, then a repeat with the same values adds only what is missing"
)
TO_BE_REPEATED: Final = (
    "rows of this write may be visible; repeat it with the same queryId and batchId, which adds only what is missing"
)


class LlogWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise InvalidArgument(
                "mode", f"overwrite is not possible: records can only be appended to a log; {HOW_TO_WRITE}"
            )
        self._options = parse_sink_options(options, streaming=False)
        check_columns(schema, self._options)
        self._query = self._options.query or f"write-{uuid.uuid4().hex}"
        self._order = make_order(self._options)

    @in_one_sentence()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if creates_table():
            return TaskMessage(b"", creates_table=True)
        return upload_task(self._order, iterator)

    @in_one_sentence()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        refuse_table(messages)
        batch = SinkBatch(self._query, self._options.batch, self._owner())
        try:
            commit(self._options, batch, messages, forget=self._options.query is None)
        except (StoreError, LogError) as error:
            error.args = (f"{error}; {PARTLY_WRITTEN if self._options.query is None else TO_BE_REPEATED}",)
            raise

    def _owner(self) -> str:
        """A write to another topic is not a repeat of this one, even with the same number."""
        return f"writes to topic {self._options.topic}" if self._options.topic else "writes to the topics of their rows"

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to do: the uploads are orphans, or belong to a commit that took effect."""


class LlogStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        if overwrite:
            raise InvalidArgument(
                "outputMode", "complete is not possible: records can only be appended to a log; use append"
            )
        self._options = parse_sink_options(options, streaming=True)
        check_columns(schema, self._options)
        self._order: bytes | None = None

    @in_one_sentence()
    def __getstate__(self) -> dict[str, object]:
        # Spark pickles one writer for the tasks of a batch and creates another to commit. Only the first needs the
        # order, before any task starts.
        if self._order is None:
            self._order = make_order(self._options)
        return dict(self.__dict__)

    @in_one_sentence()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self._order is not None
        return upload_task(self._order, iterator)

    @in_one_sentence()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        checkpoint = checkpoint_of(messages)
        query = self._options.query or checkpoint
        if not query and not messages:
            return  # no tasks, so no rows
        if not query:
            raise InvalidArgument("queryId", "Spark did not pass the id of this query; set the option queryId")
        commit(self._options, SinkBatch(query, batchId, checkpoint), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the uploads are orphans, or belong to a commit that took effect."""
