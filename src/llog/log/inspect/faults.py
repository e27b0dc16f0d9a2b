"""A finding: which invariant does not hold, and where."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    invariant: str
    """`I4` … `I12`"""
    kind: str
    start_offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.kind} at {self.start_offset} … {self.end_offset}: {self.reason}"
