"""franz-go's own tests of its package `kgo`: produce, consume, groups, transactions, share groups."""

from __future__ import annotations

import fnmatch
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conformance.outcome import Result
from tests.conformance.packages import call, go_environment, go_module, kept
from tests.conformance.parsing import go_results
from tests.conformance.running import each_alone, run
from tests.conformance.suite import Suite, Target

MODULE: Final = "github.com/twmb/franz-go"
VERSION: Final = "v1.22.2"
RECORDS: Final = 50_000
"""Of a test that counts records (500,000 by default)."""
TEST_SECONDS_MAX: Final = 150


def _build(stage: Path) -> None:
    sources = go_module(MODULE, VERSION, stage)
    environment = go_environment()
    call("go", "test", "-c", "-o", stage / "kgo.test", ".", directory=sources / "pkg/kgo", environment=environment)


def run_tests(target: Target) -> Iterator[Result]:
    package = kept(f"franz-go-{VERSION}", _build)
    program = package / "kgo.test"
    listed = subprocess.run([program, "-test.list", "^Test"], capture_output=True, text=True, check=True)
    names = fnmatch.filter(listed.stdout.split(), target.tests)
    environment = {
        "KGO_SEEDS": target.address,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }

    def one(name: str) -> list[Result]:
        ended = run(
            [program, "-test.v", "-test.run", f"^{name}$"],
            limit_seconds=TEST_SECONDS_MAX,
            log=target.directory / f"{name}.log",
            directory=package / "sources/pkg/kgo",
            environment=environment,
        )
        return go_results(ended.output, name, ended.why)

    yield from each_alone(names, one)


SUITE: Final = Suite(
    "franz-go",
    "franz-go, package `kgo`",
    VERSION,
    run_tests,
    settings={"LLOG_DEFAULT_PARTITIONS": "4"},
    properties={"num.partitions": "4"},
    note=f"{RECORDS:,} records in each test that counts them",
)
