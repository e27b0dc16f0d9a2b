"""The driver's and the executors' part of a write into logs, the same for a table and for a stream.

Before the tasks of a batch Spark creates a writer in a Python process of the driver and sends it to the executors; it
commits in another process of the driver. So the writer carries what the driver knew before the tasks started, and the
tasks' messages carry the uploads back. Stores are opened in the process that uses them, never before a fork. `abort`
removes nothing, because it may follow a commit that took effect; vacuum removes orphans.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from llog.errors import InvalidArgument, MetadataStoreError
from llog.pipeline.sink.commit import SinkResult, commit_batch, forget_query
from llog.pipeline.sink.plan import UploadedSlice
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import SinkOrder, Uploader, Uploads
from llog.settings import Settings
from llog.spark.principal import act_as_query
from llog.spark.runner.worker import sent_settings
from llog.spark.sink.options import SinkOptions
from llog.spark.source.metadata_retry import with_metadata_retry
from llog.spark.source.options import NO_TABLE
from llog.spark.source.worker import worker_process
from llog.wiring import Use, opened_log

if TYPE_CHECKING:
    import pyarrow as pa

# Set by Spark for every job of a streaming query. The checkpoint keeps it, so it is the same after a restart.
_CHECKPOINT_ID = "sql.streaming.queryId"
# Set by Spark for every job of a command, and of a command within another.
_EXECUTION_ID = "spark.sql.execution.id"
_ROOT_EXECUTION_ID = "spark.sql.execution.root.id"
_log = logging.getLogger("llog.spark")


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What one task returns to the driver."""

    uploads: bytes
    checkpoint: str = ""
    """The id of the streaming query of the task."""
    creates_table: bool = False
    """The write is a part of a command that creates a table, so the task wrote nothing."""


class WriteOrder(msgspec.Struct, frozen=True):
    """What the driver sends to executors."""

    sink: SinkOrder
    sent: dict[str, str | int]


_ENCODER = msgspec.msgpack.Encoder()
_ORDERS = msgspec.msgpack.Decoder(WriteOrder)
_UPLOADS = msgspec.msgpack.Decoder(Uploads)


# -- in the driver ----------------------------------------------------------------------------------------------------


def make_order(options: SinkOptions) -> bytes:
    """Look up the logs before the tasks start; returns the encoded order."""
    settings = options.settings_in_force()

    async def plan() -> WriteOrder:
        act_as_query(options.query)
        async with opened_log(settings, blobs=Use.PUT) as opened:
            context = opened.context
            sink = await with_metadata_retry(
                context,
                lambda: sink_order(
                    context, topic=options.topic, compression=options.compression, blob_bytes=options.blob_bytes
                ),
            )
        return WriteOrder(sink, sent_settings(settings))

    return _ENCODER.encode(asyncio.run(plan()))


def commit(
    options: SinkOptions, batch: SinkBatch, messages: Sequence[WriterCommitMessage | None], *, forget: bool = False
) -> SinkResult:
    """Commit the batch after all tasks. `forget`: no replay of this batch is possible."""
    slices = [part for message in messages for part in _uploads(message).slices]
    return asyncio.run(_commit(options.settings_in_force(), batch, slices, forget))


async def _commit(settings: Settings, batch: SinkBatch, slices: Sequence[UploadedSlice], forget: bool) -> SinkResult:
    act_as_query(batch.query)
    async with opened_log(settings, blobs=Use.PUT) as opened:
        context = opened.context
        # A repeated commit finishes the plan that the first one recorded.
        done = await with_metadata_retry(context, lambda: commit_batch(context, batch, slices))
        if forget:
            try:
                await with_metadata_retry(context, lambda: forget_query(context, batch.query))
            except MetadataStoreError as error:
                # The rows are written; an error here would make the caller write them again.
                _log.warning("records of the finished write %s could not be removed: %s", batch.query, error)
        return done


def _uploads(message: WriterCommitMessage | None) -> Uploads:
    if not isinstance(message, TaskMessage):
        raise InvalidArgument("messages", f"{message!r} is not a message of this sink's tasks")
    return _UPLOADS.decode(message.uploads)


def checkpoint_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    """The streaming query's id; empty if no task knows it."""
    return next((m.checkpoint for m in messages if isinstance(m, TaskMessage) and m.checkpoint), "")


def refuse_table(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise if the write is a part of a command that creates a table; its tasks wrote nothing."""
    if any(isinstance(message, TaskMessage) and message.creates_table for message in messages):
        raise InvalidArgument("saveAsTable, CREATE TABLE AS SELECT, writeTo().create()", NO_TABLE)


# -- in an executor ---------------------------------------------------------------------------------------------------


def creates_table() -> bool:
    """Whether the task's write is a part of `saveAsTable`, CREATE TABLE AS SELECT or `writeTo().create()`.

    Spark passes a data source neither the command nor the name of the table. But such a command creates the table and
    then runs the write as an execution within its own, which the properties of a task show. The only other write within
    an execution is that of a stream's `foreachBatch`, which has the id of the stream.
    """
    task = TaskContext.get()
    if task is None or task.getLocalProperty(_CHECKPOINT_ID):
        return False
    execution, root = task.getLocalProperty(_EXECUTION_ID), task.getLocalProperty(_ROOT_EXECUTION_ID)
    return bool(execution and root and execution != root)


def upload_task(order: bytes, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """Run one task: encode its rows and upload blobs while Spark passes the next rows."""
    write_order, process = _ORDERS.decode(order), worker_process()
    task = TaskContext.get()
    number = 0 if task is None else task.partitionId()
    uploader = Uploader(process.stores(write_order.sent).tools, write_order.sink, task_number=number)
    for batch in batches:
        process.loop.run(uploader.add(batch))
    uploads = process.loop.run(uploader.finish())
    checkpoint = None if task is None else task.getLocalProperty(_CHECKPOINT_ID)
    return TaskMessage(_ENCODER.encode(uploads), checkpoint or "")
