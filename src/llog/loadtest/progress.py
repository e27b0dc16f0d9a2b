"""What the orchestrator shows while it works, on stderr, and the steps that it notes in `steps.jsonl`.

On a terminal the present step is a line with a spinner; elsewhere every step is a line, and details of a long step are
printed at most every `DETAIL_S`. With `quiet` nothing is shown.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from llog.loadtest.artifacts import StepEvent
from llog.loadtest.run_directory import RunDirectory

STEPS: Final = "steps.jsonl"
DETAIL_S: Final = 10.0


class Progress:
    """`with Progress(quiet) as progress:`"""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._console = quiet, Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._began_s, self._text, self._detail_s = time.monotonic(), "", 0.0
        self.run: RunDirectory | None = None

    def step(self, name: str, text: str) -> None:
        """The orchestrator begins to do this."""
        if self.run is not None:
            self.run.append(STEPS, StepEvent(time.time(), name, text))
        self._text, self._detail_s = text, time.monotonic()
        if self._status is not None:
            self._status.update(escape(text))
        self.line(text)

    def detail(self, text: str) -> None:
        """How far the step is."""
        if self._quiet:
            return
        if self._status is not None:
            self._status.update(escape(f"{self._text}: {text}"))
        elif time.monotonic() - self._detail_s >= DETAIL_S:
            self._detail_s = time.monotonic()
            self.line(f"{self._text}: {text}")

    def line(self, text: str) -> None:
        if not self._quiet:
            self._console.print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._status = self._console.status("").__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.__exit__(kind, error, trace)
            self._status = None
