"""The batching producer: coalesces the calls of all connections into few blobs.

    accept    take the call's bytes from the pool, or refuse the whole call            (`pool`)
    look up   find the control record of logs that are new to this process             (`buffer`)
    buffer    gather record groups in batches, joined per log                          (`buffer`, `groups`)
    flush     when a batch is full, or has no reason to wait                           (`flush`)
    commit    uploads overlap; the commits of one log keep the order of flushes        (`flush`)
    answer    each call gets the outcomes of its own groups, and its bytes are given back

An object store takes some hundred requests a second, and each costs money; a broker takes many thousand. Every accepted
call is answered, truly and once, also when stores fail, callers go away or the broker closes. Calls made in order are
committed in order, log by log. The pool bounds the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from llog.broker.produce.buffer import (
    NO_TIMINGS,
    CallGroup,
    FlushBatch,
    FlushBuffer,
    NewLogs,
    ProduceCall,
    TimedOutcomes,
    Timings,
)
from llog.broker.produce.flush import (
    BATCH_SMALL_BYTES_MAX,
    CommitOrder,
    Flush,
    FlushEvents,
    Pacing,
    pacing_of,
    pause_of,
    plan_flush,
)
from llog.broker.produce.groups import CommittedBatch
from llog.broker.produce.pool import MemoryPool
from llog.errors import AppendNotCommitted, BackPressureRejected, InvalidArgument, LogError, ValueTooLarge
from llog.limits import KIB, OBJECT_BYTES_MAX, SHARED_BLOB_HEADER_BYTES_MAX
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.keys import check_partition, check_topic

__all__ = ["BatchingMetrics", "BatchingProducer", "CommittedBatch", "TimedOutcomes", "Timings"]

# Blobs that one broker uploads at the same time …
BATCH_UPLOADS_MAX: Final = 4
# … and flushes between start and last outcome; later groups stay buffered.
BATCH_FLUSHES_MAX: Final = 16
# Memory of a buffered group beside its bytes; charged to the pool, so that tiny groups are bounded too.
BATCH_GROUP_OVERHEAD_BYTES: Final = KIB
# How long `close` waits for unfinished flushes before it answers their calls as uncertain.
BATCH_CLOSE_WAIT_MS: Final = 30_000
# One group must fit one blob.
BATCH_GROUP_BYTES_MAX: Final = OBJECT_BYTES_MAX - SHARED_BLOB_HEADER_BYTES_MAX

assert BATCH_UPLOADS_MAX <= BATCH_FLUSHES_MAX, "an upload is part of a flush"

REJECTIONS: Final = "batching_rejections"
"""Calls refused for lack of room in the pool, or because the stores are down."""


class BatchingMetrics(Protocol):
    """Receives the measurements of the producer."""

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
        """One flush ended. `reason`: size, delay, idle (nothing was being uploaded), pressure, call or close.
        `groups` are its logs; `queue_wait_ms` is how long its oldest record was buffered."""

    def observe_appends(
        self, groups: int, records: int, byte_length: int, failures: Mapping[str, int], payload_bytes: int = 0
    ) -> None:
        """The groups of one call that were appended, with the bytes of their records' values, and the number of
        failures by error class."""

    def set_buffered(self, byte_length: int, requests: int) -> None:
        """Bytes and calls that are accepted and not yet answered."""

    def count(self, name: str, value: int = 1) -> None: ...


class BatchingProducer:
    """One per process and appender; used on one event loop. `now_ms` must be a monotonic clock."""

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
        """`trouble` returns why the stores accept nothing now, or ""; while there is a reason, calls are refused."""
        wal = appender.context.wal
        if wal is None or max_bytes < 1 or max_delay_ms < 0 or uploads_max < 1:
            reason = "needs a store for blobs, max_bytes ≥ 1, max_delay_ms ≥ 0 and uploads_max ≥ 1"
            raise InvalidArgument("batching", reason)
        self._appender, self._pool, self._metrics = appender, pool, metrics
        self._now_ms, self._sleep, self._uploads_max, self._trouble = now_ms, sleep, uploads_max, trouble
        self._pacing = pacing_of(wal.kind, max_delay_ms) if pacing is None else pacing
        self._buffer, self._order = FlushBuffer(max_bytes), CommitOrder()
        self._new_logs = NewLogs(appender.committer.known, self._add_known)
        self._events = FlushEvents(now_ms, self._uploaded, on_committed, metrics.count)
        self._calls: dict[ProduceCall, None] = {}
        """Accepted and not answered."""
        self._drains: list[_Drain] = []
        self._byte_length = 0
        self._flushes: dict[asyncio.Task[None], Flush] = {}
        self._uploading = 0
        self._last_start_ms = float("-inf")
        self._pause_ms = 0.0
        """How long a small flush waits after the start of the last one."""
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_ms = float("inf")
        self._closing = False
        pool.on_pressure(self._on_pressure)

    @property
    def accepted_bytes(self) -> int:
        """Bytes of calls that were accepted and not answered."""
        return self._byte_length

    # -- calls --------------------------------------------------------------------------------------------------------
    async def append(self, groups: Sequence[EncodedGroup]) -> list[Appended | LogError]:
        """One outcome per group, in order; at most one group per log. Cancelling does not undo the append."""
        return (await self.append_timed(groups)).outcomes

    async def append_timed(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        """`append`, with the time spent in each stage."""
        return await self.submit(groups)

    def submit(self, groups: Sequence[EncodedGroup]) -> asyncio.Future[TimedOutcomes]:
        """Accept the groups now, behind all earlier calls, or refuse all of them.

        Raises `InvalidArgument` for groups that can never be appended; nothing of such a call is accepted.
        """
        byte_lengths = self._check(groups)
        charge = sum(byte_lengths) + len(groups) * BATCH_GROUP_OVERHEAD_BYTES
        if charge > self._pool.limit_bytes:
            raise ValueTooLarge("groups", charge, self._pool.limit_bytes)
        call = ProduceCall(len(groups), charge, self._now_ms(), self._on_answered)
        refusal = self._refusal(charge) if groups else None
        if refusal is not None or not groups:
            call.answer.set_result(TimedOutcomes(self._refuse(groups, refusal), NO_TIMINGS))
            return call.answer
        self._calls[call] = None
        self._byte_length += charge
        self._metrics.set_buffered(self._byte_length, len(self._calls))
        was_empty = not self._buffer
        for number, group in enumerate(groups):
            member = CallGroup(call, number, group, byte_lengths[number])
            if not self._new_logs.hold(member):
                self._buffer.add(member, call.accepted_ms)
        self._new_logs.start_lookups()
        # A group that joins others changes nothing for them, unless the batch is full now, or large enough to flush
        # while the disk is idle, or memory is short.
        if was_empty or self._buffer.head_is_full() or self._pool.under_pressure or self._is_large():
            self._pump()
        return call.answer

    def _is_large(self) -> bool:
        """Whether the next flush need not pause, and nothing is being uploaded."""
        return not self._uploading and bool(self._buffer) and self._buffer.head.byte_length > BATCH_SMALL_BYTES_MAX

    def _check(self, groups: Sequence[EncodedGroup]) -> list[int]:
        """The byte length of each body."""
        logs = [group.log for group in groups]
        if len(set(logs)) != len(logs):
            raise InvalidArgument("groups", "one log occurs twice in one append")
        for log in self._new_logs.unknown(logs):
            # An invalid name would fail the whole flush when its keys are built.
            check_topic(log.topic)
            check_partition(log.partition)
        byte_lengths = [group.byte_length for group in groups]
        largest = max(byte_lengths, default=0)
        if largest > BATCH_GROUP_BYTES_MAX:
            raise ValueTooLarge(f"group of {logs[byte_lengths.index(largest)]}", largest, BATCH_GROUP_BYTES_MAX)
        return byte_lengths

    def _refusal(self, charge: int) -> tuple[type[LogError], str] | None:
        """Why the call is refused; None: it is accepted, and its bytes are taken."""
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

    def _refuse(
        self, groups: Sequence[EncodedGroup], refusal: tuple[type[LogError], str] | None
    ) -> list[Appended | LogError]:
        if refusal is None:
            return []
        error, reason = refusal
        errors: list[Appended | LogError] = [error(*group.log, reason) for group in groups]
        self._metrics.observe_appends(0, 0, 0, {error.__name__: len(errors)})
        return errors

    def _on_answered(self, call: ProduceCall) -> None:
        del self._calls[call]
        self._byte_length -= call.byte_length
        self._pool.give(call.byte_length)
        self._metrics.set_buffered(self._byte_length, len(self._calls))
        tally = call.tally
        self._metrics.observe_appends(
            tally.groups, tally.records, tally.byte_length, tally.failures, tally.payload_bytes
        )
        for drain in self._drains:
            drain.answered(call)

    def _add_known(self, members: Sequence[CallGroup]) -> None:
        """Buffer the groups of a log that is known now."""
        now_ms = self._now_ms()
        for member in members:
            self._buffer.add(member, now_ms)
        if self._drains and not self._closing:
            self._buffer.expedite("call")  # an earlier `flush` waits for them
        self._pump()

    # -- flushes ------------------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        """Start the flushes that are due, and set the alarm for the next one. Called after every change."""
        while self._buffer and self._uploading < self._uploads_max and len(self._flushes) < BATCH_FLUSHES_MAX:
            head, now_ms = self._buffer.head, self._now_ms()
            due = plan_flush(
                self._pacing,
                now_ms=now_ms,
                first_ms=head.first_ms,
                last_start_ms=self._last_start_ms,
                uploading=self._uploading > 0,
                full=self._buffer.head_is_full(),
                urgency=head.urgency or self._urgency(),
                pause_ms=self._pause_ms if head.byte_length <= BATCH_SMALL_BYTES_MAX else 0.0,
            )
            if not due.reason:
                self._wake_at(due.at_ms, now_ms)
                return
            self._start(self._buffer.pop(), due.reason, now_ms)

    def _on_pressure(self) -> None:
        self._buffer.expedite("pressure")
        self._pump()

    def _urgency(self) -> str:
        if self._closing:
            return "close"
        return "pressure" if self._pool.under_pressure else ""

    def _start(self, batch: FlushBatch, reason: str, now_ms: float) -> None:
        self._last_start_ms = now_ms
        self._pause_ms = pause_of(self._pacing, len(batch.by_log), batch.group_count)
        self._uploading += 1
        turn = self._order.next(batch.by_log)
        flush = Flush(self._appender, batch, turn, reason, self._events)
        task = asyncio.create_task(self._run(flush, batch))
        self._flushes[task] = flush
        task.add_done_callback(self._flushed)

    async def _run(self, flush: Flush, batch: FlushBatch) -> None:
        await flush.run()
        self._metrics.observe_flush(
            flush.reason, len(batch.by_log), batch.record_count(), batch.byte_length, *flush.timings()
        )

    def _uploaded(self) -> None:
        self._uploading -= 1
        self._pump()

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushes.pop(task).abandon("it was cancelled before it started")
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
        """Return when every call accepted so far is answered."""
        self._buffer.expedite("call")
        self._pump()
        await self._all_answered(None)

    def shed(self, reason: str) -> None:
        """Refuse every group that is not in a started flush: nothing of it was accepted."""
        self._buffer.refuse_all(BackPressureRejected, f"{reason}; nothing was accepted")

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        """Flush and answer everything; refuse every later call. The appender stays open. Setting `at_once` ends the
        wait for unfinished flushes."""
        self._closing = True
        self._pump()
        if not await self._all_answered(BATCH_CLOSE_WAIT_MS / 1_000, at_once):
            await self._give_up()
        if self._flushes:
            await asyncio.wait(self._flushes)
        if self._alarm is not None:
            self._alarm.cancel()

    async def _all_answered(self, timeout_s: float | None, at_once: asyncio.Event | None = None) -> bool:
        """Whether all calls that are accepted now were answered in time."""
        if not self._calls:
            return True
        drain = _Drain(self._calls)
        self._drains.append(drain)
        stops: list[asyncio.Future[Any]] = [] if at_once is None else [asyncio.ensure_future(at_once.wait())]
        try:
            await asyncio.wait([drain.done, *stops], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._drains.remove(drain)
            for stop in stops:
                stop.cancel()
        return drain.done.done()

    async def _give_up(self) -> None:
        """Answer all open calls: stores that do not answer must not keep the broker alive."""
        await self._new_logs.cancel()
        reason = "the broker is closing and its flush had not started; append elsewhere"
        self._buffer.refuse_all(AppendNotCommitted, reason)
        for task in self._flushes:
            task.cancel()


class _Drain:
    """Waits until some calls are answered, even if their callers have gone."""

    def __init__(self, calls: Iterable[ProduceCall]) -> None:
        self._left = set(calls)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, call: ProduceCall) -> None:
        self._left.discard(call)
        if not self._left and not self.done.done():
            self.done.set_result(None)
