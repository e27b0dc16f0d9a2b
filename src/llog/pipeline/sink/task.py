"""A task of the sink: encodes rows, uploads blobs, returns slices. It has no access to metadata and commits nothing.

    uploader = Uploader(tools, order, task_number=3)
    for batch in arrow_batches:
        await uploader.add(batch)
    uploads = await uploader.finish()          # the driver puts the slices into a plan, or ignores them

A blob's id is drawn when its bytes are put, after the driver read the control records of the logs in the order
(protocol section 5, step 0). Slices of a log that the order does not name are marked as unknown, and the driver never
commits them from this blob. A row over its topic's `max.message.bytes` fails the task, so nothing of its batch is
planned.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from llog.errors import InvalidArgument
from llog.formats.records.record_batch import Codec
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.limits import SINK_BLOB_BYTES
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.pipeline.runtime.tasks import TaskTools
from llog.pipeline.sink.plan import UNKNOWN_INCARNATION, UploadedSlice
from llog.stores.objects.port import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

    from llog.pipeline.sink.rows import SinkGroup

ENCODING: Final = "kafka-v2"


class SinkTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the driver knew it before the tasks began."""

    incarnation: int
    """`UNKNOWN_INCARNATION`: the driver did not look up the topic's logs."""
    partition_count: int
    missing: frozenset[int] = frozenset()
    """Partitions without a readable control record at that time."""
    message_bytes_max: int | None = None
    """The topic's `max.message.bytes`; None: unknown to the task, so the driver checks it."""
    append_time: bool = False
    """The topic's `message.timestamp.type` is LogAppendTime: rows get the task's clock instead of their timestamps."""


class SinkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a batch needs to know."""

    store_url: str
    root_prefix: str
    writer_id: str
    topic: str | None = None
    """The topic of all rows; None: the column `topic` names it."""
    targets: dict[str, SinkTarget] = {}
    compression: str = "none"
    blob_bytes: int = SINK_BLOB_BYTES

    def incarnation_of(self, log: Log) -> int:
        target = self.targets.get(log.topic)
        if target is None or log.partition >= target.partition_count or log.partition in target.missing:
            return UNKNOWN_INCARNATION
        return target.incarnation


class Uploads(msgspec.Struct, frozen=True, kw_only=True):
    """What one task uploaded."""

    slices: tuple[UploadedSlice, ...] = ()
    records: int = 0
    blobs: int = 0


def codec_of(compression: str) -> Codec:
    try:
        return Codec[compression.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidArgument("compression", f"{compression!r} must be one of {names}") from None


class Uploader:
    """Gathers the rows of a blob, encodes them, and uploads the blob while it gathers the next. Holds the rows of one
    blob and the bytes of another."""

    def __init__(
        self,
        tools: TaskTools,
        order: SinkOrder,
        *,
        task_number: int = 0,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        from llog.pipeline.sink.rows import RoundRobin, Router

        self._tools, self._order, self._random_bits = tools, order, random_bits
        counts = {topic: target.partition_count for topic, target in order.targets.items()}
        limits = {topic: target.message_bytes_max for topic, target in order.targets.items()}
        self._message_bytes_max = {topic: limit for topic, limit in limits.items() if limit is not None}
        self._append_time = {topic for topic, target in order.targets.items() if target.append_time}
        # Tasks start at different partitions, so that many small tasks do not all write to the first.
        self._router = Router(order.topic, counts, RoundRobin(task_number))
        self._codec = codec_of(order.compression)
        self._store: ObjectStore | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._slices: list[UploadedSlice] = []
        self._blobs = 0
        self._putting: asyncio.Task[list[UploadedSlice]] | None = None

    async def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= self._order.blob_bytes:
            await self._upload()

    async def finish(self) -> Uploads:
        if self._gathered:
            await self._upload()
        await self._put()
        records = sum(part.msg_count for part in self._slices)
        return Uploads(slices=tuple(self._slices), records=records, blobs=self._blobs)

    async def _upload(self) -> None:
        from llog.pipeline.sink.rows import encode_groups, join_batches

        rows = join_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        groups = encode_groups(
            rows,
            self._router,
            codec=self._codec,
            timestamp_ms=self._tools.now_ms(),
            message_bytes_max=self._message_bytes_max,
            append_time=self._append_time,
        )
        if self._store is None:
            self._store = await self._tools.open_store(self._order.store_url)
        await self._put()
        put = put_blob(self._tools, self._order, self._store, groups, self._random_bits)
        self._putting = asyncio.create_task(put)

    async def _put(self) -> None:
        """Wait for the upload under way, if there is one."""
        putting, self._putting = self._putting, None
        if putting is not None:
            self._slices += await putting
            self._blobs += 1


async def upload(
    tools: TaskTools, order: SinkOrder, batches: Iterable[pa.RecordBatch], task_number: int = 0
) -> Uploads:
    """Run a whole task on rows in memory."""
    uploader = Uploader(tools, order, task_number=task_number)
    for batch in batches:
        await uploader.add(batch)
    return await uploader.finish()


async def put_blob(
    tools: TaskTools,
    order: SinkOrder,
    store: ObjectStore,
    groups: Iterable[SinkGroup],
    random_bits: Callable[[int], int],
    *,
    encoding: str = ENCODING,
) -> list[UploadedSlice]:
    """Upload the groups as one shared blob; returns the slice of each group."""
    groups = list(groups)
    now_ms = tools.now_ms()
    name = Keys(order.root_prefix).blob_object(new_object_id(now_ms, random_bits))
    blob = build_shared_blob(
        [BlobGroup(g.log.topic, g.log.partition, g.msg_count, encoding, g.body) for g in groups],
        created_at_ms=now_ms,
        writer_id=order.writer_id,
    )
    await store.put(name, blob.buffers)
    uri = store.uri(name)
    return [
        UploadedSlice(
            topic=group.log.topic,
            partition=group.log.partition,
            incarnation=order.incarnation_of(group.log),
            data_key=uri,
            encoding=encoding,
            byte_offset=placed.byte_offset,
            byte_length=placed.byte_length,
            msg_count=group.msg_count,
            max_timestamp_ms=group.max_timestamp_ms,
            largest_record_bytes=group.largest_record_bytes,
            span=group.span,
            clock_ms=group.clock_ms,
        )
        for group, placed in zip(groups, blob.slices, strict=True)
    ]
