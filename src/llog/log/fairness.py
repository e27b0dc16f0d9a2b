"""Fairness between writers of one log: who keeps winning lets the others go first now and then.

Why it exists: on a compare-and-set store the last winner needs two round trips for its next append, a loser three or
four, so a writer that appends without a pause would win for ever. What must stay true: it costs nothing on a log that
nobody else wants, and nothing to a writer that pauses between appends anyway.
"""

from __future__ import annotations

from llog.limits import LOG_CONTENDED_MS, LOG_YIELD_AFTER_COMMITS, LOG_YIELD_GAP_MS


class Fairness:
    """One log, as one process sees it. Times come from the caller's clock and are only compared with each other."""

    __slots__ = ("_commits_in_row", "_contended_at_ms", "_last_commit_ms")

    def __init__(self) -> None:
        self._commits_in_row = 0
        self._last_commit_ms = self._contended_at_ms = -LOG_CONTENDED_MS

    def lost(self, now_ms: int) -> None:
        """Somebody else moved the log first."""
        self._commits_in_row, self._contended_at_ms = 0, now_ms

    def met_others(self, now_ms: int) -> None:
        """Somebody else settled what we appended: they are waiting for the log."""
        self._contended_at_ms = now_ms

    def won(self, now_ms: int) -> None:
        close = 0 <= now_ms - self._last_commit_ms <= LOG_YIELD_GAP_MS
        self._commits_in_row = self._commits_in_row + 1 if close else 1
        self._last_commit_ms = now_ms

    def should_yield(self, now_ms: int) -> bool:
        """Once per row of wins: asking starts the row anew."""
        if self._commits_in_row < LOG_YIELD_AFTER_COMMITS or now_ms - self._contended_at_ms > LOG_CONTENDED_MS:
            return False
        self._commits_in_row = 0
        return True
