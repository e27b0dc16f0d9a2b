"""One epoch of one log: which segment answers for which offset, which answer for none, and how far they reach.

Why it exists: segments overlap. A merged segment stands beside its sources until they are retired, a rewritten one
beside what it replaces, and records arrive in any order. What must stay true: the state is a function of the set of
segments alone, never of the order in which they came. So the rule that decides is one about sets:

    a finished segment is referenced unless another finished one holds all of its offsets of this epoch
    (of two that hold the same offsets, the one with the higher id, the younger, is referenced)

What is left of the finished ones has rising starts AND rising ends, so the last that begins at or below an offset is
the only one to ask: if it does not hold the offset, none does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from llog.formats.values import SegmentRecord


class EpochRange(NamedTuple):
    """The offsets of one epoch inside a segment, both ends included."""

    start_offset: int
    end_offset: int

    def holds(self, other: EpochRange) -> bool:
        return self.start_offset <= other.start_offset and other.end_offset <= self.end_offset


def epoch_ranges(record: SegmentRecord) -> dict[int, EpochRange]:
    """An epoch ends where the next one in the segment begins; the last, where the segment ends. Epochs are not known
    until a segment is written: one that is being copied has none."""
    starts = sorted(record.epochs.items())
    ends = [*(start - 1 for _, start in starts[1:]), record.end_offset]
    ranges = ((epoch, EpochRange(start, end)) for (epoch, start), end in zip(starts, ends, strict=False))
    return {epoch: held for epoch, held in ranges if held.start_offset <= held.end_offset}


class EpochState:
    """Not for two threads at once."""

    def __init__(self) -> None:
        self._finished: dict[str, EpochRange] = {}
        self._unfinished: set[str] = set()
        self._starts: list[int] = []
        self._ids: list[str] = []
        """The referenced segments in the order of their starts, which is that of their ends too."""

    def __bool__(self) -> bool:
        return bool(self._finished or self._unfinished)

    # -- what it says -------------------------------------------------------------------------------------------------
    @property
    def offset_to_id(self) -> dict[int, str]:
        return dict(zip(self._starts, self._ids, strict=True))

    @property
    def unreferenced_segment_ids(self) -> frozenset[str]:
        """Those being copied or deleted, and those that another one replaced."""
        return frozenset(self._unfinished | (self._finished.keys() - set(self._ids)))

    @property
    def highest_log_offset(self) -> int | None:
        """Of the segments that are COPY_SEGMENT_FINISHED: of others, nobody can tell after their record is gone."""
        return self._finished[self._ids[-1]].end_offset if self._ids else None

    def find(self, offset: int) -> str | None:
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or self._finished[self._ids[at]].end_offset < offset:
            return None
        return self._ids[at]

    def first_from(self, offset: int) -> int:
        """Where in `referenced` those begin that hold `offset`, or lie behind it."""
        at = bisect_right(self._starts, offset) - 1
        return at if at >= 0 and self._finished[self._ids[at]].end_offset >= offset else at + 1

    @property
    def referenced(self) -> list[str]:
        return self._ids

    def all_ids(self) -> set[str]:
        return self._unfinished | self._finished.keys()

    # -- how it changes -----------------------------------------------------------------------------------------------
    def put_unfinished(self, segment_id: str) -> None:
        self.remove(segment_id)
        self._unfinished.add(segment_id)

    def put_finished(self, segment_id: str, held: EpochRange) -> None:
        self.remove(segment_id)
        self._finished[segment_id] = held
        self._refer(segment_id, held)

    def remove(self, segment_id: str) -> None:
        self._unfinished.discard(segment_id)
        held = self._finished.pop(segment_id, None)
        if held is None:
            return
        at = bisect_left(self._starts, held.start_offset)
        if at == len(self._ids) or self._ids[at] != segment_id:
            return
        del self._starts[at], self._ids[at]
        # What it stood for may be referenced again.
        if len(self._finished) > len(self._ids):
            for other, its in self._finished.items():
                if held.holds(its):
                    self._refer(other, its)

    def _refer(self, segment_id: str, held: EpochRange) -> None:
        """Reference it unless one that is referenced holds it all; those it holds are no longer referenced."""
        at = bisect_right(self._starts, held.start_offset) - 1
        if at >= 0:
            its = self._finished[self._ids[at]]
            if its.holds(held) and (its != held or self._ids[at] > segment_id):
                return
        first = bisect_left(self._starts, held.start_offset)
        stop = first
        while stop < len(self._ids) and self._finished[self._ids[stop]].end_offset <= held.end_offset:
            stop += 1
        self._starts[first:stop], self._ids[first:stop] = [held.start_offset], [segment_id]
