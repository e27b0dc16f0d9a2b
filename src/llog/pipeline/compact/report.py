"""What a compaction job did: per log, and together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from llog.log.rewrite.publish import Compacted

LogOutcome = Literal["compacted", "resumed", "idle", "busy", "claimed_elsewhere", "failed"]
"""compacted: runs were published; resumed: only what others had left was finished; idle: there was nothing to do;
busy: others kept changing it; claimed_elsewhere: another compactor works on it."""


class LogReport(msgspec.Struct, kw_only=True):
    """Filled while the job runs."""

    topic: str
    partition: int
    outcome: LogOutcome = "idle"
    runs: int = 0
    merges: int = 0
    resumed: int = 0
    entries: int = 0
    offsets: int = 0
    bytes_written: int = 0
    error: str = ""
    error_type: str = ""

    def add(self, runs: Iterable[Compacted]) -> None:
        for run in runs:
            if run.resumed:
                self.resumed += 1
                self.outcome = "resumed" if self.outcome == "idle" else self.outcome
                continue
            self.outcome = "compacted"
            self.runs += run.kind == "COMPACT"
            self.merges += run.kind == "MERGE"
            self.entries += run.entry_count
            self.bytes_written += run.byte_length
            if run.kind == "COMPACT":
                self.offsets += run.end_offset - run.start_offset + 1

    def fail(self, outcome: LogOutcome, error_type: str, error: str) -> None:
        self.outcome, self.error_type, self.error = outcome, error_type, error


class CompactReport(msgspec.Struct, kw_only=True):
    logs: list[LogReport] = []
    rounds: int = 0
    tasks: int = 0
    objects_planned: int = 0
    """Distinct objects that rounds were planned to read, round by round."""
    objects_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> list[LogReport]:
        return [log for log in self.logs if log.outcome == "failed"]

    def count(self, outcome: LogOutcome) -> int:
        return sum(log.outcome == outcome for log in self.logs)
