"""Sets of sequence numbers, stored as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from llog.errors import LoadTestError

RANGES_MAX: Final = 1_000_000
"""Of one set. More would mean that nearly every second record is missing."""


class Ranges:
    """A set of numbers as sorted half-open ranges that do not touch."""

    __slots__ = ("ends", "starts")

    def __init__(self, starts: Iterable[int] = (), ends: Iterable[int] = ()) -> None:
        self.starts, self.ends = list(starts), list(ends)

    def add(self, first: int, end: int) -> int:
        """How many of these numbers were members before."""
        starts, ends = self.starts, self.ends
        if ends and first == ends[-1]:
            ends[-1] = end
            return 0
        low, high = bisect_left(ends, first), bisect_right(starts, end)
        known = sum(max(0, min(end, ends[n]) - max(first, starts[n])) for n in range(low, high))
        if low < high:
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [first], [end]
        if len(starts) > RANGES_MAX:
            raise LoadTestError(f"more than {RANGES_MAX} gaps in the sequences of one producer and partition")
        return known

    @property
    def last_end(self) -> int:
        """Behind the greatest member."""
        return self.ends[-1] if self.ends else 0

    def __len__(self) -> int:
        return sum(self.ends) - sum(self.starts)

    def below(self, limit: int) -> Ranges:
        """The members that are less than the limit."""
        count = bisect_left(self.starts, limit)
        return Ranges(self.starts[:count], [min(end, limit) for end in self.ends[:count]])

    def common(self, other: Ranges) -> int:
        """How many numbers are members of both."""
        count = mine = theirs = 0
        while mine < len(self.starts) and theirs < len(other.starts):
            count += max(0, min(self.ends[mine], other.ends[theirs]) - max(self.starts[mine], other.starts[theirs]))
            if self.ends[mine] < other.ends[theirs]:
                mine += 1
            else:
                theirs += 1
        return count
