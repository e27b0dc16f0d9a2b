"""Health of a store, derived from its calls: working, or failing since a time with a last error.

A broker uses it to refuse records that its store would not take. A single failure is normal (stores throttle,
connections break, calls are retried); a period without any success is not. Reads and writes count separately, because a
store may be full or deny one of them. One success ends the failure of its kind. An error that proves that the store
responds (no such object, other version) is a success; a cancelled call or an invalid argument counts as neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from llog.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    SessionLost,
    StoreClosed,
    StoreError,
    VersionConflict,
)

# After this long without a success a store counts as failing, and a broker accepts no records.
STORE_TROUBLE_MS: Final = 5_000

__all__ = ["StorePulse", "Trouble"]

_AWAKE: Final = (ObjectNotFound, ObjectAlreadyExists, ObjectRangeInvalid, VersionConflict, SessionLost)


class Trouble(NamedTuple):
    seconds: float
    """Start of the period without a success."""
    error: StoreError
    """The last error."""

    def __str__(self) -> str:
        return f"it has not done what it was asked for {self.seconds:.0f} s; last, {self.error}"


class StorePulse:
    """Health of one store; its metering wrapper reports every call."""

    def __init__(self, patience_ms: float = STORE_TROUBLE_MS, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._patience_ms, self._clock = patience_ms, clock
        self._failing: dict[bool, tuple[float, StoreError]] = {}
        """For writes (True) and reads (False): start and last error of the current failure."""

    def record(self, error: BaseException | None, latency_ms: float, *, writing: bool) -> None:
        """Report the end of a call. A failed call counts as failing from its start."""
        if error is None or isinstance(error, _AWAKE):
            if self._failing:
                self._failing.pop(writing, None)
        elif isinstance(error, StoreError) and not isinstance(error, StoreClosed):
            since, _ = self._failing.get(writing, (self._clock() - latency_ms / 1_000, error))
            self._failing[writing] = since, error

    def well(self) -> None:
        """Report that a check of reads and writes succeeded."""
        self._failing.clear()

    def trouble(self, *, writing: bool | None = None) -> Trouble | None:
        """The failure of writes, of reads, or of either. None: working, or failing only for a short time."""
        if not self._failing:  # called with every request
            return None
        failing = [state for kind, state in self._failing.items() if writing in (None, kind)]
        if not failing:
            return None
        since, error = min(failing, key=lambda state: state[0])
        seconds = self._clock() - since
        return Trouble(seconds, error) if seconds * 1_000 >= self._patience_ms else None
