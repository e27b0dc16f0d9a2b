"""What holds for every test.

Property tests say what is true, not how fast: no example has a deadline, and a slow start is no fault. Hypothesis would
call a test flaky whose process was left alone by a busy machine for a fifth of a second.

A test that failed, or was given up, tells what its processes said, and which of them are still there: a hang that
happens once in a thousand runs has to explain itself the first time.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

LOG_CHARACTERS_MAX = 4_000
LOGS_MAX = 8

settings.register_profile("llog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("llog")

SEED: int = int(os.environ.setdefault("TEST_SEED", str(secrets.randbelow(2**30))))
"""The seed of this run; workers of a parallel run inherit it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        default="llog",
        help="the broker that Kafka clients judge: llog (default), reference (Apache Kafka), or host:port",
    )


def pytest_report_header() -> str:
    return f"seed: TEST_SEED={SEED} repeats random choices; property tests need --hypothesis-seed={SEED} too"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random choices of one test: the same for the same TEST_SEED, whatever else runs."""
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.when == "call":
        report.sections += _logs(getattr(item, "funcargs", {}).get("tmp_path"))
        children = "\n".join(_children())
        if children:
            report.sections.append(("processes that are still there", children))
    return report


def _logs(directory: object) -> list[tuple[str, str]]:
    """The ends of what the processes of a test wrote: files named `log…` or `….log`."""
    if not isinstance(directory, Path):
        return []
    found = [path for path in (*directory.glob("log*"), *directory.glob("*.log")) if path.is_file()]
    ends = ((path.name, path.read_text(errors="replace")[-LOG_CHARACTERS_MAX:]) for path in sorted(found)[:LOGS_MAX])
    return [(f"end of {name}", end) for name, end in ends if end]


def _children() -> Iterator[str]:
    for child in psutil.Process().children(recursive=True):
        try:
            yield f"{child.pid} {child.status()} in {_waits_in(child.pid)}: {' '.join(child.cmdline())[:300]}"
        except psutil.Error:
            continue


def _waits_in(pid: int) -> str:
    """The function of the kernel that it waits in, where that is told."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "?"
    except OSError:
        return "?"
