"""The results of `make conformance`, kept in docs/measurements/conformance.json, and their table on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

RESULTS: Final = Path(__file__).parents[3] / "docs/measurements/conformance.json"
NAMES_MAX: Final = 3
"""So many tests that failed for one reason are named; more are counted."""


class Failures(msgspec.Struct, frozen=True):
    """Failed tests that share a reason."""

    reason: str
    tests: tuple[str, ...]
    error: str
    """The first error of the first of them."""


class Judgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one suite found of one broker."""

    passed: int = 0
    skipped: int = 0
    failures: tuple[Failures, ...] = ()
    seconds: float = 0.0
    missing: str = ""
    """Why the suite did not run."""

    @property
    def failed(self) -> int:
        return sum(len(each.tests) for each in self.failures)


class SuiteResults(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    title: str
    version: str
    note: str = ""
    llog: Judgement | None = None
    kafka: Judgement | None = None


def read_results(path: Path = RESULTS) -> tuple[SuiteResults, ...]:
    return msgspec.json.decode(path.read_bytes(), type=tuple[SuiteResults, ...]) if path.exists() else ()


def write_results(results: tuple[SuiteResults, ...], path: Path = RESULTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def table(results: tuple[SuiteResults, ...]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| suite | version | passed | failed, with reason | Apache Kafka 4.3.1 |\n|---|---|---|---|---|\n"
    for row in results:
        title = f"{row.title} ({row.note})" if row.note else row.title
        yield f"| {title} | {row.version} | {_passed(row.llog)} | {_failed(row.llog)} | {_reference(row.kafka)} |\n"


def _passed(judgement: Judgement | None) -> str:
    if judgement is None:
        return "did not run"
    if judgement.missing:
        return f"skipped: {judgement.missing}"
    return f"{judgement.passed} of {judgement.passed + judgement.failed}"


def _failed(judgement: Judgement | None) -> str:
    return "" if judgement is None else "; ".join(map(_failures, judgement.failures))


def _failures(failures: Failures) -> str:
    count = len(failures.tests)
    if count > NAMES_MAX:
        return f"{count}: {failures.reason}"
    names = ", ".join(f"`{name}`" for name in failures.tests)
    return f"{names}: {failures.reason}"


def _reference(judgement: Judgement | None) -> str:
    failed = _failed(judgement)
    return f"{_passed(judgement)}; {failed}" if failed else _passed(judgement)
