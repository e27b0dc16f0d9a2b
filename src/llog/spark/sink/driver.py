"""The driver's and the executors' half of a write into logs, the same for a table and for a stream.

Spark makes a writer in a Python process of the driver before the tasks of each batch, sends it to the executors, and
commits in another process of the driver. So what the driver knew before the tasks began travels inside the writer, and
comes back with the tasks' messages.

What must stay true: whoever opens stores does so in its own process; nothing is opened before a fork; `abort` removes
nothing, because it may follow a commit that took effect, and what was uploaded for nothing is vacuum's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from llog.errors import InvalidArgument, MetadataStoreError
from llog.limits import SPARK_WORKER_TOOLS_MAX
from llog.opening import Use, opened_log
from llog.pipeline.runtime.tasks import TaskTools
from llog.pipeline.scan.pump import LoopThread
from llog.pipeline.sink.commit import SinkResult, commit_batch, forget_query
from llog.pipeline.sink.plan import UploadedSlice
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import SinkOrder, Uploader, Uploads
from llog.settings import Settings
from llog.spark.runner.worker import sent_settings, settings_in_worker, tools_on
from llog.spark.sink.options import SinkOptions
from llog.spark.source.asking import answered
from llog.wiring import ObjectStores

if TYPE_CHECKING:
    import pyarrow as pa

# Set by Spark for every job of a streaming query; it is kept in the checkpoint, and so the same after a restart.
_CHECKPOINT_ID = "sql.streaming.queryId"
_log = logging.getLogger("llog.spark")


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What one task tells the driver."""

    uploads: bytes
    checkpoint: str = ""
    """The id of the streaming query whose task it was."""


class Order(msgspec.Struct, frozen=True):
    """What travels to the executors."""

    sink: SinkOrder
    sent: dict[str, str | int]


_ENCODER = msgspec.msgpack.Encoder()
_ORDERS = msgspec.msgpack.Decoder(Order)
_UPLOADS = msgspec.msgpack.Decoder(Uploads)


# -- in the driver ----------------------------------------------------------------------------------------------------


def ordered(options: SinkOptions) -> bytes:
    """Before the tasks begin: know the logs, and say so."""
    settings = options.settings_in_force()

    async def plan() -> Order:
        async with opened_log(settings, blobs=Use.PUT) as opened:
            context = opened.context
            sink = await answered(
                context,
                lambda: sink_order(
                    context, topic=options.topic, compression=options.compression, blob_bytes=options.blob_bytes
                ),
            )
        return Order(sink, sent_settings(settings))

    return _ENCODER.encode(asyncio.run(plan()))


def committed(
    options: SinkOptions, batch: SinkBatch, messages: Sequence[WriterCommitMessage | None], *, forget: bool = False
) -> SinkResult:
    """After all tasks: write the batch. `forget`: nobody will ever ask for it again."""
    slices = [part for message in messages for part in _uploads(message).slices]
    return asyncio.run(_committed(options.settings_in_force(), batch, slices, forget))


async def _committed(settings: Settings, batch: SinkBatch, slices: Sequence[UploadedSlice], forget: bool) -> SinkResult:
    async with opened_log(settings, blobs=Use.PUT) as opened:
        context = opened.context
        # Whoever finds the batch's plan finishes it, also when that is its own.
        done = await answered(context, lambda: commit_batch(context, batch, slices))
        if forget:
            try:
                await answered(context, lambda: forget_query(context, batch.query))
            except MetadataStoreError as error:
                # The rows are there: who is told that the write failed writes them again.
                _log.warning("what is kept of the write %s stays behind: %s", batch.query, error)
        return done


def _uploads(message: WriterCommitMessage | None) -> Uploads:
    if not isinstance(message, TaskMessage):
        raise InvalidArgument("messages", f"a task told nothing that this sink understands: {message!r}")
    return _UPLOADS.decode(message.uploads)


def checkpoint_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    """The streaming query's id; empty where no task told it."""
    return next((m.checkpoint for m in messages if isinstance(m, TaskMessage) and m.checkpoint), "")


# -- in an executor ---------------------------------------------------------------------------------------------------


def uploaded(order: bytes, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """One task: its rows into blobs. Uploading goes on while Spark hands over the next rows."""
    global _process
    if _process is None or _process.number != os.getpid():
        _process = _Process()
    asked = _ORDERS.decode(order)
    task = TaskContext.get()
    number = 0 if task is None else task.partitionId()
    process = _process
    uploader = Uploader(process.tools(asked), asked.sink, task_number=number)
    for batch in batches:
        process.loop.run(uploader.add(batch))
    uploads = process.loop.run(uploader.finish())
    checkpoint = None if task is None else task.getLocalProperty(_CHECKPOINT_ID)
    return TaskMessage(_ENCODER.encode(uploads), checkpoint or "")


class _Process:
    """What a Python worker keeps from task to task."""

    def __init__(self) -> None:
        self.number = os.getpid()
        self.loop = LoopThread("llog-sink")
        self._opened: OrderedDict[bytes, tuple[ObjectStores, TaskTools]] = OrderedDict()

    def tools(self, order: Order) -> TaskTools:
        key = msgspec.msgpack.encode(order.sent, order="sorted")
        if key not in self._opened:
            while len(self._opened) >= SPARK_WORKER_TOOLS_MAX:
                self.loop.run(self._opened.popitem(last=False)[1][0].close())
            objects = ObjectStores(settings_in_worker(order.sent, os.environ))
            self._opened[key] = objects, tools_on(objects)
        self._opened.move_to_end(key)
        return self._opened[key][1]


_process: _Process | None = None
