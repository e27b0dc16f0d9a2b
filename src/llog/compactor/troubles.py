"""Current problems of the compactor, for its health page and its log: noted when a step fails, cleared when it
succeeds.

A store that is away fails every step again and again. So a problem has one line when it begins, another when the type
of its error changes, and one when it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from llog.errors import LlogError
from llog.limits import COMPACTOR_TROUBLES_SHOWN_MAX
from llog.log.keys import Log

_log: Final = logging.getLogger("llog.compactor")


class _Trouble(NamedTuple):
    since_ms: int
    error_type: str


class Troubles:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._begun: dict[str, _Trouble] = {}
        """By part or log: what has a line that no other line has ended."""
        self._parts: dict[str, str] = {}
        """The last error of each part of the service."""
        self._logs: dict[Log, str] = {}
        self._passing: set[Log] = set()
        """Logs with a problem that ends as soon as they need no work."""

    def note(self, part: str, error: BaseException) -> None:
        self._parts[part] = f"{part}: {type(error).__name__}: {error}"
        self._begin(part, type(error).__name__, str(error), None if isinstance(error, LlogError) else error)

    def clear(self, part: str) -> None:
        if self._parts.pop(part, None) is not None:
            self._end(part)

    def note_log(self, log: Log, error: str, *, until_idle: bool = False) -> None:
        self._logs[log] = error
        error_type, _, reason = error.partition(": ")
        self._begin(str(log), error_type, reason)
        (self._passing.add if until_idle else self._passing.discard)(log)

    def clear_log(self, log: Log) -> None:
        if self._logs.pop(log, None) is not None:
            self._end(str(log))
        self._passing.discard(log)

    def log_is_idle(self, log: Log) -> None:
        if log in self._passing:
            self.clear_log(log)

    def keep_logs(self, logs: Iterable[Log]) -> None:
        """Forget all other logs."""
        wanted = set(logs)
        for log in self._logs.keys() - wanted:
            self._begun.pop(str(log), None)
        self._logs = {log: error for log, error in self._logs.items() if log in wanted}
        self._passing &= wanted

    def _begin(self, what: str, error_type: str, reason: str, unforeseen: BaseException | None = None) -> None:
        begun = self._begun.get(what)
        if begun is None or begun.error_type != error_type:
            since_ms = self._now_ms() if begun is None else begun.since_ms
            self._begun[what] = _Trouble(since_ms, error_type)
            fields = {"what": what, "error_type": error_type, "error": reason}
            _log.warning("work fails", exc_info=unforeseen, extra={"llog": fields})

    def _end(self, what: str) -> None:
        begun = self._begun.pop(what, None)
        if begun is not None:
            fields = {"what": what, "error_type": begun.error_type, "failed_ms": self._now_ms() - begun.since_ms}
            _log.info("work succeeds again", extra={"llog": fields})

    @property
    def failing_logs(self) -> int:
        return len(self._logs)

    def reasons(self) -> list[str]:
        shown = [f"{log}: {self._logs[log]}" for log in sorted(self._logs)[:COMPACTOR_TROUBLES_SHOWN_MAX]]
        left = len(self._logs) - len(shown)
        return [*self._parts.values(), *shown, *([f"and {left} more logs"] if left else [])]
