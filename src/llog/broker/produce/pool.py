"""The memory pool: how many bytes lie between a socket and a commit.

Why it exists: a broker that accepts faster than its stores take would grow until it is killed, and take with it what
it had accepted. So every byte is taken here before it is accepted, and given back once its outcome is known; at three
quarters those who can make room are told, and where there is no room nothing is accepted.

What must stay true: never more than the limit, never less than nothing; taking never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llog.errors import InvalidArgument

# From this share of LLOG_BATCH_MAX_BUFFER_BYTES on nothing waits for company any more.
BATCH_PRESSURE_FRACTION: Final = 0.75


class MemoryPool:
    """Used on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise InvalidArgument("limit_bytes", f"{limit_bytes}: a pool holds at least one byte")
        self.limit_bytes, self.used = limit_bytes, 0
        self._pressure_at = limit_bytes * BATCH_PRESSURE_FRACTION
        self._listeners: list[Callable[[], None]] = []

    @property
    def fraction(self) -> float:
        return self.used / self.limit_bytes

    @property
    def under_pressure(self) -> bool:
        return self.used >= self._pressure_at

    def on_pressure(self, listener: Callable[[], None]) -> None:
        """Told when three quarters are reached from below, and when something found no room."""
        self._listeners.append(listener)

    def try_take(self, byte_length: int) -> bool:
        """False: there is no room, and nothing was taken."""
        if byte_length < 0:
            raise InvalidArgument("byte_length", f"{byte_length}: nobody takes less than nothing")
        if self.used + byte_length > self.limit_bytes:
            self._tell()
            return False
        relaxed = not self.under_pressure
        self.used += byte_length
        if relaxed and self.under_pressure:
            self._tell()
        return True

    def give(self, byte_length: int) -> None:
        if not 0 <= byte_length <= self.used:
            raise InvalidArgument("byte_length", f"{byte_length} given back, {self.used} taken")
        self.used -= byte_length

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
