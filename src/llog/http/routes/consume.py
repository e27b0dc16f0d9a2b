"""`POST /consume`: records from many logs, as soon as there are enough of them.

A well-formed request is answered with 200, also when some partitions fail: each tells for itself (`consume_answer`).
What must stay true: a large answer is made in a thread; a poll that waits ends early when the broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from litestar import Request, Response, post

from llog.broker.consume.consume import ConsumeRequest, PartitionFetch, PartitionFetched
from llog.errors import InvalidArgument, RequestRefused
from llog.http.json.consume_answer import answer_of
from llog.http.json.plain_answer import PlainAnswer
from llog.http.json.produce_encode import checked_log
from llog.http.json.replies import ENCODER, bytes_reply
from llog.http.json.schemas import ConsumeAnswer, ConsumeBody
from llog.http.listener.answers import AnswerShare, held_bytes
from llog.http.listener.body import AnyRequest, decoded_body
from llog.http.listener.runtime import Access, Runtime, request_record, runtime_of
from llog.http.routes.openapi import operation
from llog.log.keys import Log


@post(
    "/consume",
    status_code=200,
    opt={Access.KEY: Access.READ},
    summary="Fetch records from one or many logs",
    operation_class=operation(ConsumeBody, {200: (ConsumeAnswer, "Records, or an error, per partition.")}),
)
async def consume(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    runtime = runtime_of(request)
    wanted = plan_consume(await decoded_body(request, ConsumeBody))
    share = AnswerShare(runtime.answers)
    request_record(request).on_finished = share.give
    plain = PlainAnswer()
    fetched = await fetch(runtime, replace(wanted, hold=share.hold, quick=plain), gone=lambda: _disconnected(request))
    if plain.text is not None:
        text: bytes | memoryview = plain.text
    else:
        share.hold(held_bytes(fetched))
        size = sum(run.columns.values.data.nbytes for partition in fetched for run in partition.runs)
        text = await runtime.off_loop(size, lambda: ENCODER.encode(answer_of(fetched)))
    share.shrink(len(text))
    return bytes_reply(text)


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
    """Consume, waiting no longer than until the broker stops (then what there is counts), or until the client is gone
    (then nothing is read for it any more)."""
    services = runtime.broker
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
            raise RequestRefused("the client went away while it waited")
    finally:
        for task in (polling, stopping, leaving):
            task.cancel()
    return await services.consume(replace(wanted, max_wait_ms=0))


async def _disconnected(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
