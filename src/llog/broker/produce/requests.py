"""Requests inside the batching producer: one call's groups, each on its own way through some flush.

Why it exists: the groups of one call may go with different flushes, and one flush answers many calls. A request is
answered when the last of its groups is; its bytes are given back then, and not before.

What must stay true: each group gets one outcome, once. A caller that goes away changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from llog.broker.produce.tally import Tally
from llog.errors import LogError
from llog.log.append.append import Appended, AppendOutcome, EncodedGroup
from llog.log.keys import Log


class Timings(NamedTuple):
    """Where the time of a request went; of several flushes, the longest of each. Failed stages count as well."""

    queue_ms: float = 0.0
    """From acceptance to the beginning of its flush."""
    upload_ms: float = 0.0
    commit_ms: float = 0.0
    """From the end of the upload to the outcome: waiting for its turn included."""

    def longest(self, other: Timings) -> Timings:
        if self == other:
            return self
        return Timings(*map(max, self, other))


NO_TIMINGS: Final = Timings()


class TimedOutcomes(NamedTuple):
    outcomes: list[Appended | LogError]
    timings: Timings


class Request:
    """One call. `answered` belongs to the caller, who may cancel it; it never holds an error."""

    __slots__ = ("_left", "_on_answered", "_outcomes", "accepted_ms", "answered", "byte_length", "tally", "timings")

    def __init__(self, size: int, byte_length: int, accepted_ms: float, on_answered: Callable[[Request], None]) -> None:
        self.byte_length, self.accepted_ms = byte_length, accepted_ms
        self.timings, self.tally = NO_TIMINGS, Tally()
        self.answered: asyncio.Future[TimedOutcomes] = asyncio.get_running_loop().create_future()
        self._outcomes: list[AppendOutcome | None] = [None] * size
        self._left, self._on_answered = size, on_answered

    def tell(self, number: int, outcome: AppendOutcome, timings: Timings) -> None:
        assert self._outcomes[number] is None, f"a second outcome: {outcome}"
        self._outcomes[number] = outcome
        self.timings = timings if self.timings is NO_TIMINGS else self.timings.longest(timings)
        self._left -= 1
        if not self._left:
            self._on_answered(self)
            if not self.answered.done():
                told = [outcome for outcome in self._outcomes if outcome is not None]
                self.answered.set_result(TimedOutcomes(told, self.timings))


class Entry:
    """One group of a request."""

    __slots__ = ("byte_length", "claims", "group", "log", "number", "request")

    def __init__(self, request: Request, number: int, group: EncodedGroup, byte_length: int) -> None:
        self.request, self.number, self.group, self.byte_length = request, number, group, byte_length
        self.log: Log = group.log
        pieces = group.pieces
        only = pieces[0] if len(pieces) == 1 else None  # nearly always
        self.claims = sum(piece.claim is not None for piece in pieces) if only is None else int(only.claim is not None)

    def tell(self, outcome: AppendOutcome, timings: Timings) -> None:
        self.request.tally.note(self.group, self.byte_length, outcome)
        self.request.tell(self.number, outcome, timings)

    def queue_ms(self, now_ms: float) -> float:
        return now_ms - self.request.accepted_ms


def refuse(entries: Sequence[Entry], error: LogError, timings: Timings = NO_TIMINGS) -> None:
    """The same error for all of them; each gets one of its own, for callers add to what they are given."""
    for entry in entries:
        entry.tell(own_error(error), timings)


def own_error(error: LogError) -> LogError:
    """A copy that shares nothing: an error carries `outcomes`, which belong to one caller."""
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args, copy.outcomes = error.args, []
    return copy
