"""The orchestrator's end of the collector process, which samples brokers, processes and the host beside the load."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Final

from llog.errors import StackFailed
from llog.loadtest.artifacts import Phase
from llog.loadtest.stack.record import StackFile

NAME: Final = "collector"
FINAL_S_MAX: Final = 60.0
"""For the last sample, and the end of the process."""


class Collector:
    """Orders are JSON lines on the process's standard input; its end means end without a last sample."""

    def __init__(self, stack: StackFile, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "llog.loadtest.collect.process", str(stack.run.path)]
        self._stack = stack
        self._child = stack.launch(NAME, "collector", command, environment, stdin=subprocess.PIPE)

    def phase(self, phase: Phase) -> None:
        """A sample is taken at the border of two phases."""
        self._order(order="phase", phase=phase)

    async def final(self) -> None:
        """Take the last sample and end. Raises `StackFailed`."""
        self._order(order="final")
        code = await asyncio.to_thread(self._ended)
        if code != 0:
            raise StackFailed(NAME, f"it ended with {code}; {self._stack.log_tail(NAME)}")

    def _ended(self) -> int:
        assert self._child.stdin is not None
        try:
            self._child.stdin.close()
            return self._child.wait(FINAL_S_MAX)
        except (OSError, subprocess.TimeoutExpired) as error:
            self._child.kill()
            self._child.wait()
            raise StackFailed(NAME, f"it took no last sample: {error}") from None

    def _order(self, **order: str) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise StackFailed(NAME, f"it takes no orders ({error}); {self._stack.log_tail(NAME)}") from None
