"""Programs with a time limit: a suite's test runner, and suites whose tests run in a process each."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.conformance.outcome import Result

PROCESSES_MAX: Final = 2
OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is read of one program's output, from its end."""


class Ended(NamedTuple):
    code: int | None
    """None: it was killed at its time limit."""
    output: str

    @property
    def why(self) -> str:
        return "over its time limit" if self.code is None else f"exit code {self.code}"


def run(
    command: Sequence[str | Path],
    *,
    limit_seconds: float,
    log: Path,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
) -> Ended:
    """The program's output, both streams in one; at the limit it is killed with every process that it started."""
    with open(log, "wb") as output:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=directory,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            child.communicate(None if given is None else given.encode(), timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, _end_of(log))
        finally:
            end_group(child)
    return Ended(child.returncode, _end_of(log))


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and of those that it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of them have ended
    child.wait()


def _end_of(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - OUTPUT_BYTES_MAX))
        return file.read().decode(errors="replace")


def each_alone(names: Iterable[str], test: Callable[[str], Iterable[Result]]) -> Iterator[Result]:
    """The results of tests that run in processes of their own, two at a time, in the order of the names."""
    with ThreadPoolExecutor(PROCESSES_MAX) as pool:
        for results in pool.map(lambda name: list(test(name)), names):
            yield from results
