"""One flush: a batch on its way through upload and commit, and what its requests are told.

A large flush is decided at once, by one answer of the store; its requests are told a few at a time, so that others get
their turn of the event loop between.

What must stay true: every entry is told once, whatever happens: refused log by log, failed as a whole, cancelled at
close. Before its turn to commit has come nothing of a flush can be in a log, so a failure there is "not committed,
append again"; from then on, what has no outcome of its own is "nobody can tell".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from llog.broker.produce.buffer import Batch
from llog.broker.produce.groups import CommittedBatch, committed_of, share_out
from llog.broker.produce.order import Turn, gated
from llog.broker.produce.requests import Timings, refuse
from llog.errors import AppendNotCommitted, AppendUncertain, LlogError, LogError
from llog.log.append.append import Appender, AppendOutcome, EncodedGroup
from llog.log.keys import Log

# Logs of a flush whose requests are told its outcome before others get their turn: about two milliseconds.
BATCH_LOGS_TOLD_PER_TURN: Final = 128


logger = logging.getLogger(__name__)
FLUSH_FAILURES: Final = "batching_flush_failures"
"""Flushes that ended without an outcome for each of their logs."""
LISTENER_FAILURES: Final = "batching_listener_failures"


class FlushEvents(NamedTuple):
    """Whom a flush tells what, beside its requests."""

    now_ms: Callable[[], float]
    on_uploaded: Callable[[], None]
    """Its upload is over, well or not; told once."""
    on_committed: Callable[[CommittedBatch], None] | None
    on_trouble: Callable[[str], None]
    """Counted under that name."""


class Flush:
    def __init__(self, appender: Appender, batch: Batch, turn: Turn, reason: str, events: FlushEvents) -> None:
        self._appender, self._batch, self._turn, self._events = appender, batch, turn, events
        self.reason = reason
        self.started_ms = events.now_ms()
        self._uploaded_ms: float | None = None
        self._may_be_committed = False
        self._open = dict(batch.shares)
        """Those that were not told an outcome yet."""
        self._decided: deque[tuple[EncodedGroup, AppendOutcome]] = deque()
        """Outcomes that wait for the loop's next turn to be told."""
        self._told_this_turn = 0
        self._all_told = asyncio.Event()

    async def run(self) -> None:
        """Never raises, but when it is cancelled; its requests have their answers either way."""
        try:
            groups = [share.joined() for share in self._batch.shares.values()]
            appender = gated(self._appender, self._stored)
            outcomes = await appender.append(groups, self._decide)
            await self._rest_is_told()
            for group, outcome in zip(groups, outcomes, strict=True):
                if group.log in self._open:
                    self._tell(group, outcome)
            self._upload_is_over()  # there was none, if no log could be appended to
        except asyncio.CancelledError:
            self.abandon("the broker is closing")
            raise
        except LlogError as error:
            self.abandon(str(error))
        except Exception as bug:
            logger.exception("a flush of %d logs failed", len(self._batch.shares))
            self.abandon(repr(bug))

    async def _stored(self) -> None:
        """The blob is durable (R1); next is its commit, in its turn."""
        self._upload_is_over()
        await self._turn.come()
        self._may_be_committed = True

    def _upload_is_over(self) -> None:
        if self._uploaded_ms is None:
            self._uploaded_ms = self._events.now_ms()
            self._events.on_uploaded()

    def timings(self) -> Timings:
        """As of now: of the batch's oldest entry."""
        now_ms = self._events.now_ms()
        uploaded_ms = now_ms if self._uploaded_ms is None else self._uploaded_ms
        queue_ms = self.started_ms - self._batch.first_ms
        return Timings(queue_ms, uploaded_ms - self.started_ms, now_ms - uploaded_ms)

    # -- outcomes -----------------------------------------------------------------------------------------------------
    def _decide(self, group: EncodedGroup, outcome: AppendOutcome) -> None:
        if self._told_this_turn < BATCH_LOGS_TOLD_PER_TURN and not self._decided:
            if self._told_this_turn == 0:
                asyncio.get_running_loop().call_soon(self._tell_more)
            self._told_this_turn += 1
            self._tell(group, outcome)
        else:
            self._decided.append((group, outcome))

    def _tell_more(self) -> None:
        self._told_this_turn = 0
        while self._decided and self._told_this_turn < BATCH_LOGS_TOLD_PER_TURN:
            self._told_this_turn += 1
            self._tell_next()
        if self._told_this_turn:
            asyncio.get_running_loop().call_soon(self._tell_more)
        if not self._decided:
            self._all_told.set()

    def _tell_next(self) -> None:
        group, outcome = self._decided.popleft()
        try:
            self._tell(group, outcome)
        except Exception:  # whoever was not told then is told in the end that the flush failed
            logger.exception("the outcome of %s could not be told", group.log)

    async def _rest_is_told(self) -> None:
        while self._decided:
            self._all_told.clear()
            await self._all_told.wait()

    def _tell(self, group: EncodedGroup, outcome: AppendOutcome) -> None:
        """First the cache, so that whoever hears of an append can read it from there."""
        share, timings = self._open[group.log], self.timings()
        keys = self._appender.context.keys
        shared = share_out(group, outcome, [entry.group for entry in share.entries], keys)
        self._publish(group, outcome)
        self._turn.leave(group.log)
        del self._open[group.log]
        _, upload_ms, commit_ms = timings
        for entry, mine in zip(share.entries, shared, strict=True):
            entry.tell(mine, Timings(entry.queue_ms(self.started_ms), upload_ms, commit_ms))

    def _publish(self, group: EncodedGroup, outcome: AppendOutcome) -> None:
        if self._events.on_committed is None:
            return
        try:
            for committed in committed_of(group, outcome):
                self._events.on_committed(committed)
        except Exception:
            # A cache is an optimisation: its trouble must not touch what is committed.
            logger.exception("a listener to committed batches failed on %s", group.log)
            self._events.on_trouble(LISTENER_FAILURES)

    def abandon(self, reason: str) -> None:
        """Answer who has no answer yet, and let the next flushes go on. Idempotent."""
        self._upload_is_over()
        while self._decided:
            self._tell_next()
        if self._open:
            self._events.on_trouble(FLUSH_FAILURES)
        timings = self.timings()
        for log, share in self._open.items():
            error = self._error(log, reason)
            for entry in share.entries:
                refuse([entry], error, timings._replace(queue_ms=entry.queue_ms(self.started_ms)))
        self._open = {}
        self._turn.leave_all()

    def _error(self, log: Log, reason: str) -> LogError:
        if self._may_be_committed:
            return AppendUncertain(*log, f"its commit was not seen to end: {reason}")
        return AppendNotCommitted(*log, f"its flush failed: {reason}")


def records_of(batch: Batch) -> int:
    return sum(entry.group.msg_count for entry in batch.entries())


def give_up(batches: Sequence[Batch]) -> None:
    """Answer those that never began."""
    for batch in batches:
        for entry in batch.entries():
            refuse([entry], AppendNotCommitted(*entry.log, "the broker is closing, and its flush had not begun"))
