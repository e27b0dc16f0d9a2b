"""Reads from one shard: batched gets, and lists and scans in pages.

Reads are repeated at the current leader until the deadline. One attempt is shorter than the deadline, because a paused
leader keeps its connection open without answering.

Answers may be stale, because a deposed leader does not know that it was deposed. A strict read is pinned to a server
that has just completed a write (`link=`) and is tried once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

import grpc

from llog.limits import OXIA_REQUESTS_IN_FLIGHT_MAX
from llog.stores.metadata.oxia.client.discovery import ShardDirectory, retry_delay_seconds
from llog.stores.metadata.oxia.client.errors import (
    ClientClosed,
    Denied,
    InvalidRequest,
    Misconfigured,
    OxiaError,
    ReadTimeout,
    SessionExpired,
    Unavailable,
)
from llog.stores.metadata.oxia.client.failures import FINAL, FailureKind, RpcFailure, failure_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.rpc import OxiaLink, OxiaOptions

OXIA_READ_OPS_MAX: Final = 512
# Timeout of one attempt of a read; the next goes to the current leader.
OXIA_READ_ATTEMPT_MS_MIN: Final = 2_000

CEILING: Final = pb.CEILING

T = TypeVar("T")


class Get(NamedTuple):
    key: str
    comparison: pb.KeyComparison = pb.EQUAL
    """`CEILING`: the record at the key or the next in the order of the server."""


class OxiaRecord(NamedTuple):
    key: str
    value: bytes
    version_id: int
    session_id: int | None
    modified_ms: int


def _record(answer: pb.GetResponse, asked: str) -> OxiaRecord | None:
    if answer.status == pb.KEY_NOT_FOUND:
        return None
    if answer.status != pb.OK:
        raise InvalidRequest(f"get {asked!r}: the server answered with status {answer.status}")
    version = answer.version
    return OxiaRecord(
        answer.key or asked,
        answer.value,
        version.version_id,
        version.session_id if version.HasField("session_id") else None,
        version.modified_timestamp,
    )


def _records(frame: pb.RangeScanResponse) -> list[OxiaRecord]:
    return [record for answer in frame.records if (record := _record(answer, answer.key)) is not None]


def read_error(failure: RpcFailure, what: str) -> OxiaError:
    """The error of a read that is not retried."""
    text = f"{what}: {failure}"
    match failure.kind:
        case FailureKind.DENIED:
            return Denied(text)
        case FailureKind.NAMESPACE_NOT_FOUND | FailureKind.NOTIFICATIONS_DISABLED:
            return Misconfigured(text)
        case FailureKind.INVALID:
            return InvalidRequest(text)
        case FailureKind.SESSION_NOT_FOUND:
            return SessionExpired(text)
        case FailureKind.NOT_CONNECTED | FailureKind.NOT_LEADER | FailureKind.NOT_READY:
            return Unavailable(text)
        case _:
            return ReadTimeout(text)


class Attempts:
    """Runs a repeatable call at the leader of a shard until it succeeds or the deadline has passed."""

    def __init__(self, options: OxiaOptions, directory: ShardDirectory) -> None:
        self._options, self._directory = options, directory

    async def run(
        self, shard: int, what: str, call: Callable[[OxiaLink, float], Awaitable[T]], link: OxiaLink | None = None
    ) -> T:
        """`call(link, seconds)` at `link` once, or at the leader as often as needed.

        `seconds` limits the silence of the server, not the time of a large answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.request_timeout_ms / 1_000
        attempt = 0
        while True:
            at = link or await self._directory.link(shard, deadline)
            left = deadline - loop.time()
            try:
                return await self._once(call, at, min(left, max(OXIA_READ_ATTEMPT_MS_MIN / 1_000, left / 4)))
            except grpc.aio.AioRpcError as error:
                failure = failure_of(error)
            except TimeoutError:
                failure = RpcFailure(FailureKind.TIMED_OUT, f"{at.address} was silent")
            if link is None:
                self._directory.suspect(at, shard, failure)
            delay = retry_delay_seconds(attempt)
            attempt += 1
            if link is not None or failure.kind in FINAL or failure.kind is FailureKind.SESSION_NOT_FOUND:
                raise read_error(failure, what)
            if loop.time() + delay >= deadline:
                raise ReadTimeout(f"{what}: not answered within the deadline; last: {failure}")
            await asyncio.sleep(delay)

    async def _once(self, call: Callable[[OxiaLink, float], Awaitable[T]], link: OxiaLink, seconds: float) -> T:
        try:
            return await call(link, max(seconds, 0.001))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The channel was closed during the call.
            raise ClientClosed("the client was closed") from None


async def frames(stream: Any, silence_seconds: float) -> AsyncGenerator[Any, None]:
    """The frames of a stream. Raises `TimeoutError` after that much silence; always ends the call.

    Does not use `stream.read()`, which loses frames that arrive before the end of the stream.
    """
    source = aiter(stream)
    try:
        while True:
            async with asyncio.timeout(silence_seconds):
                frame = await anext(source, None)
            if frame is None:
                return
            yield frame
    finally:
        stream.cancel()


class ShardReader:
    def __init__(self, shard: int, options: OxiaOptions, directory: ShardDirectory) -> None:
        self._shard = shard
        self._attempts = Attempts(options, directory)
        self._queue: deque[tuple[Sequence[Get], asyncio.Future[list[OxiaRecord | None]]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def get_many(self, gets: Sequence[Get], link: OxiaLink | None = None) -> list[OxiaRecord | None]:
        """One answer per get, in order. Gets of one turn of the event loop share requests, unless pinned."""
        if not gets:
            return []
        if link is not None:
            records: list[OxiaRecord | None] = []
            for at in range(0, len(gets), OXIA_READ_OPS_MAX):
                records += await self._request(gets[at : at + OXIA_READ_OPS_MAX], link)
            return records
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[list[OxiaRecord | None]]] = []
        for at in range(0, len(gets), OXIA_READ_OPS_MAX):
            answer: asyncio.Future[list[OxiaRecord | None]] = loop.create_future()
            self._queue.append((gets[at : at + OXIA_READ_OPS_MAX], answer))
            answers.append(answer)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        parts = await asyncio.gather(*answers)
        return parts[0] if len(parts) == 1 else [records for part in parts for records in part]

    def _flush(self) -> None:
        self._scheduled = False
        while self._queue and len(self._running) < OXIA_REQUESTS_IN_FLIGHT_MAX:
            batch, count = [self._queue.popleft()], 0
            count = len(batch[0][0])
            while self._queue and count + len(self._queue[0][0]) <= OXIA_READ_OPS_MAX:
                batch.append(self._queue.popleft())
                count += len(batch[-1][0])
            task = asyncio.create_task(self._serve(batch))
            self._running.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._queue and not self._scheduled:
            self._flush()

    async def _serve(self, batch: list[tuple[Sequence[Get], asyncio.Future[list[OxiaRecord | None]]]]) -> None:
        try:
            records = await self._request([get for gets, _ in batch for get in gets], None)
        except asyncio.CancelledError:
            self._answer_all(batch, ClientClosed("the client was closed"))
            raise
        except Exception as error:
            self._answer_all(batch, error)
            return
        at = 0
        for gets, answer in batch:
            if not answer.done():
                answer.set_result(records[at : at + len(gets)])
            at += len(gets)

    def _answer_all(
        self, batch: list[tuple[Sequence[Get], asyncio.Future[list[OxiaRecord | None]]]], error: Exception
    ) -> None:
        for _, answer in batch:
            if not answer.done():
                answer.set_exception(error)

    async def _request(self, gets: Sequence[Get], link: OxiaLink | None) -> list[OxiaRecord | None]:
        request = pb.ReadRequest(shard=self._shard)
        add = request.gets.add
        for key, comparison in gets:
            add(key=key, include_value=True, comparison_type=comparison)

        async def call(at: OxiaLink, seconds: float) -> list[OxiaRecord | None]:
            answers: list[pb.GetResponse] = []
            async for frame in frames(at.read(request, metadata=at.metadata), seconds):
                answers += frame.gets
            if len(answers) != len(gets):
                raise ReadTimeout(f"{len(answers)} answers to {len(gets)} gets")
            return [_record(answer, get.key) for answer, get in zip(answers, gets, strict=True)]

        return await self._attempts.run(self._shard, f"get from shard {self._shard}", call, link)

    # -- ranges -----------------------------------------------------------------------------------------------------
    async def scan(self, start: str, stop: str, limit: int, link: OxiaLink | None = None) -> list[OxiaRecord]:
        """The first `limit` records with `start` <= key < `stop` in the server's order."""
        request = pb.RangeScanRequest(shard=self._shard, start_inclusive=start, end_exclusive=stop)

        async def call(at: OxiaLink, seconds: float) -> list[OxiaRecord]:
            records: list[OxiaRecord] = []
            async with aclosing(frames(at.range_scan(request, metadata=at.metadata), seconds)) as pages:
                async for frame in pages:
                    records += _records(frame)
                    if len(records) >= limit:
                        break
            return records[:limit]

        return await self._attempts.run(self._shard, f"scan shard {self._shard}", call, link)

    async def scan_frames(
        self, start: str, stop: str, link: OxiaLink, silence_seconds: float
    ) -> AsyncGenerator[list[OxiaRecord], None]:
        """A long scan in frames of the server. Tried once."""
        request = pb.RangeScanRequest(shard=self._shard, start_inclusive=start, end_exclusive=stop)
        try:
            async with aclosing(frames(link.range_scan(request, metadata=link.metadata), silence_seconds)) as pages:
                async for frame in pages:
                    yield _records(frame)
        except grpc.aio.AioRpcError as error:
            raise read_error(failure_of(error), f"scan shard {self._shard}") from error
        except TimeoutError:
            raise ReadTimeout(f"scan shard {self._shard}: the server sent nothing in time") from None

    async def close(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._queue:
            self._answer_all([self._queue.popleft()], ClientClosed("the client was closed"))
