"""Results out of what test runners print: `go test -v`, JUnit XML and librdkafka's report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

from tests.conformance.outcome import Result, failed, passed, skipped

_GO_END: Final = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \([0-9.]+s\)$", re.MULTILINE)
_GO_LINE: Final = re.compile(r"^\s+\w+_test\.go:\d+: (.*)$", re.MULTILINE)
_GO_PANIC: Final = re.compile(r"^(?:panic|fatal error): (.*)$", re.MULTILINE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m|\x1b\(B")
_RDKAFKA_ROW: Final = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*(\w+)\s*\|\s*[0-9.]+s\s*\|\s*(.*)$", re.MULTILINE)
_RDKAFKA_BEGUN: Final = re.compile(r"Running test (\d{4}_\w+) ===")
_RDKAFKA_FAILURE: Final = re.compile(r"^### Test .*###\n(.*)$", re.MULTILINE)


def go_results(output: str, test: str, ended: str) -> list[Result]:
    """Of one top-level test that ran alone: itself, or its subtests where it has some.

    `ended` says how the process ended, for a test that did not come to an end.
    """
    endings = {name: end for end, name in _GO_END.findall(output)}
    below = [name for name in endings if name.startswith(f"{test}/")]
    leaves = [name for name in below if not any(other.startswith(f"{name}/") for other in below)]
    results = [_go_result(name, endings[name], output) for name in leaves]
    if test not in endings:
        return [*results, failed(test, f"{_go_error(output)} ({ended})".strip())]
    failed_below = any(endings[name] == "FAIL" for name in leaves)
    if not leaves or (endings[test] == "FAIL" and not failed_below):
        results.append(_go_result(test, endings[test], output))
    return results


def _go_result(name: str, end: str, output: str) -> Result:
    if end == "PASS":
        return passed(name)
    return failed(name, _go_error(output)) if end == "FAIL" else skipped(name, _go_error(output))


def _go_error(output: str) -> str:
    """The first line that a test logged by t.Error, t.Skip and the like, or a panic."""
    panic = _GO_PANIC.search(output)
    line = _GO_LINE.search(output)
    chosen = panic or line
    return chosen.group(1) if chosen else ""


def junit_results(text: str) -> Iterator[Result]:
    """Of pytest's `--junit-xml`."""
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        problem = case.find("failure")
        problem = case.find("error") if problem is None else problem
        left_out = case.find("skipped")
        if problem is not None:
            yield failed(name, problem.get("message", "") or problem.text or "")
        elif left_out is not None:
            yield skipped(name, left_out.get("message", ""))
        else:
            yield passed(name)


def rdkafka_results(output: str, number: str, ended: str) -> list[Result]:
    """Of the tests with one number, which ran alone with librdkafka's runner."""
    text = _COLOUR.sub("", output)
    rows = [row for row in _RDKAFKA_ROW.findall(text) if row[0].startswith(number)]
    if not rows and "SUMMARY" not in text:  # the runner was killed, or fell
        begun = [name for name in _RDKAFKA_BEGUN.findall(text) if name.startswith(number)] or [number]
        return [failed(begun[-1], f"{_rdkafka_error(text)} ({ended})".strip())]
    results = []
    for name, state, reason in rows:
        if state == "PASSED":
            results.append(passed(name))
        elif state == "SKIPPED":
            results.append(skipped(name, reason))
        elif state in ("FAILED", "RUNNING"):
            results.append(failed(name, reason or f"{_rdkafka_error(text)} ({ended})"))
    return results


def _rdkafka_error(text: str) -> str:
    match = _RDKAFKA_FAILURE.search(text)
    return match.group(1) if match else ""
