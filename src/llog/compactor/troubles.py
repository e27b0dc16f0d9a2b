"""Current problems of the compactor, for its health page: noted when a step fails, cleared when it succeeds."""

from __future__ import annotations

from collections.abc import Iterable

from llog.limits import COMPACTOR_TROUBLES_SHOWN_MAX
from llog.log.keys import Log


class Troubles:
    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        """The last error of each part of the service."""
        self._logs: dict[Log, str] = {}
        self._passing: set[Log] = set()
        """Logs with a problem that ends as soon as they need no work."""

    def note(self, part: str, error: BaseException) -> None:
        self._parts[part] = f"{part}: {type(error).__name__}: {error}"

    def clear(self, part: str) -> None:
        self._parts.pop(part, None)

    def note_log(self, log: Log, error: str, *, until_idle: bool = False) -> None:
        self._logs[log] = error
        (self._passing.add if until_idle else self._passing.discard)(log)

    def clear_log(self, log: Log) -> None:
        self._logs.pop(log, None)
        self._passing.discard(log)

    def log_is_idle(self, log: Log) -> None:
        if log in self._passing:
            self.clear_log(log)

    def keep_logs(self, logs: Iterable[Log]) -> None:
        """Forget all other logs."""
        wanted = set(logs)
        self._logs = {log: error for log, error in self._logs.items() if log in wanted}
        self._passing &= wanted

    @property
    def failing_logs(self) -> int:
        return len(self._logs)

    def reasons(self) -> list[str]:
        shown = [f"{log}: {self._logs[log]}" for log in sorted(self._logs)[:COMPACTOR_TROUBLES_SHOWN_MAX]]
        left = len(self._logs) - len(shown)
        return [*self._parts.values(), *shown, *([f"and {left} more logs"] if left else [])]
