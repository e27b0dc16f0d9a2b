"""One log's part of a flush while it is being committed: which of its pieces are still open, and how it stands.

What must stay true: a piece gets one outcome, once; what is not proven stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llog.errors import (
    AppendNotCommitted,
    LogDeleted,
    LogError,
    LogFenced,
    OutOfOrderSequence,
    ProducerEpochFenced,
)
from llog.log.append.known import Known
from llog.log.append.pieces import AppendSlice, Landed, PieceOutcome, PlacedPiece
from llog.log.control import PieceVerdict, Refusal
from llog.log.keys import Log

# One per piece, in order. None: not from this blob (too old, or of another life of the topic); upload again.
PieceOutcomes = list[PieceOutcome | None]


class Job:
    __slots__ = (
        "_again",
        "_in_turn",
        "_on_done",
        "confirmed",
        "doubted",
        "known",
        "log",
        "outcomes",
        "part",
        "progressed",
        "rounds",
    )

    def __init__(
        self, log: Log, known: Known, part: AppendSlice, on_done: Callable[[Log, PieceOutcomes], None] | None
    ) -> None:
        self.log, self.known = log, known
        self.part = part
        """Narrowed to the pieces that have no outcome yet."""
        self.outcomes: PieceOutcomes = [None] * len(part.pieces)
        self.rounds = 0
        """Since something was last decided: what is bounded."""
        self.progressed = self.doubted = False
        self.confirmed = False
        """Control was read strictly since the last round: a refusal counts now."""
        self._again = self._in_turn = False
        self._on_done = on_done

    @property
    def open(self) -> bool:
        return bool(self.part.pieces) and not self._again

    # -- turns and rounds ---------------------------------------------------------------------------------------------
    async def take_turn(self) -> None:
        await self.known.turn.acquire()
        self._in_turn = True

    def leave_turn(self) -> None:
        """Once decided, or when everything is given up. Idempotent."""
        if not self._in_turn:
            return
        self._in_turn = False
        self.known.turn.release()
        if self._on_done is not None and not self.open:
            self._on_done(self.log, self.outcomes)

    def begin_round(self) -> bool:
        """Does a refusal of this round count?"""
        confirmed = self.confirmed
        self.confirmed = self.doubted = self.progressed = False
        return confirmed

    def end_round(self) -> int:
        self.rounds = 0 if self.progressed else self.rounds + 1
        return self.rounds

    # -- outcomes -----------------------------------------------------------------------------------------------------
    def decide(self, verdicts: Iterable[PieceVerdict]) -> None:
        self.settle_pieces(
            (number, outcome if isinstance(outcome, Landed) else _refused(self.log, outcome))
            for number, outcome in verdicts
        )

    def settle_pieces(self, outcomes: Iterable[tuple[int, PieceOutcome]]) -> None:
        for number, outcome in outcomes:
            self.outcomes[number] = outcome
            self.progressed = True
        self.part = self.part._replace(pieces=tuple(p for p in self.part.pieces if self.outcomes[p.number] is None))

    def fail(self, error: LogError) -> None:
        """Everything that has no outcome yet."""
        self.settle_pieces([(piece.number, error) for piece in self.part.pieces])

    def fail_run(self, run: Sequence[PlacedPiece], error: LogError) -> None:
        """Nobody can tell of these; what came with them is not tried any more, so that nothing overtakes them."""
        self.settle_pieces([(piece.number, error) for piece in run])
        self.fail(AppendNotCommitted(*self.log, "an append of the same group before it got no answer; append again"))

    def refuse(self, refusal: Refusal) -> None:
        """The whole log, not a piece."""
        if refusal.kind in ("fenced", "deleted"):
            # A deleted topic may live again by the next append: that one looks at it anew.
            self.known.fresh = refusal.kind == "fenced"
            self.fail(_refused(self.log, refusal))
        elif refusal.kind == "expired":
            self._again = True
        else:  # stale_control, stale_self: the log has another life than this blob was made for
            self.is_of_another_life()

    def is_of_another_life(self) -> None:
        self.known.fresh = False
        self._again = True


_ERRORS: dict[str, type[LogError]] = {
    "fenced": LogFenced,
    "deleted": LogDeleted,
    "old_epoch": ProducerEpochFenced,
    "out_of_order": OutOfOrderSequence,
}


def _refused(log: Log, refusal: Refusal) -> LogError:
    return _ERRORS[refusal.kind](log.topic, log.partition, refusal.reason)
