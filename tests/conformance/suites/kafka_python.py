"""kafka-python's integration tests, out of its source package.

The package lacks `test/service.py`, which starts and ends brokers; for a broker that runs already, the few lines below
take its place. Tests that start a broker of their own (SASL, TLS) are not for an external one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.conformance.outcome import Result, failed
from tests.conformance.packages import kept, python_sources
from tests.conformance.parsing import junit_results
from tests.conformance.running import run
from tests.conformance.suite import Suite, Target

VERSION: Final = "3.0.12"
KAFKA_VERSION: Final = "4.3.0"
"""The broker whose features the tests use, as a number of three parts."""
TEST_SECONDS_MAX: Final = 60
SUITE_SECONDS_MAX: Final = 600
_SERVICE: Final = """\
class ExternalService:
    def __init__(self, host, port): ...
    def open(self): ...
    def close(self): ...
    def dump_logs(self): ...
    def stop(self): ...
class SpawnedService: ...
"""


def _fetch(stage: Path) -> None:
    python_sources("kafka-python", VERSION, stage)
    [sources] = stage.glob("kafka_python-*")
    (sources / "test/service.py").write_text(_SERVICE)
    (sources / "test/__init__.py").touch()  # or Python's own package `test` is found instead


def run_tests(target: Target) -> Iterable[Result]:
    [sources] = kept(f"kafka-python-{VERSION}", _fetch).glob("kafka_python-*")
    report = target.directory / "report.xml"
    modules = [f"test/integration/test_{name}_integration.py" for name in ("admin", "consumer", "producer")]
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "-q", "--tb=short", f"--junit-xml={report}"]
    options += ["-o", "addopts=", "-o", "log_level=WARNING", f"--timeout={TEST_SECONDS_MAX}", "--timeout-method=signal"]
    if target.tests != "*":
        options += ["-k", target.tests]
    ended = run(
        [sys.executable, "-m", "pytest", *options, *modules],
        limit_seconds=SUITE_SECONDS_MAX,
        log=target.directory / "pytest.log",
        directory=sources,
        environment={
            "KAFKA_URI": f"kafka://{target.address}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": str(target.directory),  # must exist; no program of it is started
            "PYTHONPATH": str(sources),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    if not report.exists():
        return [failed("the whole suite", f"{ended.why}: {ended.output[-300:]}")]
    return list(junit_results(report.read_text()))


SUITE: Final = Suite(
    "kafka-python",
    "kafka-python, integration tests",
    VERSION,
    run_tests,
    settings={"LLOG_DEFAULT_PARTITIONS": "4"},
    properties={"num.partitions": "4"},
    note="those that run against a broker that is already running",
)
