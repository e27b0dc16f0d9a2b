"""What the append path counts: plain numbers, for whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AppendCounters:
    """Since the process began. `cas_rounds / appends` tells how many writes an append takes; 1 is nobody in the way."""

    appends: int = 0
    """Runs of pieces committed: one per log and flush, more where a group had to be split."""
    cas_rounds: int = 0
    """Attempts to move a control record."""
    conflicts: int = 0
    """Attempts refused because somebody else was faster."""
    yields: int = 0
    """Times a writer that kept winning let the others of a log go first."""
    uncertain: int = 0
    """Attempts whose answer never came …"""
    resolved: int = 0
    """… and those of them that were found out about (R4)."""
    settles: int = 0
    """Index entries written for pending appends."""
    cleared: int = 0
    """Control records of idle logs whose settled `pending` was taken away."""
