"""When each log is inspected next. A log without an instant waits for a change."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import Final

from llog.log.keys import Log

# Outdated entries that the heap may hold beside one entry per log, before it is built anew.
AGENDA_OUTDATED_MAX: Final = 1_024


class Agenda:
    def __init__(self) -> None:
        self._due_ms: dict[Log, int] = {}
        self._heap: list[tuple[int, Log]] = []
        """With outdated entries: only one that equals the instant in `_due_ms` counts."""

    def __len__(self) -> int:
        return len(self._due_ms)

    def add(self, log: Log, due_ms: int) -> bool:
        """The earlier of several instants counts. True: no other log is due earlier."""
        known = self._due_ms.get(log)
        if known is not None and known <= due_ms:
            return False
        self._due_ms[log] = due_ms
        heapq.heappush(self._heap, (due_ms, log))
        if len(self._heap) > 2 * len(self._due_ms) + AGENDA_OUTDATED_MAX:
            self._rebuild()
        return self._heap[0][0] >= due_ms

    def take(self, now_ms: int) -> list[Log]:
        """The logs that are due, the longest due first; they have no instant until they are added again."""
        due: list[Log] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, log = heapq.heappop(self._heap)
            if self._due_ms.get(log) == due_ms:
                del self._due_ms[log]
                due.append(log)
        return due

    def next_ms(self) -> int | None:
        while self._heap and self._due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def make_due(self, now_ms: int) -> None:
        """Every log that has an instant is due now: the clock was set back, so the instants mean nothing."""
        self._due_ms = {log: min(due_ms, now_ms) for log, due_ms in self._due_ms.items()}
        self._rebuild()

    def keep(self, logs: Collection[Log]) -> None:
        """Forget all other logs."""
        self._due_ms = {log: due_ms for log, due_ms in self._due_ms.items() if log in logs}
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(due_ms, log) for log, due_ms in self._due_ms.items()]
        heapq.heapify(self._heap)
