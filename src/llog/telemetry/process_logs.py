"""Logs of a process: lines for a person at a terminal, JSON for everything else.

A line is an event, a level, a time, and fields (`extra={"llog": {…}}`). An event is one line, also when it carries a
traceback, so that log collectors can split at line ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from llog.audit_log import AUDIT_LOGGER, printable

LOG_LINES_DELAY_MS: Final = 50
"""How long a line waits for others, to be written together."""
LOG_LINES_WAITING_MAX: Final = 256

LOGGER: Final = "llog"
_ENCODER: Final = msgspec.json.Encoder()
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))


class GatheredLines(logging.StreamHandler[TextIO]):
    """Writes the lines of an event loop together, a moment later: each write releases the interpreter, and a broker
    under load logs a line per request. A warning is written at once, with the lines before it."""

    def __init__(self, stream: TextIO, delay_ms: float = LOG_LINES_DELAY_MS) -> None:
        super().__init__(stream)
        self._delay_ms = delay_ms
        self._lines: list[str] = []
        self._due = 0.0
        """When the loop is scheduled to write them; a loop that ends earlier never does."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + self.terminator)
            if record.levelno >= logging.WARNING or len(self._lines) >= LOG_LINES_WAITING_MAX:
                self.flush()
            elif time.monotonic() >= self._due:
                self._flush_soon()
        except Exception:
            self.handleError(record)

    def _flush_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
        else:
            self._due = time.monotonic() + self._delay_ms / 1_000
            loop.call_later(self._delay_ms / 1_000, self.flush)

    def flush(self) -> None:
        with self.lock or nullcontext():
            lines, self._lines, self._due = self._lines, [], 0.0
            if lines:
                self.stream.write("".join(lines))
            super().flush()


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        for name, value in line.items():
            if type(value) not in _PLAIN:
                line[name] = _plain(value)
        return _ENCODER.encode(line).decode()


class TerminalLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        # Clients choose some of the texts: they must not move the cursor or look like a line of ours.
        text = printable(f"{record.levelname.lower():7} {record.getMessage()} {fields}")
        text = f"{_time(record):%H:%M:%S.%f}"[:-3] + f" {text}"
        return f"{text.rstrip()}\n{self.formatException(record.exc_info)}" if record.exc_info else text.rstrip()


def configure_logging(stream: TextIO | None = None, level: int | str = logging.INFO) -> logging.Handler:
    """Send llog's logs to `stream` (stderr). Replaces what an earlier call set up."""
    # Every request writes a line, and none of them says which thread or process it was.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    stream = sys.stderr if stream is None else stream
    handler = GatheredLines(stream)
    handler.setFormatter(TerminalLines() if stream.isatty() else JsonLines())
    handler.set_name(LOGGER)
    logger = logging.getLogger(LOGGER)
    for former in [each for each in logger.handlers if each.name == LOGGER]:
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def ensure_audit_lines() -> None:
    """Write audit lines to stderr in a process that has set up no logging: a command, a Spark driver."""
    logger = logging.getLogger(AUDIT_LOGGER)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TerminalLines() if sys.stderr.isatty() else JsonLines())
        logger.addHandler(handler)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "llog", None)
    return fields if isinstance(fields, dict) else {}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)
