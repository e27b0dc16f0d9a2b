"""Writes to one shard: packed into requests, pipelined over one stream to the leader, answered in order.

Operations wait in a queue. A pump task packs them into requests, so that everything submitted in one turn of the event
loop is sent together without delay, and sends them over a `WriteStream`; a reader task matches answers to requests.

When an outcome is known (from the source of server 0.14): the server answers after the request was synced to the log of
the leader, acknowledged by a quorum, and applied. So **an answer is final**, also if the stream fails after it. When a
stream fails, requests without an answer are `Uncertain` and not repeated here, except if nothing can have happened:
there was no connection, or the failure is a refusal (not the leader, or not yet) and only one request was in flight.
With several in flight, one may have been refused and another logged.

The *last* answers before a failure may be misleading: a request that fails on the server (a disk error) gets no answer
but ends the stream, and later requests may still be answered before the end, in its place. So the first put of each
request carries a number in its client identity, which the server returns with the version of the put. An answer with
another number or shape fails the stream. (Not covered: an answer of the expected shape without a successful put.)

A new stream carries one request until its first answer, so that a refusal by a former leader affects one request, which
can be repeated safely.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import grpc

from llog.limits import OXIA_CLOSE_TIMEOUT_MS, OXIA_CONNECT_TIMEOUT_MS, OXIA_REQUESTS_IN_FLIGHT_MAX, OXIA_STALL_MS
from llog.stores.metadata.oxia.client.discovery import ShardDirectory, retry_delay_seconds
from llog.stores.metadata.oxia.client.errors import ClientClosed, Denied, OxiaError, Unavailable, Uncertain
from llog.stores.metadata.oxia.client.failures import FailureKind, RpcFailure, failure_of
from llog.stores.metadata.oxia.client.ops import Op, checked_sizes
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.queue import Flight, Submission, WriteQueue
from llog.stores.metadata.oxia.client.rpc import OxiaLink, OxiaOptions

# How long a stream to a deposed leader may still deliver answers before its requests become uncertain.
OXIA_DEPOSED_GRACE_MS: Final = 500

_log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.1
# The client left the leader, so the state of requests in flight is unknown.
_DEPOSED: Final = RpcFailure(FailureKind.CLOSING, "another server leads the shard now")


class _Stream:
    """One `WriteStream` call and its requests in flight."""

    def __init__(self, link: OxiaLink, call: Any) -> None:
        self.link, self.call = link, call
        self.flights: deque[Flight] = deque()
        self.answered = False
        self.over = False
        self.suspected = False
        self.deposed_at: float | None = None
        self.reader: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, request: pb.WriteRequest) -> None:
        """Hand a request to gRPC; returns early when the stream ends.

        In gRPC, a write to a call that is cancelled before its metadata were sent never returns. That happens to the
        first request of a stream, when the leader is silent until the deadline: the shard would take no write again.
        """
        if self.answered:
            await self.call.write(request)
            return
        writing = asyncio.ensure_future(self.call.write(request))
        try:
            await asyncio.wait([writing, self.ended], return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()

    @property
    def has_room(self) -> bool:
        return len(self.flights) < (OXIA_REQUESTS_IN_FLIGHT_MAX if self.answered else 1)


class ShardWriter:
    def __init__(self, shard: int, options: OxiaOptions, directory: ShardDirectory) -> None:
        self._shard, self._options, self._directory = shard, options, directory
        self._loop = asyncio.get_running_loop()
        self._queue = WriteQueue(shard, options.identity)
        self._wake = asyncio.Event()
        self._stream: _Stream | None = None
        self._attempt = 0
        self._ticking = False
        self._closed = False
        self._forget = directory.listen(self._assignments_changed)
        self._pump_task = asyncio.create_task(self._pump(), name=f"oxia writer of shard {shard}")

    # -- callers ----------------------------------------------------------------------------------------------------
    async def begin(self, ops: Sequence[Op]) -> Submission:
        """Queue the operations as soon as there is room; `done` completes when they are settled.

        Raises if they could not be queued; nothing happened then.
        """
        sizes = checked_sizes(ops)
        deadline = self._loop.time() + self._options.request_timeout_ms / 1_000
        await self._queue.room(deadline)
        if self._closed:
            raise ClientClosed("the client is closed")
        submission = Submission(ops, sizes, self._loop.create_future(), deadline)
        if ops:
            self._queue.append(submission)
            self._wake.set()
        else:
            submission.done.set_result(None)
        return submission

    # -- packing and sending ----------------------------------------------------------------------------------------
    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while await self._send_one():
                    pass
            except Exception as error:
                # After a bug here callers must not wait for ever.
                _log.exception("oxia writer of shard %d", self._shard)
                self._queue.expire(math.inf, Unavailable(f"the writer of shard {self._shard} failed: {error!r}"))
                if self._stream is not None:
                    self._end(self._stream, RpcFailure(FailureKind.OTHER, repr(error)))

    async def _send_one(self) -> bool:
        """Send one request. False: nothing to send, or no room (an answer wakes the pump)."""
        self._queue.expire(self._loop.time())
        if not self._queue or self._closed:
            return False
        stream = self._stream or await self._open_stream()
        if stream is None:
            return True
        if not stream.has_room or stream.deposed_at is not None or not self._queue:
            return False
        request, flight = self._queue.pack()
        if not flight.parts:
            return True
        stream.flights.append(flight)
        self._start_ticking()
        try:
            await stream.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False  # the reader gets the reason and settles the requests in flight
        except asyncio.CancelledError:
            # A cancelled call raises this too; only close() cancels the task.
            if self._closed or not stream.over:
                raise
        return True

    # -- the stream -------------------------------------------------------------------------------------------------
    async def _open_stream(self) -> _Stream | None:
        """A stream to the leader, or None if there was none in time (waiting operations have failed, or retry)."""
        deadline = self._queue.first_deadline
        if self._attempt:
            await asyncio.sleep(retry_delay_seconds(self._attempt))
        try:
            link = await self._directory.link(self._shard, deadline)
        except Unavailable as error:
            # Operations before their deadline keep waiting; the others fail with the reason.
            self._queue.expire(max(deadline, self._loop.time()), error)
            return None
        seconds = min(OXIA_CONNECT_TIMEOUT_MS / 1_000, max(0.0, deadline - self._loop.time()))
        if not await link.connected(seconds):
            self._attempt += 1
            self._directory.suspect(link, self._shard)
            return None
        metadata = (*link.metadata, ("namespace", self._options.namespace), ("shard-id", str(self._shard)))
        stream = self._stream = _Stream(link, link.write_stream(metadata=metadata))
        stream.reader = asyncio.create_task(self._read(stream), name=f"oxia answers of shard {self._shard}")
        return stream

    async def _read(self, stream: _Stream) -> None:
        try:
            # Not `call.read()`, which loses answers that arrive before the end of the stream.
            async for answer in stream.call:
                self._take_answer(stream, answer)
                if stream.over:
                    return
            self._end(stream, RpcFailure(FailureKind.CONNECTION_LOST, "the server ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._end(stream, failure_of(error))
        except asyncio.CancelledError:
            # Raised for a cancelled call and for a cancelled task; `_end` has run in both cases.
            if not stream.over:
                self._end(stream, RpcFailure(FailureKind.CONNECTION_LOST, "cancelled"))

    def _take_answer(self, stream: _Stream, answer: pb.WriteResponse) -> None:
        if not stream.flights:
            self._end(stream, RpcFailure(FailureKind.OTHER, "an answer to no request"))
            return
        flight = stream.flights[0]
        if not flight.fits(answer):
            self._end(stream, RpcFailure(FailureKind.OTHER, "an answer that is not its request's"))
            return
        stream.flights.popleft()
        stream.answered = True
        self._attempt = 0
        flight.settle(answer, stream.link)
        self._wake.set()

    def _end(self, stream: _Stream, failure: RpcFailure) -> None:
        """Settle the requests in flight on an ended stream. Called once per stream."""
        if stream.over:
            return
        stream.over = True
        stream.ended.set_result(None)
        if self._stream is stream:
            self._stream = None
        stream.call.cancel()
        flights = list(stream.flights)
        stream.flights.clear()
        self._attempt += 1
        if self._closed:
            error: OxiaError = Uncertain("the client was closed before the answer came")
        elif failure.kind is FailureKind.DENIED and not stream.answered:
            error = Denied(str(failure))
        elif nothing_happened(failure, len(flights), stream.answered):
            self._directory.suspect(stream.link, self._shard, failure)
            self._queue.requeue(flights)
            self._wake.set()
            return
        else:
            error = Uncertain(f"shard {self._shard} at {stream.link.address}: {failure}")
            self._directory.suspect(stream.link, self._shard, failure)
        for flight in flights:
            flight.fail(error)
        self._wake.set()

    # -- time and change --------------------------------------------------------------------------------------------
    def _start_ticking(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Detect a silent leader: suspect it early, give up at the deadline."""
        self._ticking = False
        stream = self._stream
        if stream is None:
            return
        now = self._loop.time()
        if stream.deposed_at is not None and now - stream.deposed_at >= OXIA_DEPOSED_GRACE_MS / 1_000:
            self._end(stream, _DEPOSED)
            return
        if stream.flights:
            oldest = stream.flights[0]
            if now >= oldest.deadline:
                self._end(stream, RpcFailure(FailureKind.TIMED_OUT, "no answer within the deadline"))
                return
            if not stream.suspected and now - oldest.sent_at >= OXIA_STALL_MS / 1_000:
                stream.suspected = True
                self._directory.suspect(stream.link, self._shard)
        if stream.flights or stream.deposed_at is not None:
            self._start_ticking()

    def _assignments_changed(self) -> None:
        stream, current = self._stream, self._directory.current
        if stream is None or current is None:
            return
        leader = current.leaders.get(self._shard)
        if leader == stream.link.address:
            stream.deposed_at = None
            self._wake.set()
        elif leader and stream.deposed_at is None:
            stream.deposed_at = self._loop.time()
            if not stream.flights:
                self._end(stream, _DEPOSED)
            else:
                self._start_ticking()

    async def close(self) -> None:
        """Requests in flight get a moment to finish; operations not sent fail with `ClientClosed`."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        self._queue.expire(math.inf, ClientClosed("the client was closed"))
        if self._stream is not None and self._stream.flights:
            out = {submission.done for flight in self._stream.flights for submission, _, _ in flight.parts}
            await asyncio.wait(out, timeout=OXIA_CLOSE_TIMEOUT_MS / 1_000)
        self._pump_task.cancel()
        tasks = [self._pump_task]
        if self._stream is not None:
            stream = self._stream
            self._end(stream, RpcFailure(FailureKind.CONNECTION_LOST, "closed"))
            if stream.reader is not None:
                tasks.append(stream.reader)
        await asyncio.gather(*tasks, return_exceptions=True)


def nothing_happened(failure: RpcFailure, out: int, answered: bool) -> bool:
    """Whether no request in flight on a failed stream was applied (see the docstring of the module)."""
    if answered:
        # It led when it answered: a refusal may concern one request and not those before it.
        return failure.kind in (FailureKind.NOT_LEADER, FailureKind.NOT_READY) and out == 1
    return failure.kind is FailureKind.NOT_CONNECTED or (
        failure.kind in (FailureKind.NOT_LEADER, FailureKind.NOT_READY) and out <= 1
    )
