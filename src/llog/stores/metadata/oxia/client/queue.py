"""The queue of operations for one shard, and how they are packed into requests.

No I/O: operations enter in submissions and leave in requests (within the limits of bytes and operations), and each is
settled exactly once, by its answer or by an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from llog.limits import METADATA_REQUEST_BYTES_MAX
from llog.stores.metadata.oxia.client.errors import OxiaError, Unavailable
from llog.stores.metadata.oxia.client.ops import Op, Outcome, OxiaPut, outcome_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.rpc import OxiaLink

OXIA_WRITE_OPS_MAX: Final = 128
# Limit of waiting operations per shard; further callers wait for room until their deadline.
OXIA_QUEUED_OPS_MAX: Final = 65_536

Part = tuple["Submission", int, int]
"""Operations `start` to `stop` of a submission."""


class Submission:
    """Operations that one caller awaits together, possibly in several requests."""

    __slots__ = ("deadline", "done", "left", "link", "next", "ops", "outcomes", "server_time_ms", "sizes")

    def __init__(self, ops: Sequence[Op], sizes: Sequence[int], done: asyncio.Future[None], deadline: float) -> None:
        self.ops, self.sizes, self.done, self.deadline = ops, sizes, done, deadline
        self.outcomes: list[Any] = [None] * len(ops)
        self.left = len(ops)
        self.next = 0
        """The first operation that is in no request yet."""
        self.link: OxiaLink | None = None
        """The server that answered last."""
        self.server_time_ms = 0
        """The server's clock at the last successful put."""

    def settle(self, start: int, stop: int, outcomes: Sequence[Outcome]) -> None:
        self.outcomes[start:stop] = outcomes
        self.left -= stop - start
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)

    def fail(self, start: int, stop: int, error: OxiaError) -> None:
        self.settle(start, stop, [error] * (stop - start))


class Flight(NamedTuple):
    """One request in flight."""

    parts: list[Part]
    puts: int
    deletes: int
    tag: str
    sent_at: float
    deadline: float

    def fits(self, answer: pb.WriteResponse) -> bool:
        """Whether `answer` can belong to this request: same shape, and the tag of the first put."""
        if len(answer.puts) != self.puts or len(answer.deletes) != self.deletes:
            return False
        first = answer.puts[0] if self.puts else None
        return first is None or first.status != pb.OK or first.version.client_identity == self.tag

    def settle(self, answer: pb.WriteResponse, link: OxiaLink) -> None:
        puts, deletes = iter(answer.puts), iter(answer.deletes)
        for submission, start, stop in self.parts:
            outcomes: list[Outcome] = []
            add = outcomes.append
            applied: pb.PutResponse | None = None
            for op in submission.ops[start:stop]:
                if type(op) is OxiaPut:
                    put = next(puts)
                    status = put.status
                    if not status:
                        applied = put
                        add(put.version.version_id)
                        continue
                else:
                    status = next(deletes).status
                add(outcome_of(op, status))
            submission.link = link
            if applied is not None:
                submission.server_time_ms = applied.version.modified_timestamp
            submission.settle(start, stop, outcomes)

    def fail(self, error: OxiaError) -> None:
        for submission, start, stop in self.parts:
            submission.fail(start, stop, error)


class WriteQueue:
    def __init__(self, shard: int, identity: str) -> None:
        self._shard, self._identity = shard, identity
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Submission] = deque()
        self._ops = 0
        self._room = asyncio.Event()
        self._tag = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first_deadline(self) -> float:
        return self._waiting[0].deadline

    async def room(self, deadline: float) -> None:
        """Wait until the queue has room. Raises `Unavailable` at `deadline`."""
        while self._ops >= OXIA_QUEUED_OPS_MAX:
            self._room.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room.wait()
            except TimeoutError:
                raise Unavailable(f"shard {self._shard}: too many operations are waiting") from None

    def append(self, submission: Submission) -> None:
        self._waiting.append(submission)
        self._ops += len(submission.ops)

    def pack(self) -> tuple[pb.WriteRequest, Flight]:
        """The next request: waiting operations in order, up to the limits. The queue must not be empty."""
        request = pb.WriteRequest(shard=self._shard)
        add_put, add_delete = request.puts.add, request.deletes.add
        parts: list[Part] = []
        deadline = self._waiting[0].deadline
        room, size, puts = OXIA_WRITE_OPS_MAX, 0, 0
        while self._waiting and room:
            submission = self._waiting[0]
            ops, start = submission.ops, submission.next
            if submission.done.cancelled():
                self._waiting.popleft()
                self._ops -= len(ops) - start
                continue
            at = start
            for op, op_size in zip(ops[start : start + room], submission.sizes[start : start + room], strict=True):
                size += op_size
                if size > METADATA_REQUEST_BYTES_MAX and (parts or at > start):
                    room = at - start  # this operation begins the next request
                    break
                if type(op) is OxiaPut:
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
                self._ops -= at - start
            if at == len(ops):
                self._waiting.popleft()
        if self._ops < OXIA_QUEUED_OPS_MAX:
            self._room.set()
        self._tag += 1
        tag = f"{self._identity}#{self._tag}"
        if puts:
            request.puts[0].client_identity = tag
        count = sum(stop - start for _, start, stop in parts)
        return request, Flight(parts, puts, count - puts, tag, self._loop.time(), deadline)

    def expire(self, until: float, error: OxiaError | None = None) -> None:
        """Fail operations that were not sent and whose deadline is before `until`."""
        while self._waiting and self._waiting[0].deadline <= until:
            submission = self._waiting.popleft()
            start, stop = submission.next, len(submission.ops)
            submission.next = stop
            self._ops -= stop - start
            submission.fail(start, stop, error or Unavailable(f"shard {self._shard}: not sent within the deadline"))
        self._room.set()

    def requeue(self, flights: Sequence[Flight]) -> None:
        """Put requests that cannot have happened back to the front, in their order."""
        for flight in reversed(flights):
            for submission, start, stop in reversed(flight.parts):
                ops, sizes = submission.ops[start:stop], submission.sizes[start:stop]
                again = Submission(ops, sizes, self._loop.create_future(), submission.deadline)
                again.done.add_done_callback(_Forward(submission, start, stop, again))
                self._waiting.appendleft(again)
                self._ops += stop - start


class _Forward:
    """Passes outcomes of repeated operations to their original submission."""

    def __init__(self, origin: Submission, start: int, stop: int, again: Submission) -> None:
        self._origin, self._start, self._stop, self._again = origin, start, stop, again

    def __call__(self, _: asyncio.Future[None]) -> None:
        self._origin.link = self._again.link
        self._origin.server_time_ms = self._again.server_time_ms
        self._origin.settle(self._start, self._stop, self._again.outcomes)
