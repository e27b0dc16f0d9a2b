"""The findings of an audit, and what they mean.

    damage     records are lost, wrong or unreachable, or metadata contradicts itself: an operator must act
    leftover   crashed or late processes left it, and retention, vacuum or compaction will remove it: it costs space

`clean` means that everything was checked and no damage was found; `unchecked` lists what could not be checked.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

import msgspec

from llog.log.inspect.check_objects import LogFault
from llog.log.keys import Log

AUDIT_FINDINGS_MAX: Final = 10_000

Severity = Literal["damage", "leftover"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity
    rule: str
    """The violated invariant (`I4` … `I12`), or the name of another check."""
    kind: str
    reason: str
    topic: str = ""
    partition: int = -1
    start_offset: int = -1
    end_offset: int = -1
    object: str = ""
    """The URI of the object."""
    age_ms: int | None = None

    @property
    def log(self) -> str:
        return f"{self.topic}:{self.partition}" if self.topic else ""


def _finding(
    severity: Severity, log: Log, rule: str, kind: str, reason: str, start: int = -1, end: int = -1, uri: str = ""
) -> Finding:
    where: dict[str, Any] = {"topic": log.topic, "partition": log.partition, "start_offset": start, "end_offset": end}
    return Finding(severity=severity, rule=rule, kind=kind, reason=reason, object=uri, **where)


damage = partial(_finding, "damage")
leftover = partial(_finding, "leftover")


def damage_of(log: Log, fault: LogFault) -> Finding:
    return damage(log, fault.invariant, fault.kind, fault.reason, fault.start_offset, fault.end_offset)


class AuditReport(msgspec.Struct, kw_only=True):
    fast: bool
    logs: int = 0
    entries: int = 0
    """Valid index entries; each is compared with its object."""
    objects: int = 0
    """Objects read; with `fast`, objects with a compared length."""
    bytes_read: int = 0
    requests: int = 0
    """Requests of the comparing tasks to object stores."""
    surveyed: int = 0
    """Old objects listed in the search for orphans."""
    findings: list[Finding] = []
    """At most AUDIT_FINDINGS_MAX; `counts` counts all."""
    counts: dict[str, int] = {}
    """By severity and kind."""
    moved_on: int = 0
    """Suspicions dropped because the log had changed meanwhile."""
    unsettled: list[str] = []
    """Logs that changed too fast to be judged: audit them again."""
    unchecked: list[str] = []
    """What could not be checked, and why."""
    object_requests: dict[str, int] = {}
    """Requests of the job and its tasks to object stores, by operation."""

    def add(self, finding: Finding) -> None:
        name = f"{finding.severity}: {finding.kind}"
        self.counts[name] = self.counts.get(name, 0) + 1
        if len(self.findings) < AUDIT_FINDINGS_MAX:
            self.findings.append(finding)

    def not_checked(self, what: str) -> None:
        if len(self.unchecked) < AUDIT_FINDINGS_MAX:
            self.unchecked.append(what)

    def count_of(self, severity: Severity) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith(f"{severity}:"))

    @property
    def complete(self) -> bool:
        """Everything was checked."""
        return not (self.unsettled or self.unchecked)

    @property
    def clean(self) -> bool:
        return self.complete and not self.count_of("damage")

    @property
    def tidy(self) -> bool:
        return not self.count_of("leftover")
