"""The findings of an audit, and what they mean.

    damage     records are lost, wrong or unreachable, or metadata contradicts itself: an operator must act
    leftover   crashed or late processes left it, and retention, vacuum or compaction will remove it: it costs space

`clean` means that everything was checked and no damage was found; `unchecked` lists what could not be checked.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

import msgspec

from llog.log.inspect.check_objects import LogFault
from llog.log.keys import Log

AUDIT_FINDINGS_MAX: Final = 10_000

Severity = Literal["damage", "leftover"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity
    rule: str
    """The invariant that does not hold (`I4` … `I12`), or what else was compared."""
    kind: str
    reason: str
    topic: str = ""
    partition: int = -1
    start_offset: int = -1
    end_offset: int = -1
    object: str = ""
    """Its URI."""
    age_ms: int | None = None

    @property
    def log(self) -> str:
        return f"{self.topic}:{self.partition}" if self.topic else ""


def damage(log: Log, rule: str, kind: str, reason: str, start: int = -1, end: int = -1, uri: str = "") -> Finding:
    return _finding("damage", log, rule, kind, reason, start, end, uri)


def leftover(log: Log, rule: str, kind: str, reason: str, start: int = -1, end: int = -1, uri: str = "") -> Finding:
    return _finding("leftover", log, rule, kind, reason, start, end, uri)


def _finding(
    severity: Severity, log: Log, rule: str, kind: str, reason: str, start: int, end: int, uri: str
) -> Finding:
    return Finding(
        severity=severity,
        rule=rule,
        kind=kind,
        reason=reason,
        topic=log.topic,
        partition=log.partition,
        start_offset=start,
        end_offset=end,
        object=uri,
    )


def damage_of(log: Log, fault: LogFault) -> Finding:
    return damage(log, fault.invariant, fault.kind, fault.reason, fault.start_offset, fault.end_offset)


class AuditReport(msgspec.Struct, kw_only=True):
    fast: bool
    logs: int = 0
    entries: int = 0
    """Valid ones; each is compared with its object."""
    objects: int = 0
    """That were read (fast: asked for)."""
    bytes_read: int = 0
    requests: int = 0
    """To object stores, by the tasks that compare."""
    surveyed: int = 0
    """Old objects that were held against what is named."""
    findings: list[Finding] = []
    """At most AUDIT_FINDINGS_MAX; `counts` counts all."""
    counts: dict[str, int] = {}
    """By severity and kind."""
    moved_on: int = 0
    """Suspicions that were laid to rest because the log had changed meanwhile."""
    unsettled: list[str] = []
    """Logs that changed too fast to be judged: look again."""
    unchecked: list[str] = []
    """What no answer came for, and why."""

    def add(self, finding: Finding) -> None:
        name = f"{finding.severity}: {finding.kind}"
        self.counts[name] = self.counts.get(name, 0) + 1
        if len(self.findings) < AUDIT_FINDINGS_MAX:
            self.findings.append(finding)

    def not_checked(self, what: str) -> None:
        if len(self.unchecked) < AUDIT_FINDINGS_MAX:
            self.unchecked.append(what)

    def count_of(self, severity: Severity) -> int:
        by_severity: Counter[str] = Counter()
        for name, count in self.counts.items():
            by_severity[name.partition(":")[0]] += count
        return by_severity[severity]

    @property
    def complete(self) -> bool:
        """Was everything looked at?"""
        return not (self.unsettled or self.unchecked)

    @property
    def clean(self) -> bool:
        return self.complete and not self.count_of("damage")

    @property
    def tidy(self) -> bool:
        return not self.count_of("leftover")
