"""Every known hazard as a script: the exact order of events that breaks the protocol where a rule is missing.

    python -m llog.testing.sim --load llog.testing.hazards --scenario h05a

A script passes with all rules, and fails when the clause of its hazard is removed (`python -m llog.testing.mutants`).
"""

from __future__ import annotations

from llog.testing.hazards import (
    h01,
    h02,
    h05,
    h06,
    h07,
    h08,
    h09,
    h10,
    h11,
    h13,
    h15,
    h16,
    h18,
    h24,
    h24b,
    h26,
    h28,
    h30,
)

__all__ = [
    "h01",
    "h02",
    "h05",
    "h06",
    "h07",
    "h08",
    "h09",
    "h10",
    "h11",
    "h13",
    "h15",
    "h16",
    "h18",
    "h24",
    "h24b",
    "h26",
    "h28",
    "h30",
]
