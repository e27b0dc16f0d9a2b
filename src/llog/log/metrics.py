"""What the log counts: metric names, the one-method port that counts them, and the counters of the append path.

The log knows no metrics library; the process that opens a log passes an object with `count`. Counters only grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

APPEND_GROUPS: Final = "log_append_groups"
APPEND_RECORDS: Final = "log_append_records"
APPEND_BYTES: Final = "log_append_bytes"
APPEND_FAILURES: Final = "log_append_failures"
"""Record groups that were refused, or have an uncertain outcome."""
COMPACT_RUNS: Final = "log_compact_runs"
COMPACT_BYTES: Final = "log_compact_bytes"
"""Bytes written into segments, by merges too."""
READ_GETS: Final = "log_read_gets"
"""Requests of readers to object stores."""
READ_BYTES: Final = "log_read_bytes"
READ_RECORDS: Final = "log_read_records"
READ_RESTARTS: Final = "log_read_restarts"
"""Reads that started again with fresh metadata, because an object was missing or the index had a gap (R10)."""


class LogMetrics(Protocol):
    def count(self, name: str, value: int = 1) -> None: ...


class NoMetrics:
    """Counts nothing."""

    def count(self, name: str, value: int = 1) -> None:
        pass


@dataclass(slots=True)
class AppendCounters:
    """Since the process started. `cas_rounds / appends` is the number of writes per append; 1 means no contention."""

    appends: int = 0
    """Runs of pieces committed: one per log and append, more where a record group had to be split."""
    cas_rounds: int = 0
    """Attempts to write a control record."""
    conflicts: int = 0
    """Attempts refused because another writer changed the control record first."""
    yields: int = 0
    """Pauses of a writer that kept winning, to let other writers of a log go first."""
    uncertain: int = 0
    """Attempts without an answer …"""
    resolved: int = 0
    """… and those of them with an outcome found by reading (R4)."""
    settles: int = 0
    """Index entries written for pending appends."""
    cleared: int = 0
    """Control records of idle logs from which a settled `pending` was removed."""
