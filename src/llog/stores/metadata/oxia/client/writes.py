"""Writes to one shard: coalesced into requests, pipelined over one stream to the shard's leader, answered in order.

Operations wait in a queue; a pump task packs what is waiting into requests (so everything submitted in one turn of
the event loop travels together, without any added delay) and sends them over a `WriteStream`; a reader task matches
answers to requests.

When is an outcome known? From the server's source (0.14): an answer is sent only after the request was synced to the
leader's log, acknowledged by a quorum, and applied; so **an answer, once here, is final**, also when the stream fails
right after it. Everything sent and unanswered when a stream fails is `Uncertain` and never repeated here, with three
exceptions where nothing can have happened: no connection was made; the server refused the stream as a whole; the
failure names a refusal and only one request was out.

One trap makes the *last* answers before a failure suspect: a request that fails on the server (a disk error) gets no
answer but ends the stream, and requests behind it may still be answered before the end; counted in order, their
answers would fall to the failed one. So the first put of each request carries a number in its client identity, which
the server returns with the put's version, and an answer whose number or shape is not its request's own fails the
stream before it is believed. (Not covered: an answer that reports no successful put and has the very shape expected.)

A fresh stream carries one request until its first answer, so that a refusal by a server that is no longer the leader
always finds one request out, and that one can be repeated safely.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc

from llog.limits import (
    METADATA_REQUEST_BYTES_MAX,
    OXIA_CLOSE_TIMEOUT_MS,
    OXIA_CONNECT_TIMEOUT_MS,
    OXIA_DEPOSED_GRACE_MS,
    OXIA_QUEUED_OPS_MAX,
    OXIA_REQUESTS_IN_FLIGHT_MAX,
    OXIA_STALL_MS,
    OXIA_WRITE_OPS_MAX,
)
from llog.stores.metadata.oxia.client.discovery import ShardDirectory, retry_delay_seconds
from llog.stores.metadata.oxia.client.errors import (
    ClientClosed,
    Denied,
    InvalidRequest,
    OxiaError,
    RequestTooLarge,
    SessionExpired,
    Unavailable,
    Uncertain,
    VersionMismatch,
)
from llog.stores.metadata.oxia.client.failures import Failure, Kind, failure_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.rpc import Link, Options

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_CLOSE_POLL_SECONDS = 0.005
# Tags, lengths and fixed fields of one operation, generously.
_OP_OVERHEAD_BYTES = 64
_INTERNAL_PREFIX = "__oxia"


class Put(NamedTuple):
    key: str
    value: bytes
    expected: int | None = None
    """The version the record must be at; -1: it must not exist; None: whatever is there."""
    partition_key: str | None = None
    session_id: int | None = None


class Delete(NamedTuple):
    """Deleting what is not there succeeds, unless a version (or absence, which no delete can mean) was expected."""

    key: str
    expected: int | None = None
    partition_key: str | None = None


Op = Put | Delete
Outcome = int | OxiaError
"""The version a put made (0 for a delete), or why the operation failed."""


def op_bytes_max(op: Op) -> int:
    """An upper bound of what `op` takes in a request, without encoding it (a character takes at most 4 bytes)."""
    size = _OP_OVERHEAD_BYTES + 4 * len(op.key)
    if op.partition_key is not None:
        size += 4 * len(op.partition_key)
    return size + len(op.value) if type(op) is Put else size


def check_op(op: Op) -> None:
    """Refuse what would harm the shard: its own keys, values it would read back as unset, requests that wedge it."""
    key = op.key
    if not key or key.startswith(_INTERNAL_PREFIX):
        raise InvalidRequest(f"key {key!r} is {'in the server’s own space' if key else 'empty'}")
    if not (key.isascii() and (op.partition_key is None or op.partition_key.isascii())):
        check_unicode(key, op.partition_key or "")
    if type(op) is Put and not op.value:
        raise InvalidRequest(f"the value of {key!r} is empty; the server would read it back as unset")
    if op_bytes_max(op) > METADATA_REQUEST_BYTES_MAX:
        raise RequestTooLarge(f"{key[:80]!r}: more than {METADATA_REQUEST_BYTES_MAX} bytes in one request")


def check_unicode(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{text!r} is not valid Unicode") from error


class Submission:
    """Operations that one caller awaits together; they may travel in several requests."""

    __slots__ = ("deadline", "done", "left", "link", "next", "ops", "outcomes", "server_time_ms")

    def __init__(self, ops: Sequence[Op], done: asyncio.Future[None], deadline: float) -> None:
        self.ops, self.done, self.deadline = ops, done, deadline
        self.outcomes: list[Any] = [None] * len(ops)
        self.left = len(ops)
        self.next = 0
        """The first operation that is in no request yet."""
        self.link: Link | None = None
        """Who answered last."""
        self.server_time_ms = 0
        """The server's clock at the last successful put."""

    def settle(self, start: int, stop: int, outcomes: Sequence[Outcome]) -> None:
        self.outcomes[start:stop] = outcomes
        self.left -= stop - start
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)

    def fail(self, start: int, stop: int, error: OxiaError) -> None:
        self.settle(start, stop, [error] * (stop - start))


class _Flight(NamedTuple):
    """One request on its way."""

    parts: list[tuple[Submission, int, int]]
    puts: int
    deletes: int
    tag: str
    sent_at: float
    deadline: float

    def fail(self, error: OxiaError) -> None:
        for submission, start, stop in self.parts:
            submission.fail(start, stop, error)


class _Stream:
    """One `WriteStream` call and what is out on it."""

    def __init__(self, link: Link, call: Any) -> None:
        self.link, self.call = link, call
        self.flights: deque[_Flight] = deque()
        self.answered = False
        self.over = False
        self.suspected = False
        self.deposed_at: float | None = None
        self.reader: asyncio.Task[None] | None = None

    @property
    def has_room(self) -> bool:
        return len(self.flights) < (OXIA_REQUESTS_IN_FLIGHT_MAX if self.answered else 1)


class ShardWriter:
    def __init__(self, shard: int, options: Options, directory: ShardDirectory) -> None:
        self._shard, self._options, self._directory = shard, options, directory
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Submission] = deque()
        self._queued_ops = 0
        self._room = asyncio.Event()
        self._room.set()
        self._wake = asyncio.Event()
        self._stream: _Stream | None = None
        self._tag = 0
        self._attempt = 0
        self._ticking = False
        self._closed = False
        self._forget = directory.listen(self._assignments_changed)
        self._pump_task = asyncio.create_task(self._pump(), name=f"oxia writer of shard {shard}")

    # -- callers ----------------------------------------------------------------------------------------------------
    async def write(self, ops: Sequence[Op]) -> Submission:
        """Every operation's outcome. Raises only when the call as a whole could not begin: nothing happened then."""
        for op in ops:
            check_op(op)
        deadline = self._loop.time() + self._options.request_timeout_ms / 1_000
        while self._queued_ops >= OXIA_QUEUED_OPS_MAX and not self._closed:
            self._room.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room.wait()
            except TimeoutError:
                raise Unavailable(f"shard {self._shard}: too many operations are waiting") from None
        if self._closed:
            raise ClientClosed("the client is closed")
        submission = Submission(ops, self._loop.create_future(), deadline)
        if ops:
            self._queue.append(submission)
            self._queued_ops += len(ops)
            self._wake.set()
            await submission.done
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
                # A bug here must not leave callers waiting for ever.
                _log.exception("oxia writer of shard %d", self._shard)
                self._expire_queue(Unavailable(f"the writer of shard {self._shard} failed: {error!r}"))
                if self._stream is not None:
                    self._end(self._stream, Failure(Kind.OTHER, repr(error)))

    async def _send_one(self) -> bool:
        """Send one request; False when there is nothing to send, or no room for it (an answer wakes the pump)."""
        self._expire_queue()
        if not self._queue or self._closed:
            return False
        stream = self._stream or await self._open_stream()
        if stream is None:
            return True
        if not stream.has_room or stream.deposed_at is not None or not self._queue:
            return False
        request, flight = self._pack()
        if not flight.parts:
            return True
        stream.flights.append(flight)
        self._start_ticking()
        try:
            await stream.call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False  # the reader learns the reason, and settles what is out
        except asyncio.CancelledError:
            # A cancelled call raises this too; only close() cancels this task.
            if self._closed or not stream.over:
                raise
        return True

    def _pack(self) -> tuple[pb.WriteRequest, _Flight]:
        """The next request: whatever is waiting, in order, up to the limits. The queue is not empty."""
        request = pb.WriteRequest(shard=self._shard)
        add_put, add_delete = request.puts.add, request.deletes.add
        parts: list[tuple[Submission, int, int]] = []
        deadline = self._queue[0].deadline
        room, size, puts = OXIA_WRITE_OPS_MAX, 0, 0
        while self._queue and room:
            submission = self._queue[0]
            ops, start = submission.ops, submission.next
            if submission.done.cancelled():
                self._queue.popleft()
                self._queued_ops -= len(ops) - start
                continue
            at = start
            for op in ops[start : start + room]:
                size += op_bytes_max(op)
                if size > METADATA_REQUEST_BYTES_MAX and (parts or at > start):
                    room = at - start  # this one opens the next request
                    break
                if type(op) is Put:
                    key, value, expected, partition_key, session_id = op
                    add_put(
                        key=key,
                        value=value,
                        expected_version_id=expected,
                        session_id=session_id,
                        partition_key=partition_key,
                    )
                    puts += 1
                else:
                    add_delete(key=op.key, expected_version_id=op.expected, partition_key=op.partition_key)
                at += 1
            room -= at - start
            if at > start:
                parts.append((submission, start, at))
                submission.next = at
                self._queued_ops -= at - start
            if at == len(ops):
                self._queue.popleft()
        if self._queued_ops < OXIA_QUEUED_OPS_MAX:
            self._room.set()
        self._tag += 1
        tag = f"{self._options.identity}#{self._tag}"
        if puts:
            request.puts[0].client_identity = tag
        count = sum(stop - start for _, start, stop in parts)
        return request, _Flight(parts, puts, count - puts, tag, self._loop.time(), deadline)

    def _expire_queue(self, error: OxiaError | None = None) -> None:
        """Fail what waited too long and was never sent (everything, when an `error` is given)."""
        now = self._loop.time()
        while self._queue and (error is not None or self._queue[0].deadline <= now):
            submission = self._queue.popleft()
            start, stop = submission.next, len(submission.ops)
            submission.next = stop
            self._queued_ops -= stop - start
            submission.fail(start, stop, error or Unavailable(f"shard {self._shard}: not sent within the deadline"))
        self._room.set()

    def _requeue(self, flights: Sequence[_Flight]) -> None:
        """Put requests that cannot have happened back in front of the queue, in their order."""
        for flight in reversed(flights):
            for submission, start, stop in reversed(flight.parts):
                again = Submission(submission.ops[start:stop], self._loop.create_future(), submission.deadline)
                again.done.add_done_callback(_Forward(submission, start, stop, again))
                self._queue.appendleft(again)
                self._queued_ops += stop - start
        self._wake.set()

    # -- the stream -------------------------------------------------------------------------------------------------
    async def _open_stream(self) -> _Stream | None:
        """A stream to the leader, or None when there was none in time (what waited for it has failed, or retries)."""
        deadline = self._queue[0].deadline
        if self._attempt:
            await asyncio.sleep(retry_delay_seconds(self._attempt))
        try:
            link = await self._directory.link(self._shard, deadline)
        except Unavailable as error:
            # Whoever can still wait does; the others learn why.
            now = self._loop.time()
            while self._queue and self._queue[0].deadline <= max(now, deadline):
                submission = self._queue.popleft()
                self._queued_ops -= len(submission.ops) - submission.next
                submission.fail(submission.next, len(submission.ops), error)
            self._room.set()
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
            # Not `call.read()`: it forgets answers that came before the end of the stream was noticed.
            async for answer in stream.call:
                self._take_answer(stream, answer)
                if stream.over:
                    return
            self._end(stream, Failure(Kind.CONNECTION_LOST, "the server ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._end(stream, failure_of(error))
        except asyncio.CancelledError:
            # Raised for a cancelled call as well as for a cancelled task; `_end` has done its work either way.
            if not stream.over:
                self._end(stream, Failure(Kind.CONNECTION_LOST, "cancelled"))

    def _take_answer(self, stream: _Stream, answer: pb.WriteResponse) -> None:
        if not stream.flights:
            self._end(stream, Failure(Kind.OTHER, "an answer to no request"))
            return
        flight = stream.flights[0]
        puts = answer.puts
        if len(puts) != flight.puts or len(answer.deletes) != flight.deletes:
            self._end(stream, Failure(Kind.OTHER, "an answer of another shape than its request"))
            return
        if flight.puts and puts[0].status == pb.OK and puts[0].version.client_identity != flight.tag:
            self._end(stream, Failure(Kind.OTHER, "an answer to another request"))
            return
        stream.flights.popleft()
        stream.answered = True
        self._attempt = 0
        _settle(flight, answer, stream.link)
        self._wake.set()

    def _end(self, stream: _Stream, failure: Failure) -> None:
        """The stream is over: settle what is out on it. Called once per stream, whoever notices first."""
        if stream.over:
            return
        stream.over = True
        if self._stream is stream:
            self._stream = None
        stream.call.cancel()
        flights = list(stream.flights)
        stream.flights.clear()
        self._attempt += 1
        if self._closed:
            error: OxiaError = Uncertain("the client was closed before the answer came")
        elif failure.kind is Kind.DENIED and not stream.answered:
            error = Denied(str(failure))
        elif nothing_happened(failure, len(flights), stream.answered):
            self._directory.suspect(stream.link, self._shard, failure)
            self._requeue(flights)
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
        """Notice a leader that says nothing: suspect it early, give up on it at the deadline."""
        self._ticking = False
        stream = self._stream
        if stream is None:
            return
        now = self._loop.time()
        if stream.deposed_at is not None and now - stream.deposed_at >= OXIA_DEPOSED_GRACE_MS / 1_000:
            self._end(stream, Failure(Kind.NOT_LEADER, "another server leads the shard now"))
            return
        if stream.flights:
            oldest = stream.flights[0]
            if now >= oldest.deadline:
                self._end(stream, Failure(Kind.TIMED_OUT, "no answer within the deadline"))
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
                self._end(stream, Failure(Kind.NOT_LEADER, "another server leads the shard now"))
            else:
                self._start_ticking()

    async def close(self) -> None:
        """What is out may still be answered for a moment; what was not sent fails with `ClientClosed`."""
        if self._closed:
            return
        self._closed = True
        patience = self._loop.time() + OXIA_CLOSE_TIMEOUT_MS / 1_000
        while self._stream is not None and self._stream.flights and self._loop.time() < patience:
            await asyncio.sleep(_CLOSE_POLL_SECONDS)
        self._forget()
        self._expire_queue(ClientClosed("the client was closed"))
        self._pump_task.cancel()
        tasks = [self._pump_task]
        if self._stream is not None:
            stream = self._stream
            self._end(stream, Failure(Kind.CONNECTION_LOST, "closed"))
            if stream.reader is not None:
                tasks.append(stream.reader)
        await asyncio.gather(*tasks, return_exceptions=True)


class _Forward:
    """Hands the outcomes of repeated operations to the submission they came from."""

    def __init__(self, origin: Submission, start: int, stop: int, again: Submission) -> None:
        self._origin, self._start, self._stop, self._again = origin, start, stop, again

    def __call__(self, _: asyncio.Future[None]) -> None:
        self._origin.link = self._again.link
        self._origin.server_time_ms = self._again.server_time_ms
        self._origin.settle(self._start, self._stop, self._again.outcomes)


def nothing_happened(failure: Failure, out: int, answered: bool) -> bool:
    """Whether every request out on a failed stream is known not to have been applied (see the module's text)."""
    if answered:
        # It led when it answered: a refusal now may have hit one request and spared those before it.
        return failure.kind in (Kind.NOT_LEADER, Kind.NOT_READY) and out == 1
    return failure.kind is Kind.NOT_CONNECTED or (failure.kind in (Kind.NOT_LEADER, Kind.NOT_READY) and out <= 1)


def _settle(flight: _Flight, answer: pb.WriteResponse, link: Link) -> None:
    puts, deletes = iter(answer.puts), iter(answer.deletes)
    for submission, start, stop in flight.parts:
        outcomes: list[Outcome] = []
        add = outcomes.append
        applied: pb.PutResponse | None = None
        for op in submission.ops[start:stop]:
            if type(op) is Put:
                put = next(puts)
                status = put.status
                if not status:
                    applied = put
                    add(put.version.version_id)
                    continue
            else:
                status = next(deletes).status
            add(_outcome(op, status))
        submission.link = link
        if applied is not None:
            submission.server_time_ms = applied.version.modified_timestamp
        submission.settle(start, stop, outcomes)


def _outcome(op: Op, status: int) -> Outcome:
    if status == pb.OK:
        return 0
    if status == pb.UNEXPECTED_VERSION_ID:
        return VersionMismatch(op.key, -1 if op.expected is None else op.expected)
    if status == pb.KEY_NOT_FOUND:
        return 0 if op.expected is None else VersionMismatch(op.key, op.expected)
    if status == pb.SESSION_DOES_NOT_EXIST:
        return SessionExpired(f"{op.key}: the session does not exist")
    return InvalidRequest(f"{op.key}: the server answered with status {status}")
