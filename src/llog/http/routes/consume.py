"""`POST /consume`: records from many logs, as soon as there are enough of them.

A well-formed request is answered with 200, also when some partitions fail: each result states its own error. A large
answer is encoded in a thread. A poll that waits ends early when the broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from litestar import Request, Response, post

from llog.broker.consume.consume import ConsumeRequest, PartitionFetch, PartitionFetched
from llog.errors import ClientDisconnected, InvalidArgument
from llog.http.json.consume_answer import PlainAnswer, answer_of
from llog.http.json.decode import checked_log
from llog.http.json.schemas import ConsumeAnswer, ConsumeBody
from llog.http.routes.authorization import check_rights
from llog.http.routes.openapi import operation
from llog.http.routes.runtime import (
    AnswerShare,
    Runtime,
    decoded_small_body,
    held_bytes,
    record_of,
    response_of,
    runtime_of,
)
from llog.listener.http1 import ENCODER, Exchange, Reply
from llog.listener.tokens import Access
from llog.log.keys import Log
from llog.security.acl import ResourceType
from llog.telemetry.request_log import RequestRecord


@post(
    "/consume",
    status_code=200,
    opt={Access.KEY: Access.READ},
    summary="Fetch records from one or many logs",
    operation_class=operation(ConsumeBody, {200: (ConsumeAnswer, "Records, or an error, per partition.")}),
)
async def consume(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return response_of(await consume_records(runtime_of(request), record_of(request)))


async def consume_records(runtime: Runtime, record: RequestRecord) -> Reply:
    exchange = record.exchange
    wanted = plan_consume(await decoded_small_body(runtime, exchange, ConsumeBody))
    check_rights(runtime, record, ResourceType.TOPIC, {fetch.log.topic for fetch in wanted.partitions})
    share = AnswerShare(runtime.answers)
    record.on_finished, record.wait_ms = share.give, wanted.max_wait_ms
    plain = PlainAnswer()
    fetched = await fetch(runtime, replace(wanted, hold=share.hold, quick=plain), gone=lambda: _disconnected(exchange))
    if plain.text is not None:
        text: bytes | memoryview = plain.text
    else:
        share.hold(held_bytes(fetched))
        failed = [partition.error for partition in fetched if partition.error is not None]
        if failed:
            record.note_failures(type(failed[0]).__name__, str(failed[0]), len(failed), len(fetched))
        size = sum(run.columns.values.data.nbytes for partition in fetched for run in partition.runs)
        text = await runtime.off_loop(size, lambda: ENCODER.encode(answer_of(fetched)))
    share.shrink(len(text))
    return Reply(200, text)


def plan_consume(body: ConsumeBody) -> ConsumeRequest:
    partitions: dict[Log, PartitionFetch] = {}
    for number, wanted in enumerate(body.topic_partitions):
        path = f"topic_partitions[{number}]"
        log = checked_log(wanted.topic, wanted.partition, f"{path}.topic")
        if log in partitions:
            raise InvalidArgument(path, f"{log} is named twice")
        partitions[log] = PartitionFetch(log, wanted.fetch_offset, wanted.partition_max_bytes)
    return ConsumeRequest(tuple(partitions.values()), body.max_wait_ms, body.min_bytes, body.max_bytes)


async def fetch(
    runtime: Runtime, wanted: ConsumeRequest, *, gone: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> Sequence[PartitionFetched]:
    """Consume. When the broker stops, a poll that waits returns the records it has; when the client is gone, nothing
    more is read for it."""
    services = runtime.services
    if wanted.max_wait_ms == 0 or runtime.stopping.is_set():
        return await services.consume(replace(wanted, max_wait_ms=0))
    polling = asyncio.ensure_future(services.consume(wanted))
    stopping = asyncio.ensure_future(runtime.stopping.wait())
    leaving = asyncio.ensure_future(gone() if gone is not None else runtime.stopping.wait())
    try:
        await asyncio.wait({polling, stopping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if polling.done():
            return await polling
        if not stopping.done() and not runtime.stopping.is_set():
            raise ClientDisconnected("the client closed the connection while its poll waited")
    finally:
        for task in (polling, stopping, leaving):
            task.cancel()
    return await services.consume(replace(wanted, max_wait_ms=0))


async def _disconnected(exchange: Exchange) -> None:
    while await exchange.receive() is not None:
        pass
