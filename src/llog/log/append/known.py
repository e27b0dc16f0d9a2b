"""One log in this process: what is known of it, its turn to append, its fairness to other writers, and its part in a
commit.

Knowledge decides nothing by itself: a conditional write or a strict read confirms it (R7). It saves reads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from llog.errors import (
    AppendNotCommitted,
    DuplicateSequence,
    LogError,
    LogFenced,
    OutOfOrderSequence,
    ProducerEpochFenced,
    UnknownProducer,
)
from llog.formats.values import ControlRecord
from llog.log.append.pieces import AppendSlice, Landed, PieceOutcome, PlacedPiece
from llog.log.context import LogContext
from llog.log.control import PieceVerdict, Refusal, refusal_of
from llog.log.keys import Log
from llog.log.producer_state import KnownProducers
from llog.log.topics.create import Expected, FirstWrite, initialize

LOG_KNOWN_MAX: Final = 100_000
# A writer that won this many commits in a row on a log with other writers pauses once …
LOG_YIELD_AFTER_COMMITS: Final = 8
# … and on a log where it met no other writer, after twice as many commits each time, up to this many.
LOG_YIELD_TRIAL_COMMITS_MAX: Final = 64
# Commits further apart than this leave room for other writers anyway.
LOG_YIELD_GAP_MS: Final = 50
# How long a log counts as contended after a lost race.
LOG_CONTENDED_MS: Final = 10_000

PieceOutcomes = list[PieceOutcome | None]
"""One per piece, in order. None: not from this blob (too old, or of another incarnation); upload again."""
OnDone = Callable[[Log, PieceOutcomes], None]


class Fairness:
    """Decides when a writer of one log pauses so that other writers get a turn.

    On a compare-and-set store the last winner needs two round trips for its next append, a loser three or four. So a
    writer that appends without a pause would win for ever, and never learn that others wait: refused attempts leave no
    trace. It therefore pauses now and then on trial; if its next attempt is refused, there are others, and it pauses
    more often. A writer with gaps between its appends never waits, and a single writer hardly ever.

    Times come from the caller's clock and are only compared with each other.
    """

    __slots__ = ("_commits_in_row", "_contended_at_ms", "_last_commit_ms", "_trial_after_commits")

    def __init__(self) -> None:
        self._commits_in_row = 0
        self._trial_after_commits = LOG_YIELD_AFTER_COMMITS
        self._last_commit_ms = self._contended_at_ms = -LOG_CONTENDED_MS

    def lost(self, now_ms: int) -> None:
        """Another writer changed the log first."""
        self._commits_in_row, self._contended_at_ms = 0, now_ms
        self._trial_after_commits = LOG_YIELD_AFTER_COMMITS

    def won(self, now_ms: int) -> None:
        close = 0 <= now_ms - self._last_commit_ms <= LOG_YIELD_GAP_MS
        self._commits_in_row = self._commits_in_row + 1 if close else 1
        self._last_commit_ms = now_ms

    def should_yield(self, now_ms: int, *, on_trial: bool) -> bool:
        """True once per row of commits: a True answer starts a new row. `on_trial`: also without known contention."""
        if now_ms - self._contended_at_ms <= LOG_CONTENDED_MS:
            due = self._commits_in_row >= LOG_YIELD_AFTER_COMMITS
        else:
            due = on_trial and self._commits_in_row >= self._trial_after_commits
            if due:
                self._trial_after_commits = min(LOG_YIELD_TRIAL_COMMITS_MAX, 2 * self._trial_after_commits)
        if due:
            self._commits_in_row = 0
        return due


class KnownLog:
    """One log: control at a version, and whether its pending append is settled."""

    __slots__ = (
        "control",
        "fairness",
        "fresh",
        "pins",
        "producers",
        "settled_append_id",
        "settling",
        "turn",
        "version",
    )

    def __init__(self, control: ControlRecord, version: int) -> None:
        self.control, self.version = control, version
        self.fresh = True
        """False once the log turned out to have another incarnation."""
        self.pins = 0
        """Appends in progress; a pinned log is not forgotten."""
        self.settled_append_id: str | None = None
        self.settling: asyncio.Task[None] | None = None
        self.producers = KnownProducers()
        self.fairness = Fairness()
        self.turn = asyncio.Lock()
        """Held while an append commits: appends of one log commit one at a time, in the order in which they wait."""

    def update(self, control: ControlRecord, version: int) -> None:
        self.control, self.version = control, version

    def is_settled(self) -> bool:
        """Whether the next append may replace `pending` (R2)."""
        pending = self.control.pending
        return pending is None or pending.append_id == self.settled_append_id


class Growth(Enum):
    """What appends of a process may do to the partition count of a topic."""

    FIRST_WRITE = "first write"
    """Create a missing topic with the partitions that the append names; an existing topic keeps its count."""
    HTTP = "http"
    """Also add partitions to a topic that a first write created."""
    ADMINISTERED = "administered"
    """Create and extend any topic: recovery restores what administration had created."""


class KnownLogs:
    """Bounded: idle logs are forgotten, oldest first, and read again at the next append."""

    def __init__(self, context: LogContext, *, first_offset: int, growth: Growth) -> None:
        self._context, self._first_offset, self._growth = context, first_offset, growth
        self._known: dict[Log, KnownLog] = {}

    def __getitem__(self, log: Log) -> KnownLog:
        return self._known[log]

    def get(self, log: Log) -> KnownLog | None:
        return self._known.get(log)

    def logs(self) -> list[Log]:
        return list(self._known)

    def partition_counts(self, logs: Iterable[Log]) -> dict[str, int]:
        """Per topic with a log that `know` must look up: how many partitions these logs name."""
        counts: dict[str, int] = {}
        for log in logs:
            known = self._known.get(log)
            if known is None or not known.fresh:
                counts[log.topic] = max(counts.get(log.topic, 0), log.partition + 1)
        return counts

    async def know(self, log: Log, partitions: int = 0, expected: Expected | None = None) -> int:
        """The incarnation to append under; initializes the log if necessary. Pins the log until `release`.

        `partitions`: how many partitions the whole append names, for a topic that the append creates. Knowledge of an
        earlier incarnation than the `expected` one is stale, and the log is looked up again.
        """
        incarnation = self.pin(log, expected)
        if incarnation is not None:
            return incarnation
        write = None
        if self._growth is not Growth.ADMINISTERED:
            write = FirstWrite(max(partitions, log.partition + 1), grows=self._growth is Growth.HTTP)
        stored = await initialize(self._context, log, first_offset=self._first_offset, write=write, expected=expected)
        if len(self._known) >= LOG_KNOWN_MAX:
            self._forget_idle()
        # A concurrent call may have been faster; its lock is the one that orders appends.
        known = self._known.setdefault(log, KnownLog(*stored))
        if not known.fresh or stored.version > known.version:
            known.update(*stored)
            known.producers.forget()
            known.fresh = True
        known.pins += 1
        return known.control.incarnation

    def pin(self, log: Log, expected: Expected | None = None) -> int | None:
        """`know` without waiting; None: the log must be looked up."""
        known = self._known.get(log)
        if known is None or not known.fresh:
            return None
        incarnation = known.control.incarnation
        if expected is not None and incarnation < expected.incarnation:
            return None
        known.pins += 1
        return incarnation

    def release(self, logs: Iterable[Log]) -> None:
        """Undo one `know` of each log."""
        for log in logs:
            self._known[log].pins -= 1

    def _forget_idle(self) -> None:
        idle = (log for log, known in self._known.items() if not known.pins and not known.turn.locked())
        for log in list(itertools.islice(idle, LOG_KNOWN_MAX // 10 + 1)):
            del self._known[log]


# -- one log's part in a commit ------------------------------------------------------------------------------------


class CommitAttempt:
    """One log's part of a commit: its open pieces and its progress. A piece gets one outcome, once; a piece without
    proof stays open."""

    __slots__ = (
        "_has_turn",
        "_needs_upload",
        "_on_done",
        "confirmed",
        "doubted",
        "known",
        "log",
        "outcomes",
        "progressed",
        "rounds",
        "slice",
    )

    def __init__(self, log: Log, known: KnownLog, slice_: AppendSlice, on_done: OnDone | None) -> None:
        self.log, self.known = log, known
        self.slice = slice_
        """Narrowed to the pieces without an outcome."""
        self.outcomes: PieceOutcomes = [None] * len(slice_.pieces)
        self.rounds = 0
        """Rounds since the last progress; bounded."""
        self.progressed = self.doubted = False
        self.confirmed = False
        """Control was read strictly since the last round, so a refusal counts now."""
        self._needs_upload = self._has_turn = False
        self._on_done = on_done

    @property
    def open(self) -> bool:
        return bool(self.slice.pieces) and not self._needs_upload

    async def take_turn(self) -> None:
        await self.known.turn.acquire()
        self._has_turn = True

    def leave_turn(self) -> None:
        """Once decided, or when the commit fails as a whole. Idempotent."""
        if not self._has_turn:
            return
        self._has_turn = False
        self.known.turn.release()
        if self._on_done is not None and not self.open:
            self._on_done(self.log, self.outcomes)

    def begin_round(self) -> bool:
        """Whether a refusal of this round counts."""
        confirmed = self.confirmed
        self.confirmed = self.doubted = self.progressed = False
        return confirmed

    def end_round(self) -> int:
        self.rounds = 0 if self.progressed else self.rounds + 1
        return self.rounds

    def is_ready(self) -> bool:
        """Whether everything that `reserve` needs is at hand."""
        known = self.known
        if refusal_of(known.control, self.slice) is not None:
            return True
        return known.is_settled() and (not self.slice.has_claims() or known.producers.complete(known.control))

    # -- outcomes -----------------------------------------------------------------------------------------------------
    def decide(self, verdicts: Iterable[PieceVerdict]) -> None:
        self.set_outcomes(
            (number, outcome if isinstance(outcome, Landed) else error_of(self.log, outcome))
            for number, outcome in verdicts
        )

    def set_outcomes(self, outcomes: Iterable[tuple[int, PieceOutcome]]) -> None:
        for number, outcome in outcomes:
            self.outcomes[number] = outcome
            self.progressed = True
        left = tuple([piece for piece in self.slice.pieces if self.outcomes[piece.number] is None])
        self.slice = self.slice._replace(pieces=left)

    def fail(self, error: LogError) -> None:
        """Give every open piece this error."""
        self.set_outcomes([(piece.number, error) for piece in self.slice.pieces])

    def fail_run(self, run: Sequence[PlacedPiece], error: LogError) -> None:
        """Give the run this error, and stop: later pieces of the group must not overtake an uncertain run."""
        self.set_outcomes([(piece.number, error) for piece in run])
        self.fail(AppendNotCommitted(*self.log, "an earlier append of the same group got no answer; append again"))

    def refuse(self, refusal: Refusal) -> None:
        """Apply a refusal of the whole log."""
        if refusal.kind == "fenced":
            self.fail(error_of(self.log, refusal))
        elif refusal.kind == "expired":
            self._needs_upload = True
        else:
            # deleted, stale_control, stale_self: nothing of the open pieces is in a log. The next look-up reads the
            # topic's record: it finds or creates the current incarnation, or says why the topic takes no appends.
            self.set_stale()

    def set_stale(self) -> None:
        """The log has another incarnation than the blob was made for."""
        self.known.fresh = False
        self._needs_upload = True


_ERRORS: Final[Mapping[str, type[LogError]]] = {
    "duplicate": DuplicateSequence,
    "fenced": LogFenced,
    "old_epoch": ProducerEpochFenced,
    "out_of_order": OutOfOrderSequence,
    "unknown_producer": UnknownProducer,
}


def error_of(log: Log, refusal: Refusal) -> LogError:
    return _ERRORS[refusal.kind](*log, refusal.reason)
