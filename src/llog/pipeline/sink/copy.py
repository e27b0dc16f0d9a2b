"""Slices copied into a new blob by the driver: their bytes are as they were, their blob is younger.

Why it exists: a blob may hold slices of a log that the driver did not know when the blob's id was drawn (h04), or be
older than a log's horizon by the time its plan is performed (R8). Such slices are never committed from that blob.

What must stay true: the new blob's id is drawn after the logs' control records were read (PROTOCOL section 5, step 0);
the caller has done so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from llog.errors import InvalidArgument
from llog.formats.buffers import Buffer
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.limits import MIB
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.pipeline.sink.plan import PlanSlice, UploadedSlice

# Bytes of slices that a driver copies into one blob.
SINK_COPY_BYTES: Final = 16 * MIB


S = TypeVar("S", UploadedSlice, PlanSlice)


async def copied(context: LogContext, slices: Sequence[S]) -> list[S]:
    """The same slices, in order, in new blobs. Raises `ObjectNotFound` where an old one is gone."""
    moved: list[S] = []
    for group in in_blobs(slices):
        moved += await _copied_into_one(context, group)
    return moved


def in_blobs(slices: Sequence[S], bytes_max: int = SINK_COPY_BYTES) -> list[Sequence[S]]:
    """Neighbours together, as long as no log occurs twice among them and they are not too large."""
    groups: list[list[S]] = []
    logs: set[Log] = set()
    filled = 0
    for part in slices:
        if not groups or part.log in logs or filled + part.byte_length > bytes_max:
            groups.append([])
            logs, filled = set(), 0
        groups[-1].append(part)
        logs.add(part.log)
        filled += part.byte_length
    return list(groups)


async def _copied_into_one(context: LogContext, slices: Sequence[S]) -> list[S]:
    if context.wal is None:
        raise InvalidArgument("context", "has no store to put blobs into")
    bodies = [await _body(context, part) for part in slices]
    now_ms = context.now_ms()
    name = context.keys.blob_object(new_object_id(now_ms, context.random_bits))
    blob = build_shared_blob(
        [
            BlobGroup(part.topic, part.partition, part.msg_count, part.encoding, [body])
            for part, body in zip(slices, bodies, strict=True)
        ],
        created_at_ms=now_ms,
        writer_id=context.options.writer_id,
    )
    await context.wal.put(name, blob.buffers)
    uri = context.wal.uri(name)
    return [
        replace(part, data_key=uri, byte_offset=placed.byte_offset)
        for part, placed in zip(slices, blob.slices, strict=True)
    ]


async def _body(context: LogContext, part: UploadedSlice | PlanSlice) -> Buffer:
    store, name = await context.find_object(part.data_key)
    return await store.get_range(name, part.byte_offset, part.byte_length)
