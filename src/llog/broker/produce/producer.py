"""The batching producer: requests of all connections, coalesced into few blobs.

    accept    bytes are taken from the pool, or the whole call is refused             (`pool`)
    meet      a log that is new here is looked up first                              (`batching_newcomers`)
    buffer    groups gather in batches, joined per log                               (`batching_buffer`, `…_groups`)
    flush     when full, or when there is no reason to wait longer                   (`batching_pacing`)
    commit    uploads overlap, the commits of one log keep the order of flushes      (`batching_flush`, `…_order`)
    answer    each request learns what became of its own groups, and its bytes are given back

Why it exists: an object store takes hundreds of requests a second at best, and each costs money; a broker takes many
thousands. What must stay true: whatever was accepted is answered, truly and once, also when stores fail, callers go
away or the broker closes; calls made in order are committed in order, log by log; memory is bounded by the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from llog.broker.produce.buffer import Batch, Buffer
from llog.broker.produce.flush import Flush, FlushEvents, give_up, records_of
from llog.broker.produce.groups import CommittedBatch
from llog.broker.produce.newcomers import Newcomers
from llog.broker.produce.order import CommitOrder
from llog.broker.produce.pacing import Pacing, pacing_of, plan_flush
from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.requests import NO_TIMINGS, Entry, Request, TimedOutcomes, Timings, refuse
from llog.broker.produce.tally import failures_of
from llog.errors import AppendNotCommitted, BackPressureRejected, InvalidArgument, LogError, ValueTooLarge
from llog.formats.buffers import total_length
from llog.limits import KIB, OBJECT_BYTES_MAX, SHARED_BLOB_HEADER_BYTES_MAX
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.keys import check_partition, check_topic

# Blobs that one broker uploads at the same time …
BATCH_UPLOADS_MAX: Final = 4
# … and flushes that are uploaded, wait for their turn or are committed; what comes later stays buffered.
BATCH_FLUSHES_MAX: Final = 16
# What a buffered group takes beside its bytes; counted, so that tiny requests are bounded too.
BATCH_GROUP_OVERHEAD_BYTES: Final = KIB
# How long `close` waits for what is under way before it answers that nobody knows.
BATCH_CLOSE_WAIT_MS: Final = 30_000


__all__ = ["BatchingMetrics", "BatchingProducer", "CommittedBatch", "TimedOutcomes", "Timings"]

REJECTIONS: Final = "batching_rejections"
"""Calls that found no room in the pool."""
_GROUP_BYTES_MAX: Final = OBJECT_BYTES_MAX - SHARED_BLOB_HEADER_BYTES_MAX


class BatchingMetrics(Protocol):
    """What the producer tells of itself."""

    def observe_flush(
        self,
        reason: str,
        groups: int,
        records: int,
        byte_length: int,
        queue_wait_ms: float,
        upload_ms: float,
        commit_ms: float,
    ) -> None:
        """One flush is over. `reason`: size, delay, idle (nothing was being uploaded), pressure, call or close.
        `groups` are its logs; `queue_wait_ms` is how long its oldest record was buffered."""

    def observe_appends(self, groups: int, records: int, byte_length: int, failures: Mapping[str, int]) -> None:
        """What became of the groups of one call: those that landed, and how many failed with which error."""

    def set_buffered(self, byte_length: int, requests: int) -> None:
        """Accepted and not yet answered."""

    def count(self, name: str, value: int = 1) -> None: ...


class BatchingProducer:
    """One per process and appender; used on one event loop. `now_ms` must never go back (a monotonic clock)."""

    def __init__(
        self,
        appender: Appender,
        *,
        max_bytes: int,
        max_delay_ms: float,
        pool: MemoryPool,
        metrics: BatchingMetrics,
        now_ms: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        uploads_max: int = BATCH_UPLOADS_MAX,
        on_committed: Callable[[CommittedBatch], None] | None = None,
        pacing: Pacing | None = None,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        """`trouble`: why the stores take nothing now; while it says so, nothing is accepted."""
        wal = appender.context.wal
        if wal is None or max_bytes < 1 or max_delay_ms < 0 or uploads_max < 1:
            raise InvalidArgument("batching", "needs a store for blobs, and limits that leave room for something")
        self._appender, self._pool, self._metrics = appender, pool, metrics
        self._now_ms, self._sleep, self._uploads_max, self._trouble = now_ms, sleep, uploads_max, trouble
        self._pacing = pacing_of(wal.kind, max_delay_ms) if pacing is None else pacing
        self._buffer, self._order = Buffer(max_bytes), CommitOrder()
        self._newcomers = Newcomers(appender.committer.known, self._buffered)
        self._events = FlushEvents(now_ms, self._uploaded, on_committed, metrics.count)
        self._requests: dict[Request, None] = {}
        """Accepted, not answered."""
        self._drains: list[_Drain] = []
        self._byte_length = 0
        self._flushes: dict[asyncio.Task[None], Flush] = {}
        self._uploading = 0
        self._last_start_ms = float("-inf")
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_ms = float("inf")
        self._closing = False
        pool.on_pressure(self._pressed)

    # -- requests -----------------------------------------------------------------------------------------------------
    async def append(self, groups: Sequence[EncodedGroup]) -> list[Appended | LogError]:
        """One outcome per group, in order; at most one group per log. Cancelling it takes nothing back."""
        return (await self.append_timed(groups)).outcomes

    async def append_timed(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        """The same, and where the time went."""
        return await self.submit(groups)

    def submit(self, groups: Sequence[EncodedGroup]) -> asyncio.Future[TimedOutcomes]:
        """Accept the groups now, behind all that came before, or refuse all of them.

        Raises `InvalidArgument` for what can never be appended; nothing of such a call is accepted.
        """
        byte_lengths = self._checked(groups)
        charge = sum(byte_lengths) + len(groups) * BATCH_GROUP_OVERHEAD_BYTES
        if charge > self._pool.limit_bytes:
            raise ValueTooLarge("groups", charge, self._pool.limit_bytes)
        request = Request(len(groups), charge, self._now_ms(), self._answered)
        refusal = self._refusal(charge) if groups else None
        if refusal is not None or not groups:
            refused: list[Appended | LogError] = []
            if refusal is not None:
                errors = [refusal[0](*group.log, refusal[1]) for group in groups]
                self._metrics.observe_appends(0, 0, 0, failures_of(errors))
                refused += errors
            request.answered.set_result(TimedOutcomes(refused, NO_TIMINGS))
            return request.answered
        self._requests[request] = None
        self._byte_length += charge
        self._metrics.set_buffered(self._byte_length, len(self._requests))
        was_empty = not self._buffer
        for number, group in enumerate(groups):
            entry = Entry(request, number, group, byte_lengths[number])
            if not self._newcomers.take(entry):
                self._buffer.add(entry, request.accepted_ms)
        self._newcomers.look_up()
        # What joins others changes nothing for them, unless they are full now or memory is short.
        if was_empty or self._buffer.head_is_full() or self._pool.under_pressure:
            self._pump()
        return request.answered

    def _checked(self, groups: Sequence[EncodedGroup]) -> list[int]:
        """The length of each body."""
        if len(groups) > 1 and len({group.log for group in groups}) != len(groups):
            raise InvalidArgument("groups", "one log occurs twice in one append")
        byte_lengths = [total_length(group.body) for group in groups]
        for group, byte_length in zip(groups, byte_lengths, strict=True):
            if not self._newcomers.is_known(group.log):
                # A name that no key can be made of would fail the whole flush.
                check_topic(group.log.topic)
                check_partition(group.log.partition)
            if byte_length > _GROUP_BYTES_MAX:
                raise ValueTooLarge(f"group of {group.log}", byte_length, _GROUP_BYTES_MAX)
        return byte_lengths

    def _refusal(self, charge: int) -> tuple[type[LogError], str] | None:
        """Why the call is not accepted now; None: it is, and its bytes are taken."""
        if self._closing:
            return AppendNotCommitted, "the broker is closing, nothing was accepted; append elsewhere"
        trouble = self._trouble()
        if not trouble and self._pool.try_take(charge):
            return None
        self._metrics.count(REJECTIONS)
        if trouble:
            return BackPressureRejected, f"{trouble}; nothing was accepted"
        used, limit = self._pool.used, self._pool.limit_bytes
        return BackPressureRejected, f"{used} of {limit} bytes are buffered, no room for {charge}; nothing was accepted"

    def _answered(self, request: Request) -> None:
        del self._requests[request]
        self._byte_length -= request.byte_length
        self._pool.give(request.byte_length)
        self._metrics.set_buffered(self._byte_length, len(self._requests))
        tally = request.tally
        self._metrics.observe_appends(tally.groups, tally.records, tally.byte_length, tally.failures)
        for drain in self._drains:
            drain.answered(request)

    def _buffered(self, entries: Sequence[Entry]) -> None:
        """Of a log that is known now."""
        now_ms = self._now_ms()
        for entry in entries:
            self._buffer.add(entry, now_ms)
        if self._drains and not self._closing:
            self._buffer.hurry("call")  # a `flush` that came before them waits for them
        self._pump()

    # -- flushes ------------------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        """Start what is due, and be woken for what is not. Called whenever something has changed."""
        while self._buffer and self._uploading < self._uploads_max and len(self._flushes) < BATCH_FLUSHES_MAX:
            head, now_ms = self._buffer.head, self._now_ms()
            due = plan_flush(
                self._pacing,
                now_ms=now_ms,
                first_ms=head.first_ms,
                last_start_ms=self._last_start_ms,
                uploading=self._uploading > 0,
                full=self._buffer.head_is_full(),
                hurry=head.hurry or self._hurry(),
            )
            if not due.reason:
                self._wake_at(due.at_ms, now_ms)
                return
            self._start(self._buffer.pop(), due.reason, now_ms)

    def _pressed(self) -> None:
        self._buffer.hurry("pressure")
        self._pump()

    def _hurry(self) -> str:
        if self._closing:
            return "close"
        return "pressure" if self._pool.under_pressure else ""

    def _start(self, batch: Batch, reason: str, now_ms: float) -> None:
        self._last_start_ms = now_ms
        self._uploading += 1
        turn = self._order.next(list(batch.shares))
        flush = Flush(self._appender, batch, turn, reason, self._events)
        task = asyncio.create_task(self._run(flush, batch))
        self._flushes[task] = flush
        task.add_done_callback(self._flushed)

    async def _run(self, flush: Flush, batch: Batch) -> None:
        await flush.run()
        self._metrics.observe_flush(
            flush.reason, len(batch.shares), records_of(batch), batch.byte_length, *flush.timings()
        )

    def _uploaded(self) -> None:
        self._uploading -= 1
        self._pump()

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushes.pop(task).abandon("it was cancelled before it began")
        self._pump()

    def _wake_at(self, at_ms: float, now_ms: float) -> None:
        if self._alarm is not None:
            if self._alarm_ms <= at_ms:
                return
            self._alarm.cancel()
        self._alarm_ms = at_ms
        self._alarm = asyncio.create_task(self._wake(max(0.0, at_ms - now_ms)))

    async def _wake(self, wait_ms: float) -> None:
        await self._sleep(wait_ms / 1_000)
        self._alarm, self._alarm_ms = None, float("inf")
        self._pump()

    # -- the end ------------------------------------------------------------------------------------------------------
    async def flush(self) -> None:
        """Everything accepted so far is answered when this returns."""
        self._buffer.hurry("call")
        self._pump()
        await self._all_answered(None)

    def shed(self, reason: str) -> None:
        """Whoever waits for a flush that has not begun is told that nothing was accepted."""
        for batch in [self._buffer.pop() for _ in range(len(self._buffer))]:
            for entry in batch.entries():
                refuse([entry], BackPressureRejected(*entry.log, f"{reason}; nothing was accepted"))

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        """Flush everything, answer everybody; from now on every call is refused. Leaves the appender open. Once
        `at_once` is set, nobody is waited for any more."""
        self._closing = True
        self._pump()
        if not await self._all_answered(BATCH_CLOSE_WAIT_MS / 1_000, at_once):
            await self._give_up()
        if self._flushes:
            await asyncio.wait(self._flushes)
        if self._alarm is not None:
            self._alarm.cancel()

    async def _all_answered(self, timeout_s: float | None, at_once: asyncio.Event | None = None) -> bool:
        """Whether all that are accepted now were answered in time."""
        if not self._requests:
            return True
        drain = _Drain(self._requests)
        self._drains.append(drain)
        hurry: list[asyncio.Future[Any]] = [] if at_once is None else [asyncio.ensure_future(at_once.wait())]
        try:
            await asyncio.wait([drain.done, *hurry], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._drains.remove(drain)
            for waiting in hurry:
                waiting.cancel()
        return drain.done.done()

    async def _give_up(self) -> None:
        """Stores that answer nothing must not keep a broker alive: whoever still waits is told what can be told."""
        await self._newcomers.give_up()
        give_up([self._buffer.pop() for _ in range(len(self._buffer))])
        for task in self._flushes:
            task.cancel()


class _Drain:
    """Waits for the answers to some requests, whether or not their callers still do."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = set(requests)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, request: Request) -> None:
        self._left.discard(request)
        if not self._left and not self.done.done():
            self.done.set_result(None)
