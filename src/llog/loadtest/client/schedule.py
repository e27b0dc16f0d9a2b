"""When requests are due. The load is an open loop: due times are fixed, whatever the servers do.

A stream's requests are due at `first_s`, `first_s + interval_s`, and so on. A client that has no room in flight sends
later than due; its requests keep their due times, and latency counts from these. So a server that stalls delays every
request that was due meanwhile, and each of them shows it (no coordinated omission). Times are Unix seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from llog.loadtest.artifacts import Phase

NEVER: Final = math.inf


class Clock:
    """Unix time that goes on evenly, and alike in all processes of a run."""

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s

    @classmethod
    def offset_now_s(cls) -> float:
        """Unix time minus monotonic time."""
        return time.time() - time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() + self._offset_s


Now = Callable[[], float]


class Schedule:
    """Due times of one stream. It takes no memory for requests that are overdue."""

    __slots__ = ("_counted", "_first_s", "_interval_s", "_taken")

    def __init__(self) -> None:
        self._first_s = NEVER
        self._interval_s = NEVER
        self._taken = 0
        self._counted = 0

    def start(self, at_s: float, interval_s: float, phase: float) -> None:
        """Begin anew at `at_s`; requests that are overdue are dropped."""
        self._first_s, self._interval_s = at_s + phase * interval_s, interval_s
        self._taken = self._counted = 0

    def stop(self) -> None:
        self._first_s = NEVER

    @property
    def next_due_s(self) -> float:
        if self._first_s == NEVER:
            return NEVER
        return self._first_s + self._taken * self._interval_s

    def take(self) -> float:
        """The due time of the next request, which is sent now."""
        due_s = self.next_due_s
        self._taken += 1
        return due_s

    def count_due(self, until_s: float) -> int:
        """How many requests became due since the last call."""
        if until_s < self._first_s:
            return 0
        due = math.floor((until_s - self._first_s) / self._interval_s) + 1
        new, self._counted = max(0, due - self._counted), max(due, self._counted)
        return new


def request_interval_s(mb_per_s: float, byte_share: float, request_bytes: int) -> float:
    """Between two requests of a stream that has this share of the whole rate."""
    rate = mb_per_s * 1e6 * byte_share
    return request_bytes / rate if rate > 0 else NEVER


class PhaseClock:
    """Which phase of the run a due time belongs to."""

    def __init__(self) -> None:
        self._begins: list[tuple[float, Phase]] = [(-NEVER, "warm_up")]

    def enter(self, phase: Phase, at_s: float) -> None:
        """What is due from `at_s` on belongs to `phase`."""
        self._begins.append((at_s, phase))

    def phase_of(self, due_s: float) -> Phase:
        for at_s, phase in reversed(self._begins):
            if due_s >= at_s:
                return phase
        return "warm_up"
