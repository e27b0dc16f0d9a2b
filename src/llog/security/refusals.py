"""Audit lines of refusals: one for each, but no flood of them.

A client that is refused again and again would fill the disk with lines. So the same refusal has one line per
`SAME_REFUSAL_MS`, and all refusals together at most `LINES_PER_SECOND_MAX` lines; the next line says how many were left
out, and the metrics count every refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

SAME_REFUSAL_MS: Final = 60_000
LINES_PER_SECOND_MAX: Final = 20
LINES_BURST: Final = 200
REFUSALS_REMEMBERED_MAX: Final = 10_000


class LinePace:
    """`now_ms` is a monotonic clock."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._written: dict[Hashable, float] = {}
        self._room, self._filled_ms = float(LINES_BURST), now_ms()
        self._left_out = 0

    def admit(self, what: Hashable) -> int | None:
        """How many lines were left out since the last one; None: leave this one out too."""
        now_ms = self._now_ms()
        written_ms = self._written.get(what)
        self._room = min(LINES_BURST, self._room + (now_ms - self._filled_ms) * LINES_PER_SECOND_MAX / 1_000)
        self._filled_ms = now_ms
        if self._room < 1 or (written_ms is not None and now_ms - written_ms < SAME_REFUSAL_MS):
            self._left_out += 1
            return None
        self._room -= 1
        self._written.pop(what, None)
        if len(self._written) >= REFUSALS_REMEMBERED_MAX:
            self._written.pop(next(iter(self._written)))
        self._written[what] = now_ms
        left_out, self._left_out = self._left_out, 0
        return left_out
