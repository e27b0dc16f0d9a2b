"""One log over HTTP: fence and unfence it, find offsets, delete records from its beginning."""

from __future__ import annotations

from typing import Annotated

from litestar import Request, Response, get, post
from litestar.params import QueryParameter
from msgspec import UNSET

from llog.http.json.schemas import (
    DeleteRecordsAnswer,
    DeleteRecordsBody,
    FenceAnswer,
    FenceBody,
    PartitionOffsets,
    UnfenceBody,
)
from llog.http.routes.openapi import QUERY, PartitionInPath, TopicInPath, changing, operation
from llog.http.routes.runtime import decoded_body, json_response, runtime_of
from llog.listener.tokens import Access
from llog.log.cleanup.retention import delete_records as delete_log_records
from llog.log.fence import fence as fence_log
from llog.log.fence import unfence as unfence_log
from llog.log.keys import OFFSET_MAX, Log, check_partition, check_topic
from llog.log.read.timestamps import offset_for_timestamp
from llog.log.read.view import view

PARTITION = "/topics/{topic:str}/partitions/{partition:int}"


def log_of(topic: str, partition: int) -> Log:
    return Log(check_topic(topic), check_partition(partition))


@post(
    f"{PARTITION}/fence",
    status_code=200,
    opt=changing("log.fence"),
    summary="Close a log to appends",
    operation_class=operation(FenceBody, {200: (FenceAnswer, "The log is closed to appends.")}, body_required=False),
)
async def fence(request: Request, topic: TopicInPath, partition: PartitionInPath) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, FenceBody, default=FenceBody())
    log, services = log_of(topic, partition), runtime_of(request).services
    epoch = await fence_log(services.context, log, expected_epoch=body.expected_epoch, reason=body.reason)
    return await _fenced(request, log, epoch)


@post(
    f"{PARTITION}/unfence",
    status_code=200,
    opt=changing("log.unfence"),
    summary="Open a log to appends again",
    operation_class=operation(UnfenceBody, {200: (FenceAnswer, "The log is open to appends.")}, body_required=False),
)
async def unfence(request: Request, topic: TopicInPath, partition: PartitionInPath) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, UnfenceBody, default=UnfenceBody())
    log, services = log_of(topic, partition), runtime_of(request).services
    epoch = await unfence_log(services.context, log, expected_epoch=body.expected_epoch)
    return await _fenced(request, log, epoch)


async def _fenced(request: Request, log: Log, epoch: int) -> Response[bytes]:  # type: ignore[type-arg]
    """The state as it is now; with an expected epoch that has passed, nothing changed."""
    services = runtime_of(request).services
    services.log_changed(log)
    control = (await view(services.context, log, strict=True)).control
    return json_response(FenceAnswer(log.topic, log.partition, control.log_state, max(epoch, control.epoch)))


@get(
    f"{PARTITION}/offsets",
    opt={Access.KEY: Access.READ, QUERY: frozenset({"timestamp_ms"})},
    summary="The first and next offset of a log, and the first record since a timestamp",
    operation_class=operation(None, {200: (PartitionOffsets, "The offsets.")}),
)
async def offsets(
    request: Request,  # type: ignore[type-arg]
    topic: TopicInPath,
    partition: PartitionInPath,
    timestamp_ms: Annotated[int | None, QueryParameter(gt=-1, le=OFFSET_MAX)] = None,
) -> Response[bytes]:
    log, context = log_of(topic, partition), runtime_of(request).services.context
    seen = await view(context, log, strict=True)
    if timestamp_ms is None:
        return json_response(PartitionOffsets(topic, partition, seen.log_start_offset, seen.next_offset))
    found = await offset_for_timestamp(context, log, timestamp_ms)
    return json_response(
        PartitionOffsets(
            topic,
            partition,
            seen.log_start_offset,
            seen.next_offset,
            timestamp_ms,
            None if found is None else found.offset,
            UNSET if found is None else found.timestamp_ms,
        )
    )


@post(
    f"{PARTITION}/delete-records",
    status_code=200,
    opt=changing("records.delete"),
    summary="Delete records from the beginning of a log",
    operation_class=operation(
        DeleteRecordsBody,
        {
            200: (DeleteRecordsAnswer, "The log's first offset now."),
            416: (None, "The log ends before that offset."),
        },
    ),
)
async def delete_records(request: Request, topic: TopicInPath, partition: PartitionInPath) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, DeleteRecordsBody)
    log, services = log_of(topic, partition), runtime_of(request).services
    done = await delete_log_records(services.context, log, body.before_offset)
    services.log_changed(log)
    return json_response(
        DeleteRecordsAnswer(topic, partition, done.log_start_offset, done.entries_removed, done.segments_removed)
    )
