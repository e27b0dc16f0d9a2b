"""Flushes: when one starts, the order in which flushes commit, and the answers to the calls of a batch.

A pure rule (`plan_flush`) decides when the buffer is flushed:

    full, memory is short, or requested      at once
    the oldest record waited `max_delay_ms`  at once: the promise of LLOG_BATCH_MAX_DELAY_MS
    a blob is being uploaded                 after that upload: records that arrive meanwhile share the next blob
    nothing is being uploaded                after `gather_ms`, and a pause after the start of the last flush

Waiting makes blobs larger, and each blob costs a put. Where a put costs money, flushes that are not full start at most
BATCH_REMOTE_PUTS_PER_SECOND times a second: a single record after a pause goes at once, a steady trickle waits up to a
quarter of a second. On a local store a put is free, but each flush takes processor time whatever its size: a trickle
would keep a core busy with hundreds of small flushes a second. So a small flush pauses after the last one until that
one took no more than BATCH_CORE_FRACTION of a core, by what its logs and groups usually cost (`pause_of`). Larger ones
start as soon as the disk is idle. `max_delay_ms` overrides the pause.

Uploads of flushes overlap, but the commits of one log keep the order of flushes (`CommitOrder`): otherwise the second
upload might end first, and a producer's records would overtake each other.

Every group is answered once, whatever happens: refused with its log, failed with the whole flush, or cancelled at
close. Before the commit starts, nothing of a flush can be in a log, so a failure means "not committed, append again".
After that, a group without an outcome of its own is uncertain.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from llog.broker.produce.buffer import FlushBatch, Timings
from llog.broker.produce.groups import CommittedBatch, committed_of, share_out
from llog.errors import AppendNotCommitted, AppendUncertain, LlogError, LogError
from llog.limits import KIB
from llog.log.append.append import Appender, AppendOutcome, EncodedGroup
from llog.log.keys import Log
from llog.settings.urls import LOCAL_SCHEMES

# How long an idle broker gathers records before it flushes, so that simultaneous calls share a blob.
BATCH_GATHER_MS: Final = 1
# What the pause counts for a flush: for any, for each log, for each group of a call with its request. Chosen so that a
# trickle over 16 logs stays below 0.3 of a core; a log of a full flush costs less (docs/performance.md).
BATCH_FLUSH_COST_MS: Final = 0.4
BATCH_LOG_COST_MS: Final = 0.2
BATCH_GROUP_COST_MS: Final = 0.03
# Part of a core that small flushes may take on a local store …
BATCH_CORE_FRACTION: Final = 0.2
# … as long as the pause between their starts is not longer than this.
BATCH_PAUSE_MS_MAX: Final = 20
# From this size on, the bytes of a flush cost more than the flush itself.
BATCH_SMALL_BYTES_MAX: Final = 512 * KIB
# Cost target where a put costs money. Four puts a second are about 50 dollars a month at 0.005 dollars per thousand.
BATCH_REMOTE_PUTS_PER_SECOND: Final = 4
# Logs of a flush that one call commits; each takes about 50 µs of the event loop.
BATCH_LOGS_PER_COMMIT: Final = 256
# Logs of a flush with calls that are answered in one turn of the event loop: about 2 ms.
BATCH_LOGS_ANSWERED_PER_TURN: Final = 128

FLUSH_FAILURES: Final = "batching_flush_failures"
"""Flushes that ended without an outcome for each of their logs."""
LISTENER_FAILURES: Final = "batching_listener_failures"

logger = logging.getLogger(__name__)


# -- when ------------------------------------------------------------------------------------------------------------


class Pacing(NamedTuple):
    max_delay_ms: float
    gather_ms: float = BATCH_GATHER_MS
    interval_ms: float = 0.0
    """Minimum between the starts of two flushes that are not full."""
    core_fraction: float = 0.0
    """Part of a core that small flushes may take; 0: any."""


def pacing_of(store_kind: str, max_delay_ms: float) -> Pacing:
    """The pacing for blobs in a store of that kind (`file`, `s3`)."""
    if store_kind in LOCAL_SCHEMES:
        return Pacing(max_delay_ms, core_fraction=BATCH_CORE_FRACTION)
    return Pacing(max_delay_ms, interval_ms=1_000 / BATCH_REMOTE_PUTS_PER_SECOND)


def pause_of(pacing: Pacing, logs: int, groups: int) -> float:
    """Milliseconds from the start of a flush of so many logs and groups to the start of the next one, if that is
    small."""
    if not pacing.core_fraction:
        return 0.0
    cost_ms = BATCH_FLUSH_COST_MS + logs * BATCH_LOG_COST_MS + groups * BATCH_GROUP_COST_MS
    return min(BATCH_PAUSE_MS_MAX, cost_ms / pacing.core_fraction)


class FlushDue(NamedTuple):
    at_ms: float
    reason: str = ""
    """Empty: not now; ask again at that time, or when something has changed."""


def plan_flush(
    pacing: Pacing,
    *,
    now_ms: float,
    first_ms: float,
    last_start_ms: float,
    uploading: bool,
    full: bool,
    urgency: str,
    pause_ms: float = 0.0,
) -> FlushDue:
    """`first_ms` is when the oldest record was buffered, `last_start_ms` when the last flush started, `pause_ms` how
    long after that this one waits; `urgency` names a reason not to wait."""
    if full:
        return FlushDue(now_ms, "size")
    if urgency:
        return FlushDue(now_ms, urgency)
    bound_ms = first_ms + pacing.max_delay_ms
    if now_ms >= bound_ms:
        return FlushDue(now_ms, "delay")
    if uploading:
        return FlushDue(bound_ms)
    pause_ms = max(pause_ms, pacing.interval_ms)
    earliest_ms = min(bound_ms, max(first_ms + pacing.gather_ms, last_start_ms + pause_ms))
    return FlushDue(now_ms, "idle") if now_ms >= earliest_ms else FlushDue(earliest_ms)


# -- in which order --------------------------------------------------------------------------------------------------


class CommitTurn:
    """The place of one flush in the commit order of each of its logs."""

    __slots__ = ("_before", "_latest", "_own", "_released")

    def __init__(self, latest: dict[Log, asyncio.Future[None]], logs: Iterable[Log]) -> None:
        create = asyncio.get_running_loop().create_future
        self._latest = latest
        self._own = {log: create() for log in logs}
        self._before = {log: latest[log] for log in self._own if log in latest}
        self._released: set[Log] = set()
        latest.update(self._own)

    async def wait(self) -> None:
        """Until every earlier flush has decided the logs it shares with this one."""
        undecided = [before for before in self._before.values() if not before.done()]
        if undecided:
            await asyncio.wait(undecided)

    def release(self, log: Log) -> None:
        """Let the next flush commit the log; call when it has its outcome. Idempotent.

        A flush that fails before its turn must not let the next flush pass the one before it.
        """
        if log in self._released:
            return
        self._released.add(log)
        before = self._before.get(log)
        if before is None or before.done():
            self._open(log)
        else:
            before.add_done_callback(lambda _: self._open(log))

    def release_all(self) -> None:
        for log in self._own:
            self.release(log)

    def _open(self, log: Log) -> None:
        own = self._own[log]
        own.set_result(None)
        if self._latest.get(log) is own:
            del self._latest[log]


class CommitOrder:
    """Hands out turns. A flush waits only for earlier flushes, so there is no circular wait, and an earlier flush that
    fails lets the later ones go on."""

    def __init__(self) -> None:
        self._latest: dict[Log, asyncio.Future[None]] = {}

    def next(self, logs: Iterable[Log]) -> CommitTurn:
        """A turn behind all turns handed out before."""
        return CommitTurn(self._latest, logs)


# -- one flush -------------------------------------------------------------------------------------------------------


class FlushEvents(NamedTuple):
    """Callbacks of a flush, beside the answers to its calls."""

    now_ms: Callable[[], float]
    on_uploaded: Callable[[], None]
    """The upload ended, with or without success; called once."""
    on_committed: Callable[[CommittedBatch], None] | None
    count_failure: Callable[[str], None]
    """By metric name."""


class Flush:
    def __init__(
        self, appender: Appender, batch: FlushBatch, turn: CommitTurn, reason: str, events: FlushEvents
    ) -> None:
        self._appender, self._batch, self._turn, self._events = appender, batch, turn, events
        self.reason = reason
        self.started_ms = events.now_ms()
        self._uploaded_ms: float | None = None
        self._may_be_committed = False
        self._unanswered = dict(batch.by_log)
        self._decided: deque[tuple[EncodedGroup, AppendOutcome]] = deque()
        """Outcomes that wait for the next turn of the event loop."""
        self._answered_this_turn = 0
        self._queue_empty = asyncio.Event()

    async def run(self) -> None:
        """Upload, commit and answer. Raises only when cancelled, and answers the calls in that case too."""
        try:
            groups = [log_groups.join() for log_groups in self._batch.by_log.values()]
            outcomes = await self._appender.append(
                groups, self._decide, before_commit=self._wait_turn, logs_per_commit=BATCH_LOGS_PER_COMMIT
            )
            await self._drain_decided()
            for group, outcome in zip(groups, outcomes, strict=True):
                if group.log in self._unanswered:
                    self._answer(group, outcome)
            self._end_upload()  # without an upload, if every log was refused
        except asyncio.CancelledError:
            self.abandon("the broker is closing")
            raise
        except LlogError as error:
            self.abandon(str(error))
        except Exception as bug:
            logger.exception("a flush of %d logs failed", len(self._batch.by_log))
            self.abandon(repr(bug))

    async def _wait_turn(self) -> None:
        """Runs between upload and commit: the blob is durable (R1), and earlier flushes of the same logs go first."""
        self._end_upload()
        await self._turn.wait()
        self._may_be_committed = True

    def _end_upload(self) -> None:
        if self._uploaded_ms is None:
            self._uploaded_ms = self._events.now_ms()
            self._events.on_uploaded()

    def timings(self) -> Timings:
        """Timings of the batch's oldest group, as of now."""
        now_ms = self._events.now_ms()
        uploaded_ms = now_ms if self._uploaded_ms is None else self._uploaded_ms
        queue_ms = self.started_ms - self._batch.first_ms
        return Timings(queue_ms, uploaded_ms - self.started_ms, now_ms - uploaded_ms)

    # -- answers ------------------------------------------------------------------------------------------------------
    def _decide(self, group: EncodedGroup, outcome: AppendOutcome) -> None:
        """Answer now, or queue the answer: one metadata write may decide very many logs at once."""
        if self._answered_this_turn < BATCH_LOGS_ANSWERED_PER_TURN and not self._decided:
            if self._answered_this_turn == 0:
                asyncio.get_running_loop().call_soon(self._answer_queued)
            self._answered_this_turn += 1
            self._answer(group, outcome)
        else:
            self._decided.append((group, outcome))

    def _answer_queued(self) -> None:
        self._answered_this_turn = 0
        while self._decided and self._answered_this_turn < BATCH_LOGS_ANSWERED_PER_TURN:
            self._answered_this_turn += 1
            self._answer_next()
        if self._answered_this_turn:
            asyncio.get_running_loop().call_soon(self._answer_queued)
        if not self._decided:
            self._queue_empty.set()

    def _answer_next(self) -> None:
        group, outcome = self._decided.popleft()
        try:
            self._answer(group, outcome)
        except Exception:  # `abandon` answers the calls that are still open
            logger.exception("cannot answer the calls for log %s", group.log)

    async def _drain_decided(self) -> None:
        while self._decided:
            self._queue_empty.clear()
            await self._queue_empty.wait()

    def _answer(self, group: EncodedGroup, outcome: AppendOutcome) -> None:
        """Fill the cache first, so that a caller who receives an answer can read its records from the cache."""
        members, timings = self._unanswered[group.log].members, self.timings()
        keys = self._appender.context.keys
        outcomes = share_out(group, outcome, [member.group for member in members], keys)
        self._publish(group, outcome)
        self._turn.release(group.log)
        del self._unanswered[group.log]
        _, upload_ms, commit_ms = timings
        for member, own in zip(members, outcomes, strict=True):
            member.set_outcome(own, Timings(member.queue_ms(self.started_ms), upload_ms, commit_ms))

    def _publish(self, group: EncodedGroup, outcome: AppendOutcome) -> None:
        if self._events.on_committed is None:
            return
        try:
            for committed in committed_of(group, outcome):
                self._events.on_committed(committed)
        except Exception:
            # The cache is an optimisation: its failure must not change the outcome of a commit.
            logger.exception("a listener to committed batches failed on log %s", group.log)
            self._events.count_failure(LISTENER_FAILURES)

    def abandon(self, reason: str) -> None:
        """Answer the calls that have no answer yet, and let later flushes go on. Idempotent."""
        self._end_upload()
        while self._decided:
            self._answer_next()
        if self._unanswered:
            self._events.count_failure(FLUSH_FAILURES)
        timings = self.timings()
        for log, log_groups in self._unanswered.items():
            error = self._error(log, reason)
            for member in log_groups.members:
                member.refuse(error, timings._replace(queue_ms=member.queue_ms(self.started_ms)))
        self._unanswered = {}
        self._turn.release_all()

    def _error(self, log: Log, reason: str) -> LogError:
        if self._may_be_committed:
            return AppendUncertain(*log, f"its commit was not seen to end: {reason}")
        return AppendNotCommitted(*log, f"its flush failed: {reason}")
