"""What the log counts, and where it counts it: an object with one method, brought by whoever opens a face.

Why it exists: the log knows no metrics library. Names end in what they count; nothing is ever counted down.
"""

from __future__ import annotations

from typing import Final, Protocol

APPEND_GROUPS: Final = "log_append_groups"
APPEND_RECORDS: Final = "log_append_records"
APPEND_BYTES: Final = "log_append_bytes"
APPEND_FAILURES: Final = "log_append_failures"
"""Record groups that were refused, or of which nobody can tell."""
COMPACT_RUNS: Final = "log_compact_runs"
COMPACT_BYTES: Final = "log_compact_bytes"
"""Written into segments, by merges too."""
READ_GETS: Final = "log_read_gets"
"""Requests to object stores made by readers."""
READ_BYTES: Final = "log_read_bytes"
READ_RECORDS: Final = "log_read_records"
READ_RESTARTS: Final = "log_read_restarts"
"""Reads that began again with fresh metadata, because an object was gone or the index had a gap (R10)."""


class LogMetrics(Protocol):
    def count(self, name: str, value: int = 1) -> None: ...


class NoMetrics:
    """Counts nothing."""

    def count(self, name: str, value: int = 1) -> None:
        pass
