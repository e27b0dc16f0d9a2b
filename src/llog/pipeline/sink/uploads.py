"""What tasks uploaded, made fit for a plan: every slice in a blob that its log, as it lives now, may be given.

Why it exists: a plan is finished by whoever finds it, so nothing that could be refused later for a reason known now
gets into one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from llog.errors import ObjectNotFound, RecordTooLarge, SinkUploadLost
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import SINK_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import initialize, load_topic
from llog.pipeline.sink.copy import copied
from llog.pipeline.sink.plan import UploadedSlice
from llog.pipeline.sink.query import Batch, persist


async def committable(context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice]) -> list[UploadedSlice]:
    """All of them in blobs whose ids were drawn when the log, in its present life, was known (section 5, step 0), and
    which are not too old for it (R8). A batch that took so long that vacuum was there before it fails here, where
    nothing of it is visible. So does one with a record too large for its topic, where no task knew the topic."""
    controls = await _controls(context, batch, list(dict.fromkeys(upload.log for upload in uploads)))
    await _check_sizes(context, batch, uploads)
    living = [replace(upload, incarnation=controls[upload.log].incarnation) for upload in uploads]
    fits = [
        upload == now and upload.created_at_ms >= controls[upload.log].commit_horizon_ms
        for upload, now in zip(uploads, living, strict=True)
    ]
    try:
        moved = iter(await copied(context, [now for now, fit in zip(living, fits, strict=True) if not fit]))
    except ObjectNotFound as error:
        reason = (
            f"{error}: what a task uploaded was removed before the batch was complete, so nothing was written. Its "
            "tasks must take less time than vacuum's grace (LLOG_VACUUM_GRACE_MS)"
        )
        raise SinkUploadLost(batch.query, batch.number, reason) from error
    return [now if fit else next(moved) for now, fit in zip(living, fits, strict=True)]


async def _check_sizes(context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice]) -> None:
    untold = [upload for upload in uploads if upload.largest_record_bytes]
    limits: dict[str, int] = {}
    for upload in untold:
        if upload.topic not in limits:
            limits[upload.topic] = await _message_bytes_max(context, batch, upload.topic)
        if upload.largest_record_bytes > limits[upload.topic]:
            raise RecordTooLarge(*upload.log, upload.largest_record_bytes, limits[upload.topic])


async def _message_bytes_max(context: LogContext, batch: Batch, topic: str) -> int:
    async def look(_: bool) -> tuple[TopicRecord | None]:
        found = await load_topic(context, topic, strict=True)
        return (None if found is None else found[0],)

    [record] = await persist(context, batch, look)
    return TopicConfig.of({} if record is None else record.config).max_message_bytes


async def _controls(context: LogContext, batch: Batch, logs: Sequence[Log]) -> dict[Log, ControlRecord]:
    """By a strict read: what a plan says of an earlier life is never appended. Logs that are not there are made."""
    keys = [context.keys.control(log) for log in logs]
    slots = asyncio.Semaphore(SINK_LOGS_IN_FLIGHT_MAX)

    async def make(log: Log) -> None:
        async with slots:
            await initialize(context, log)

    async def look(_: bool) -> dict[Log, ControlRecord] | None:
        found: dict[Log, ControlRecord] = {}
        for log, record in zip(logs, await get_all(context.metadata, keys, strict=True), strict=True):
            control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
            if control is not None and control.log_state != "DELETED":
                found[log] = control
        if len(found) == len(logs):
            return found
        await asyncio.gather(*(make(log) for log in logs if log not in found))
        return None

    return await persist(context, batch, look)
