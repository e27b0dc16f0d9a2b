"""librdkafka's own test runner in quick mode: the tests that talk to a broker.

The sources come with the npm package of Confluent's JavaScript client, which has the newest librdkafka of all
registries and its tests with it. Each test runs in a process of its own, because one that fails may end its process.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conformance.outcome import Result
from tests.conformance.packages import call, kept, npm_package, programs
from tests.conformance.parsing import rdkafka_results
from tests.conformance.running import each_alone, run
from tests.conformance.suite import Suite, Target

PACKAGE: Final = "@confluentinc/kafka-javascript"
PACKAGE_VERSION: Final = "1.10.1"
VERSION: Final = "2.15.1"
"""Of librdkafka, in this package."""
KAFKA_VERSION: Final = "4.3.0.0"
TEST_SECONDS_MAX: Final = 90
_TEST: Final = re.compile(r"0\d{3}-\w+\.(c|cpp)")
_CONFIGURE: Final = ("--disable-gssapi", "--disable-curl", "--disable-lz4-ext", "--disable-debug-symbols")


def _build(stage: Path) -> None:
    programs(["make", "gcc", "g++"])
    npm_package(PACKAGE, PACKAGE_VERSION, stage)
    sources = _sources(stage)
    call("./configure", *_CONFIGURE, "--no-download", directory=sources)
    jobs = f"-j{os.cpu_count() or 1}"
    call("make", jobs, "libs", directory=sources)
    call("make", jobs, "test-runner", directory=sources / "tests")


def _sources(package: Path) -> Path:
    return package / "package/deps/librdkafka"


def run_tests(target: Target) -> Iterator[Result]:
    tests = _sources(kept(f"librdkafka-{VERSION}", _build)) / "tests"
    numbers = sorted({name[:4] for name in os.listdir(tests) if _TEST.fullmatch(name)})
    (target.directory / "test.conf").write_text(
        f"bootstrap.servers={target.address}\ntest.topic.prefix=rdk\ntest.topic.random=true\n"
    )
    environment = {"TEST_KAFKA_VERSION": KAFKA_VERSION, "RDKAFKA_TEST_CONF": str(target.directory / "test.conf")}

    def one(number: str) -> list[Result]:
        ended = run(
            [tests / "test-runner", "-L", "-Q", "-E", "-p1"],
            limit_seconds=TEST_SECONDS_MAX,
            log=target.directory / f"{number}.log",
            directory=target.directory,
            environment=environment | {"TESTS": number},
        )
        return rdkafka_results(ended.output, number, ended.why)

    yield from each_alone(fnmatch.filter(numbers, target.tests), one)


SUITE: Final = Suite(
    "librdkafka",
    "librdkafka, its test runner in quick mode",
    VERSION,
    run_tests,
    settings={"LLOG_DEFAULT_PARTITIONS": "4"},
    properties={"num.partitions": "4"},
    note="tests that talk to a broker, each in a process of its own",
)
