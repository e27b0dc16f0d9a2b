"""The memory pool: counts the bytes between socket and commit, and bounds them.

A broker that accepts faster than its stores write would grow until the system kills it. So bytes are taken from the
pool before they are accepted and given back once their outcome is known. Taking never waits: without room, nothing is
accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llog.errors import InvalidArgument

# From this fraction of LLOG_BATCH_MAX_BUFFER_BYTES on, the buffer is flushed without waiting.
BATCH_PRESSURE_FRACTION: Final = 0.75


class MemoryPool:
    """Used on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise InvalidArgument("limit_bytes", f"must be at least 1, got {limit_bytes}")
        self.limit_bytes, self.used = limit_bytes, 0
        self._pressure_bytes = limit_bytes * BATCH_PRESSURE_FRACTION
        self._listeners: list[Callable[[], None]] = []

    @property
    def fraction(self) -> float:
        return self.used / self.limit_bytes

    @property
    def under_pressure(self) -> bool:
        return self.used >= self._pressure_bytes

    def on_pressure(self, listener: Callable[[], None]) -> None:
        """Call `listener` when use rises to BATCH_PRESSURE_FRACTION, and when a request does not fit."""
        self._listeners.append(listener)

    def try_take(self, byte_length: int) -> bool:
        """False: there is no room, and nothing was taken."""
        if byte_length < 0:
            raise InvalidArgument("byte_length", f"must not be negative, got {byte_length}")
        if self.used + byte_length > self.limit_bytes:
            self._notify()
            return False
        relaxed = not self.under_pressure
        self.used += byte_length
        if relaxed and self.under_pressure:
            self._notify()
        return True

    def give(self, byte_length: int) -> None:
        if not 0 <= byte_length <= self.used:
            raise InvalidArgument("byte_length", f"cannot give back {byte_length} bytes, {self.used} are taken")
        self.used -= byte_length

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
