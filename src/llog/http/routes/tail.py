"""`GET …/tail`: the records of a log as server-sent events, from an offset on, as they come.

The id of each event is the record's offset, so a browser that lost its connection continues from there
(`Last-Event-ID`). A comment every HTTP_TAIL_HEARTBEAT_MS keeps proxies from closing an idle stream. An error after the
first event is sent as an event named `error` and ends the stream. A tail holds one fetch at a time, a client that does
not read delays no other client, and stopping the broker ends every tail.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final, Literal

from litestar import Request, get
from litestar.params import FromQuery, QueryParameter
from litestar.response import Stream

from llog.broker.consume.consume import ConsumeRequest, PartitionFetch, PartitionFetched
from llog.errors import InvalidArgument, LlogError
from llog.http.json.consume_answer import records_of
from llog.http.routes.consume import fetch
from llog.http.routes.openapi import QUERY, PartitionInPath, TopicInPath, operation
from llog.http.routes.partitions import PARTITION, log_of
from llog.http.routes.runtime import AnswerShare, Runtime, record_of, runtime_of
from llog.limits import KIB
from llog.listener.http1 import ENCODER, ErrorAnswer
from llog.listener.tokens import Access
from llog.log.keys import OFFSET_MAX, Log
from llog.log.read.view import view
from llog.telemetry.request_log import RequestRecord

HTTP_TAIL_BYTES: Final = 256 * KIB
"""What a tail fetches at a time."""
HTTP_TAIL_HEARTBEAT_MS: Final = 15_000

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b": nothing new\n\n"


@get(
    f"{PARTITION}/tail",
    opt={Access.KEY: Access.READ, QUERY: frozenset({"offset", "start"})},
    summary="Records of a log as server-sent events",
    operation_class=operation(
        None,
        {200: (None, "An event per record; its id is the offset."), 416: (None, "The offset is out of range.")},
        media_type=EVENT_STREAM,
    ),
)
async def tail(
    request: Request,  # type: ignore[type-arg]
    topic: TopicInPath,
    partition: PartitionInPath,
    offset: Annotated[int | None, QueryParameter(gt=-1, le=OFFSET_MAX)] = None,
    start: FromQuery[Literal["earliest", "latest"]] = "latest",
) -> Stream:
    runtime, log = runtime_of(request), log_of(topic, partition)
    first_offset = await _first_offset(runtime, log, offset, start, request.headers.get("last-event-id"))
    share = AnswerShare(runtime.answers)
    record = record_of(request)
    record.on_finished, record.wait_ms = share.give, math.inf
    first = await _fetched(runtime, log, first_offset, share, wait_ms=0)
    if first.error is not None:
        raise first.error
    runtime.enter_tail()
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    events = _Events(runtime, log, first, record, share)
    return Stream(events, media_type=EVENT_STREAM, headers=headers)


async def _first_offset(runtime: Runtime, log: Log, offset: int | None, start: str, last_id: str | None) -> int:
    if last_id:
        if not (last_id.isascii() and last_id.isdigit() and int(last_id[:20]) < OFFSET_MAX):
            raise InvalidArgument("Last-Event-ID", f"{last_id[:40]!r} is not an offset")
        return int(last_id) + 1
    if offset is not None:
        return offset
    seen = await view(runtime.services.context, log, strict=True)
    return seen.log_start_offset if start == "earliest" else seen.next_offset


async def _fetched(runtime: Runtime, log: Log, offset: int, share: AnswerShare, *, wait_ms: int) -> PartitionFetched:
    wanted = ConsumeRequest(
        (PartitionFetch(log, offset, HTTP_TAIL_BYTES),), wait_ms, 1, HTTP_TAIL_BYTES, hold=share.hold
    )
    [fetched] = await fetch(runtime, wanted)
    return fetched


class _Events:
    """The stream. It leaves the count of open tails however it ends."""

    def __init__(
        self, runtime: Runtime, log: Log, first: PartitionFetched, record: RequestRecord, share: AnswerShare
    ) -> None:
        self._runtime, self._log, self._first, self._record, self._share = runtime, log, first, record, share

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            yield HEARTBEAT
            fetched = self._first
            while fetched.error is None:
                events = events_of(fetched)
                if events:
                    yield events
                self._share.give()  # the client has taken them
                if self._runtime.stopping.is_set():
                    return
                fetched = await self._next(fetched.next_fetch_offset)
                if fetched.error is None and not fetched.runs:
                    yield HEARTBEAT
            yield error_event(fetched.error, self._record.request_id)
        finally:
            self._runtime.leave_tail()

    async def _next(self, offset: int) -> PartitionFetched:
        try:
            return await _fetched(self._runtime, self._log, offset, self._share, wait_ms=HTTP_TAIL_HEARTBEAT_MS)
        except LlogError as error:
            return PartitionFetched(self._log, offset, next_fetch_offset=offset, error=error)


def events_of(fetched: PartitionFetched) -> bytes:
    events: Sequence[bytes] = [
        b"id: %d\ndata: %b\n\n" % (record.offset, ENCODER.encode(record))
        for run in fetched.runs
        for record in records_of(run.columns)
    ]
    return b"".join(events)


def error_event(error: LlogError, request_id: str) -> bytes:
    answer = ErrorAnswer(type(error).__name__, str(error), request_id)
    return b"event: error\ndata: %b\n\n" % ENCODER.encode(answer)
