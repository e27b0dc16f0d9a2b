"""Options and report of a key compaction."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from llog.errors import InvalidArgument
from llog.limits import KEY_COMPACT_READ_BYTES_PER_SECOND, LOG_MERGE_BYTES_DEFAULT, MIB
from llog.log.keys import Log

KEY_COMPACT_TASKS_AT_ONCE: Final = 4
KEY_SCAN_TASK_BYTES: Final = 64 * MIB

State = Literal["compacted", "clean", "not dirty enough", "not by key", "changed meanwhile", "failed"]


class KeyCompactOptions(NamedTuple):
    dry_run: bool = False
    """Count removable records; change no log."""
    force: bool = False
    """Ignore the dirty ratio."""
    bytes_per_second: float | None = KEY_COMPACT_READ_BYTES_PER_SECOND
    """Reading speed of all tasks together; None: unlimited."""
    tasks_at_once: int = KEY_COMPACT_TASKS_AT_ONCE
    target_bytes: int = LOG_MERGE_BYTES_DEFAULT
    """Size of a segment that replaces several."""
    scan_task_bytes: int = KEY_SCAN_TASK_BYTES

    def checked(self) -> KeyCompactOptions:
        for name in ("tasks_at_once", "target_bytes", "scan_task_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgument(name, f"{getattr(self, name)} is not positive")
        if self.bytes_per_second is not None and not self.bytes_per_second > 0:
            raise InvalidArgument("bytes_per_second", f"{self.bytes_per_second} is not positive; None is no limit")
        return self


class KeyCompacted(msgspec.Struct, kw_only=True):
    """What a job did to one log; with `dry_run`, what it would do."""

    topic: str
    partition: int
    state: State = "clean"
    dirty_ratio: float = 0.0
    """Before the pass."""
    clean_until: int = 0
    """All lower offsets were in a complete pass."""
    not_in_segments: int = 0
    """Offsets still in shared blobs, which key compaction does not read."""
    segments_read: int = 0
    segments_replaced: int = 0
    segments_written: int = 0
    records_before: int = 0
    superseded: int = 0
    tombstones: int = 0
    """Tombstones removed after their retention time."""
    bytes_before: int = 0
    """Size of the replaced segments."""
    bytes_after: int = 0
    error: str = ""
    due_at_ms: int | None = None
    """When ages make an unchanged log that was not worth a pass worth one; None: never."""

    @property
    def log(self) -> Log:
        return Log(self.topic, self.partition)

    def fail(self, error: str, *, again: bool = False) -> None:
        """`again`: the log changed during the pass, so another pass may succeed."""
        self.state, self.error = "changed meanwhile" if again else "failed", error


class KeyCompactReport(msgspec.Struct, kw_only=True):
    dry_run: bool
    logs: list[KeyCompacted]
    object_requests: dict[str, int] = {}
    """Requests of the job and its tasks to object stores, by operation."""

    @property
    def ok(self) -> bool:
        return not any(log.state in ("failed", "changed meanwhile") for log in self.logs)


_SUMS = ("segments_read", "segments_replaced", "segments_written", "superseded", "tombstones")
_BYTES = ("bytes_before", "bytes_after")


def added(first: KeyCompacted | None, then: KeyCompacted) -> KeyCompacted:
    """The sum of two passes over one log, with the state of the second."""
    if first is None:
        return then
    changes = {name: getattr(first, name) + getattr(then, name) for name in (*_SUMS, *_BYTES)}
    at_rest = then.state in ("clean", "not dirty enough")
    state = "compacted" if at_rest and first.segments_written else then.state
    before = {"dirty_ratio": first.dirty_ratio, "records_before": first.records_before}
    return msgspec.structs.replace(then, state=state, **before, **changes)
