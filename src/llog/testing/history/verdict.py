"""What a checker has to say: which invariant is broken, where, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from llog.log.keys import Log


class Violation(NamedTuple):
    """One broken promise. `offset` is -1 and `key` empty where there is none to name."""

    invariant: str
    log: Log | None
    offset: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.log if self.log is not None else 'the store'}"
        where += f" at offset {self.offset}" if self.offset >= 0 else ""
        where += f" ({self.key})" if self.key else ""
        return f"{self.invariant}: {where}: {self.text}"


class Phase(IntEnum):
    """What was done since the last client worked: later phases must hold more."""

    LEFT = 0
    """Nothing: as crashes left it. A run may be in flight."""
    RECOVERED = 1
    """One settle and one resumed run per log (I9)."""
    COMPACTED = 2
    """A lone compactor ran until it found nothing to do (I13)."""
    CLEANED = 3
    """Retention and vacuum ran alone, a grace later (I13)."""


class Broken(AssertionError):
    """A log broke its promises."""

    def __init__(self, phase: Phase, violations: Sequence[Violation]) -> None:
        super().__init__(f"[{phase.name}] " + "; ".join(map(str, violations[:8])))
        self.phase, self.violations = phase, list(violations)
