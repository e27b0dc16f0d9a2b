"""Fairness between writers of one log: who keeps winning lets the others go first now and then.

Why it exists: on a compare-and-set store the last winner needs two round trips for its next append, a loser three or
four, so a writer that appends without a pause wins for ever, and is never told that others wait: refused attempts leave
no trace. So it pauses on trial, seldom; if its next attempt is refused, there are others, and it pauses more often.

What must stay true: a writer that pauses between appends anyway never waits, and one that is alone hardly ever.
"""

from __future__ import annotations

from typing import Final

# A writer that won this often in a row on a log that others want too, without a pause, lets them go first once …
LOG_YIELD_AFTER_COMMITS: Final = 8
LOG_YIELD_TRIAL_COMMITS_MAX: Final = 64
# Commits further apart than this leave room enough by themselves.
LOG_YIELD_GAP_MS: Final = 50
LOG_CONTENDED_MS: Final = 10_000


class Fairness:
    """One log, as one process sees it. Times come from the caller's clock and are only compared with each other."""

    __slots__ = ("_commits_in_row", "_contended_at_ms", "_last_commit_ms", "_trial_after_commits")

    def __init__(self) -> None:
        self._commits_in_row = 0
        self._trial_after_commits = LOG_YIELD_AFTER_COMMITS
        self._last_commit_ms = self._contended_at_ms = -LOG_CONTENDED_MS

    def lost(self, now_ms: int) -> None:
        """Somebody else moved the log first."""
        self._commits_in_row, self._contended_at_ms = 0, now_ms
        self._trial_after_commits = LOG_YIELD_AFTER_COMMITS

    def won(self, now_ms: int) -> None:
        close = 0 <= now_ms - self._last_commit_ms <= LOG_YIELD_GAP_MS
        self._commits_in_row = self._commits_in_row + 1 if close else 1
        self._last_commit_ms = now_ms

    def should_yield(self, now_ms: int, *, on_trial: bool) -> bool:
        """Once per row of wins: asking starts the row anew. `on_trial`: also where nobody else was met of late."""
        if now_ms - self._contended_at_ms <= LOG_CONTENDED_MS:
            due = self._commits_in_row >= LOG_YIELD_AFTER_COMMITS
        else:
            due = on_trial and self._commits_in_row >= self._trial_after_commits
            if due:
                self._trial_after_commits = min(LOG_YIELD_TRIAL_COMMITS_MAX, 2 * self._trial_after_commits)
        if due:
            self._commits_in_row = 0
        return due
