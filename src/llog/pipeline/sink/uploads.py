"""Uploaded slices made committable: each in a blob that its log, in its present incarnation, accepts.

A blob may hold slices of a log that the driver did not know when the blob's id was drawn (h04), or be older than a
log's commit horizon (R8). Such slices are never committed from that blob: the driver copies their bytes into a new
blob. Everything that can be checked before the plan exists is checked here, because a plan must be finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from llog.concurrency import gather_bounded
from llog.errors import InvalidArgument, ObjectNotFound, SinkUploadLost
from llog.formats.buffers import Buffer
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import MIB, SINK_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext, get_all
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import FirstWrite, initialize, load_topic
from llog.log.topics.record_limits import AT_THE_CLOCK, refusal_of_records
from llog.pipeline.sink.plan import PlanSlice, UploadedSlice
from llog.pipeline.sink.query import SinkBatch, persist

# Bytes of slices that a driver copies into one blob.
SINK_COPY_BYTES: Final = 16 * MIB

S = TypeVar("S", UploadedSlice, PlanSlice)


async def make_committable(
    context: LogContext, batch: SinkBatch, uploads: Sequence[UploadedSlice]
) -> list[UploadedSlice]:
    """The uploads, each in a blob drawn when its log was known in its present incarnation (protocol section 5, step 0)
    and not older than the log's horizon (R8).

    Raises `SinkUploadLost` if vacuum removed a blob, `PartitionOutOfRange` for rows that name a partition which their
    topic lacks, `TimestampOutOfWindow` for a timestamp outside the window of its topic, and `RecordTooLarge` for a
    record over the limit of a topic that no task knew. Nothing of the batch is visible then.
    """
    controls = await _controls(context, batch, list(dict.fromkeys(upload.log for upload in uploads)))
    await _check_limits(context, batch, uploads)
    current = [replace(upload, incarnation=controls[upload.log].incarnation) for upload in uploads]
    fits = [
        upload == now and upload.created_at_ms >= controls[upload.log].commit_horizon_ms
        for upload, now in zip(uploads, current, strict=True)
    ]
    try:
        copies = iter(await copy_slices(context, [now for now, fit in zip(current, fits, strict=True) if not fit]))
    except ObjectNotFound as error:
        reason = (
            f"{error}: vacuum removed an upload before the batch was complete, so nothing was written. The tasks of a "
            "batch must take less time than vacuum's grace; raise LLOG_VACUUM_GRACE_MS"
        )
        raise SinkUploadLost(batch.query, batch.number, reason) from error
    return [now if fit else next(copies) for now, fit in zip(current, fits, strict=True)]


async def _check_limits(context: LogContext, batch: SinkBatch, uploads: Sequence[UploadedSlice]) -> None:
    """Compare what no task compared: sizes in topics that the tasks did not know, timestamps in all topics."""
    open_uploads = [upload for upload in uploads if upload.largest_record_bytes or upload.span != AT_THE_CLOCK]
    topics = list(dict.fromkeys(upload.topic for upload in open_uploads))
    loaded = await gather_bounded(topics, lambda topic: _config(context, batch, topic), limit=SINK_LOGS_IN_FLIGHT_MAX)
    configs = dict(zip(topics, loaded, strict=True))
    for upload in open_uploads:
        refusal = refusal_of_records(
            upload.log, configs[upload.topic], upload.largest_record_bytes, upload.span, upload.clock_ms
        )
        if refusal is not None:
            raise refusal


async def _config(context: LogContext, batch: SinkBatch, topic: str) -> TopicConfig:
    async def load(_: bool) -> tuple[TopicRecord | None]:
        loaded = await load_topic(context, topic, strict=True)
        return (None if loaded is None else loaded[0],)

    [record] = await persist(context, batch, load)
    return TopicConfig.of({} if record is None else record.config)


async def _controls(context: LogContext, batch: SinkBatch, logs: Sequence[Log]) -> dict[Log, ControlRecord]:
    """The control records by strict reads, so that no plan names an earlier incarnation. Creates missing logs."""
    keys = [context.keys.control(log) for log in logs]

    async def read(_: bool) -> dict[Log, ControlRecord] | None:
        controls: dict[Log, ControlRecord] = {}
        for log, record in zip(logs, await get_all(context.metadata, keys, strict=True), strict=True):
            control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
            if control is not None and control.log_state != "DELETED":
                controls[log] = control
        if len(controls) == len(logs):
            return controls
        missing = [log for log in logs if log not in controls]
        await gather_bounded(
            missing, lambda log: initialize(context, log, write=FirstWrite()), limit=SINK_LOGS_IN_FLIGHT_MAX
        )
        return None

    return await persist(context, batch, read)


# -- copies ------------------------------------------------------------------------------------------------------------


async def copy_slices(context: LogContext, slices: Sequence[S]) -> list[S]:
    """The same slices, in order, in new blobs. Raises `ObjectNotFound` if an old blob is gone.

    The caller has read the control records of the logs before: the ids of the new blobs are drawn here (protocol
    section 5, step 0).
    """
    copies: list[S] = []
    for group in group_by_blob(slices):
        copies += await _copy_into_one(context, group)
    return copies


def group_by_blob(slices: Sequence[S], bytes_max: int = SINK_COPY_BYTES) -> list[Sequence[S]]:
    """Runs of slices that share a blob: no log occurs twice, and the bytes stay within `bytes_max`."""
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


async def _copy_into_one(context: LogContext, slices: Sequence[S]) -> list[S]:
    if context.wal is None:
        raise InvalidArgument("context", "has no object store to put blobs into")
    bodies = [await _read(context, part) for part in slices]
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


async def _read(context: LogContext, part: UploadedSlice | PlanSlice) -> Buffer:
    store, name = await context.find_object(part.data_key)
    return await store.get_range(name, part.byte_offset, part.byte_length)
