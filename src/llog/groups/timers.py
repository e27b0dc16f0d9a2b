"""Deadlines of one group, by name."""

from __future__ import annotations

from typing import Final

NEVER_MS: Final = 2**63 - 1


class Timers:
    """`next_ms` is never later than the earliest deadline and may be earlier, so that a heartbeat, which only moves a
    deadline back, costs the same in a group of any size."""

    def __init__(self) -> None:
        self._deadlines: dict[tuple[str, str], int] = {}
        self.next_ms = NEVER_MS

    def set(self, kind: str, name: str, at_ms: int) -> None:
        self._deadlines[kind, name] = at_ms
        self.next_ms = min(self.next_ms, at_ms)

    def cancel(self, kind: str, name: str = "") -> None:
        self._deadlines.pop((kind, name), None)

    def deadline_ms(self, kind: str, name: str = "") -> int | None:
        return self._deadlines.get((kind, name))

    def due(self, now_ms: int) -> list[tuple[str, str]]:
        """Take out the timers that are due, the earliest first."""
        if now_ms < self.next_ms:
            return []
        due = sorted((at_ms, timer) for timer, at_ms in self._deadlines.items() if at_ms <= now_ms)
        for _, timer in due:
            del self._deadlines[timer]
        self.next_ms = min(self._deadlines.values(), default=NEVER_MS)
        return [timer for _, timer in due]
