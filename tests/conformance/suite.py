"""What a suite is: a name, the version of its package, and a function that runs it against a broker's address."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.conformance.outcome import Result, failed, passed


class Target(NamedTuple):
    """The broker that a suite judges."""

    address: str
    directory: Path
    """Empty, for the suite's files and logs."""
    tests: str = "*"
    """A pattern of the tests to run, for suites that run tests one by one; the others run all."""


class Suite(NamedTuple):
    name: str
    title: str
    version: str
    run: Callable[[Target], Iterable[Result]]
    settings: Mapping[str, str] = {}
    """Of llog, where the suite needs others than the default ones."""
    properties: Mapping[str, str] = {}
    """Of Apache Kafka, likewise."""
    note: str = ""
    """How the suite runs here, for the table."""


class Claims:
    """The results of a suite that is a script of ours: a claim holds if its block ends without an error."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    @contextmanager
    def claim(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.results.append(failed(name, f"{type(error).__name__}: {error}"))
        else:
            self.results.append(passed(name))


def until(what: str, ready: Callable[[], bool], seconds: float, pause_seconds: float = 0.2) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause_seconds)
