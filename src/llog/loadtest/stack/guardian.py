"""The process that ends a run whose orchestrator was killed: `python -m llog.loadtest.stack.guardian RUN_DIR`.

Its standard input is a pipe from the orchestrator, which writes `GOODBYE` when it has ended the run itself, or leaves
it running on purpose. The kernel closes the pipe when the orchestrator dies in whatever way; without a goodbye, the
guardian does what `llog loadtest down` does. It is the first process of a run, in a session of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.stack.record import StackFile
from llog.loadtest.stack.teardown import take_down

NAME: Final = "guardian"
GOODBYE: Final = b"goodbye\n"
REASON: Final = "the orchestrator ended without taking the run down; the guardian did"


class Guardian:
    """The orchestrator's end of the pipe."""

    def __init__(self, stack: StackFile, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "llog.loadtest.stack.guardian", str(stack.run.path)]
        self._child = stack.launch(NAME, "other", command, environment, stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self._child.pid

    def dismiss(self) -> None:
        """The run needs it no more."""
        try:
            self._child.communicate(GOODBYE)
        except OSError:  # it was ended already, by `llog loadtest down`
            self._child.wait()


def main(run: RunDirectory) -> None:
    # The terminal and a service manager signal whole groups: the guardian must outlive the orchestrator.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.stdin.buffer.read() != GOODBYE:
        taken = take_down(run, reason=REASON)
        print(f"{REASON}: ended {', '.join(taken.ended) or 'nothing'}", flush=True)


if __name__ == "__main__":
    main(RunDirectory(Path(sys.argv[1])))
