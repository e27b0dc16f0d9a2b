"""The sink: rows of a batch into logs, exactly once (PROTOCOL section 11).

    order = await sink_order(context, topic="orders")            # driver: know the logs
    uploads = [await upload(tools, order, batches, n) …]         # tasks: bytes up, nothing visible
    await commit_batch(context, Batch("my-query", 17), slices)   # driver: one plan, finished

Why it exists: one batch is many appends over many logs, its tasks may run twice, and a replay may split its rows
differently. So what a batch writes is decided once, by the first commit plan that is recorded under its query and
number; everything else is an orphan that vacuum removes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llog.log.context import LogContext
from llog.pipeline.runtime.work import TaskTools, tools_of
from llog.pipeline.sink.commit import Committed, commit_batch, forget_query
from llog.pipeline.sink.query import Batch
from llog.pipeline.sink.targets import sink_order
from llog.pipeline.sink.task import SinkOrder, Uploader, Uploads

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Batch",
    "Committed",
    "SinkOrder",
    "Uploads",
    "commit_batch",
    "forget_query",
    "sink_order",
    "upload",
    "write",
]


async def upload(
    tools: TaskTools, order: SinkOrder, batches: Iterable[pa.RecordBatch], task_number: int = 0
) -> Uploads:
    """One task, whose rows are at hand."""
    uploader = Uploader(tools, order, task_number=task_number)
    for batch in batches:
        await uploader.add(batch)
    return await uploader.finish()


async def write(context: LogContext, batch: Batch, table: pa.Table, *, topic: str | None = None) -> Committed:
    """A whole batch from this process."""
    order = await sink_order(context, topic=topic)
    uploads = await upload(tools_of(context), order, table.to_batches())
    return await commit_batch(context, batch, uploads.slices)
