"""Does a store answer? What its calls tell, in one state: well, or in trouble since then, because of that.

Why it exists: a broker that accepts what its store will not take makes everybody wait for nothing. One failure is no
news (stores throttle, connections break, and every call is tried again); a while without a single success is.

What must stay true: reading and writing are told apart, for a store may be full, or deny one of the two; one success
ends the trouble of its kind; a refusal that proves the store awake (no such object, another version) is a success;
what says nothing of the store (a caller that gave up, a wrong argument) changes nothing.
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

# A store that did nothing well for so long is in trouble: a broker says so, and accepts no records meanwhile …
STORE_TROUBLE_MS: Final = 5_000


__all__ = ["StorePulse", "Trouble"]

_AWAKE: Final = (ObjectNotFound, ObjectAlreadyExists, ObjectRangeInvalid, VersionConflict, SessionLost)


class Trouble(NamedTuple):
    seconds: float
    """Since when nothing was answered well."""
    error: StoreError
    """The last one."""

    def __str__(self) -> str:
        return f"it has not done what it was asked for {self.seconds:.0f} s; last, {self.error}"


class StorePulse:
    """Of one store; told by what measures its calls."""

    def __init__(self, patience_ms: float = STORE_TROUBLE_MS, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._patience_ms, self._clock = patience_ms, clock
        self._failing: dict[bool, tuple[float, StoreError]] = {}
        """Of writing (True) and reading: since when, and the last error."""

    def told(self, error: BaseException | None, latency_ms: float, *, writing: bool) -> None:
        """How a call ended. The store was silent for as long as it took to fail."""
        if error is None or isinstance(error, _AWAKE):
            if self._failing:
                self._failing.pop(writing, None)
        elif isinstance(error, StoreError) and not isinstance(error, StoreClosed):
            since, _ = self._failing.get(writing, (self._clock() - latency_ms / 1_000, error))
            self._failing[writing] = since, error

    def well(self) -> None:
        """It was tried in every way, and did everything."""
        self._failing.clear()

    def trouble(self, *, writing: bool | None = None) -> Trouble | None:
        """With one of the two, or with either. None: well, or not failing for long enough to say so."""
        if not self._failing:  # asked for with every request
            return None
        failing = [state for kind, state in self._failing.items() if writing in (None, kind)]
        if not failing:
            return None
        since, error = min(failing, key=lambda state: state[0])
        seconds = self._clock() - since
        return Trouble(seconds, error) if seconds * 1_000 >= self._patience_ms else None
