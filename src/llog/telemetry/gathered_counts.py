"""What is told once per request and asked for every few seconds: gathered, and counted together when it is asked for.

Why it exists: a counter of the registry costs a microsecond, a histogram several, and every request moves eight of
them. What must stay true: nothing is lost or counted twice, also when a page is made in another thread; what waits is
bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

# Requests that are told to the counters together: so many take a millisecond.
METRICS_GATHERED_MAX: Final = 256


HttpRow = tuple[str, str, int]
"""Route, method and status."""


class GatheredCounts:
    def __init__(
        self, http: Callable[[HttpRow, list[float], int, int], None], appends: Callable[[int, int, int], None]
    ) -> None:
        """Who counts: requests of one kind, with the seconds of each and their bytes; groups, records and bytes."""
        self._count_http, self._count_appends = http, appends
        self._lock = threading.Lock()
        self._http: dict[HttpRow, tuple[list[float], list[int]]] = {}
        self._appended = [0, 0, 0]
        self._waiting = 0

    def http(self, row: HttpRow, seconds: float, request_bytes: int, response_bytes: int) -> None:
        with self._lock:
            known = self._http.get(row)
            if known is None:
                known = self._http[row] = [], [0, 0]
            known[0].append(seconds)
            known[1][0] += request_bytes
            known[1][1] += response_bytes
            self._waiting += 1
            if self._waiting >= METRICS_GATHERED_MAX:
                self._count()

    def appends(self, groups: int, records: int, byte_length: int) -> None:
        with self._lock:
            self._appended[0] += groups
            self._appended[1] += records
            self._appended[2] += byte_length

    def count(self) -> None:
        """All that was told so far."""
        with self._lock:
            self._count()

    def _count(self) -> None:
        for row, (seconds, sizes) in self._http.items():
            self._count_http(row, seconds, *sizes)
        self._count_appends(*self._appended)
        self._http, self._appended, self._waiting = {}, [0, 0, 0], 0
