"""What one test of a suite did, and how the results compare with the failures that are known."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from llog.kafka.conformance import Failures

ERROR_CHARS_MAX: Final = 300
UNEXPLAINED: Final = "not explained"


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Result(msgspec.Struct, frozen=True):
    name: str
    outcome: Outcome
    error: str = ""
    """The first error of a failed test, the reason of a skipped one."""


def passed(name: str) -> Result:
    return Result(name, Outcome.PASSED)


def failed(name: str, error: str) -> Result:
    return Result(name, Outcome.FAILED, short(error) or "no error was printed")


def skipped(name: str, reason: str = "") -> Result:
    return Result(name, Outcome.SKIPPED, short(reason))


def short(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= ERROR_CHARS_MAX else line[: ERROR_CHARS_MAX - 1] + "…"


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Failures with one reason. A test is named in full or by a pattern (`TestShare*`)."""

    tests: tuple[str, ...]
    reason: str
    unsteady: bool = False
    """These tests sometimes pass: neither outcome is news."""

    def matches(self, name: str) -> bool:
        return any(name == test or fnmatch.fnmatchcase(name, test) for test in self.tests)


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known to fail in one suite: on llog, and on Apache Kafka itself."""

    llog: tuple[Known, ...] = ()
    kafka: tuple[Known, ...] = ()


def read_expected(path: Path) -> dict[str, Expected]:
    return msgspec.convert(tomllib.loads(path.read_text()), dict[str, Expected])


class Comparison(msgspec.Struct, frozen=True):
    failures: tuple[Failures, ...]
    news: tuple[Result, ...]
    """Failed, and nothing says why."""
    outdated: tuple[str, ...]
    """Tests that are named as failing and passed, and patterns that no failure matched."""

    @property
    def agrees(self) -> bool:
        return not self.news and not self.outdated


def compare(results: Sequence[Result], known: Sequence[Known]) -> Comparison:
    groups: dict[str, list[Result]] = {}
    news = []
    for result in results:
        if result.outcome is not Outcome.FAILED:
            continue
        reason = next((each.reason for each in known if each.matches(result.name)), None)
        if reason is None:
            news.append(result)
        groups.setdefault(reason or UNEXPLAINED, []).append(result)
    failures = [
        Failures(reason, tuple(sorted(result.name for result in group)), group[0].error)
        for reason, group in groups.items()
    ]
    failures.sort(key=lambda each: (-len(each.tests), each.reason))
    return Comparison(tuple(failures), tuple(news), tuple(_outdated(results, known)))


def _outdated(results: Sequence[Result], known: Sequence[Known]) -> Iterable[str]:
    failures = [result.name for result in results if result.outcome is Outcome.FAILED]
    for each in known:
        if each.unsteady:
            continue
        for test in each.tests:
            if not any(name == test or fnmatch.fnmatchcase(name, test) for name in failures):
                yield test


def count(results: Iterable[Result], outcome: Outcome) -> int:
    return sum(result.outcome is outcome for result in results)
