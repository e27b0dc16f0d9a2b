"""The metrics that the compaction service reports, as a port; its caller passes the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

Outcome = Literal["compacted", "resumed", "idle", "busy", "claimed_elsewhere", "failed"]
"""Outcome of one visit to one log. `compacted`: its work of any kind is done; `busy`: others kept changing the log."""

CLAIM_ACQUIRED: Final = "acquired"
CLAIM_ELSEWHERE: Final = "claimed_elsewhere"
CLAIM_RELEASED: Final = "released"
CLAIM_RELEASE_FAILED: Final = "release_failed"
SESSION_OPENED: Final = "session_opened"
SESSION_LOST: Final = "session_lost"
SESSION_CLOSED: Final = "session_closed"

RUN_RESUMED: Final = "run_resumed"
PENDING_SETTLED: Final = "pending_settled"
DELETION_FINISHED: Final = "deletion_finished"

VACUUM_RUN: Final = "run"
VACUUM_REFUSED: Final = "refused"
VACUUM_FAILED: Final = "failed"


class CompactorMetrics(Protocol):
    def observe_compaction(
        self, outcome: str, kind: str, entries: int, byte_length: int, stages_ms: Mapping[str, float]
    ) -> None: ...

    def set_compaction_lag(
        self, topic: str, partition: int, offsets: int, byte_length: int, oldest_ms: int | None = None
    ) -> None:
        """`offsets` counts what is not compacted, `byte_length` what a run could take now; `oldest_ms` is the append
        time of its oldest entry."""

    def set_compaction_pending(self, runs: Mapping[str, int], appends: int) -> None:
        """Totals over all logs: runs in flight by state, and appends reserved long ago and not cleared."""

    def set_workers(self, busy: int, total: int) -> None: ...

    def set_discovery(self, targets: int, at_ms: int) -> None: ...

    def claim_event(self, kind: str) -> None: ...

    def recovery_event(self, kind: str) -> None: ...

    def vacuum_event(self, kind: str, count: int) -> None: ...

    def fenced_logs(self, count: int) -> None: ...

    def clock_skew(self, ms: float) -> None: ...

    def count(self, name: str, value: int = 1) -> None:
        """By the names of `llog.log.metrics`."""

    # The pages.
    def snapshot(self) -> dict[str, Any]: ...

    def prometheus(self) -> bytes: ...
