"""What became of a call's record groups, in numbers: for the metrics, once per call.

Why it exists: whether appends land is the first thing an operator wants to know, and every way out of the batching
producer (a commit, a refusal, a flush that failed, a log that could not be looked up, a close) ends in one outcome per
group. Counted there, none is forgotten; added up per call, a call of many groups costs as little as one of few.

What must stay true: records and bytes are counted once they are in a log, and a repeat of what was there before is not
counted again; a batch of a group that was refused while its neighbours landed is a failure of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from llog.log.append.append import Appended, AppendOutcome, EncodedGroup
from llog.log.append.pieces import Landed


class Tally:
    __slots__ = ("byte_length", "failures", "groups", "records")

    def __init__(self) -> None:
        self.groups = self.records = self.byte_length = 0
        """Of what landed."""
        self.failures: dict[str, int] = {}
        """By the name of the error."""

    def note(self, group: EncodedGroup, byte_length: int, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            self._fail(outcome)
            return
        self.groups += 1
        if len(outcome.pieces) == 1 and isinstance(outcome.pieces[0], Landed):  # nearly always
            if not outcome.pieces[0].repeated:
                self.records += group.msg_count
                self.byte_length += byte_length
            return
        for piece, landed in zip(group.pieces, outcome.pieces, strict=True):
            if not isinstance(landed, Landed):
                self._fail(landed)
            elif not landed.repeated:
                self.records += piece.msg_count
                self.byte_length += piece.byte_length

    def _fail(self, error: Exception) -> None:
        name = type(error).__name__
        self.failures[name] = self.failures.get(name, 0) + 1


def failures_of(errors: Iterable[Exception]) -> dict[str, int]:
    return dict(Counter(type(error).__name__ for error in errors))
