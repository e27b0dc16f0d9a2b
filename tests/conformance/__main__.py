"""`python -m tests.conformance [SUITE…]`: runs other people's tests and programs against our Kafka port.

Each suite judges a broker that is started fresh for it. Its results are compared with the failures that
tests/conformance/expected.toml explains; a failure that it does not explain, and an explained one that passed, make
this program fail. Logs stay in build/conformance until the next run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from llog.kafka.conformance import Judgement, SuiteResults, read_results, write_results
from llog.testing.servers import ServerUnavailable
from tests.conformance.brokers import KAFKA, LLOG, broker
from tests.conformance.outcome import Comparison, Expected, Outcome, Result, compare, count, read_expected
from tests.conformance.suite import Suite, Target
from tests.conformance.suites import SUITES

ROOT: Final = Path(__file__).parents[2]
EXPECTED: Final = Path(__file__).with_name("expected.toml")
LOGS: Final = ROOT / "build/conformance"
RUN: Final = "results.json"


def main() -> int:
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(names)}; all without")
    parser.add_argument("--broker", default=LLOG, help="llog (started), kafka (Apache Kafka, started) or an address")
    parser.add_argument("--reference", dest="broker", action="store_const", const=KAFKA, help="as --broker kafka")
    parser.add_argument("--last", action="store_true", help="judge the results of the last run again; run nothing")
    parser.add_argument("--store", action="store_true", help="keep the results in docs/measurements/conformance.json")
    parser.add_argument("--tests", default="*", help="a pattern of tests (librdkafka: numbers; kafka-python: as -k)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.suites) - set(names))
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)} (there are: {', '.join(names)})")
    if arguments.store and (arguments.broker not in (LLOG, KAFKA) or arguments.tests != "*"):
        parser.error("only results of whole suites, of llog and of Apache Kafka, are kept")
    chosen = [suite for suite in SUITES if not arguments.suites or suite.name in arguments.suites]
    agree = [
        _judge(suite, arguments.broker, arguments.tests, last=arguments.last, store=arguments.store) for suite in chosen
    ]
    return 0 if all(agree) else 1


class Run(msgspec.Struct, frozen=True):
    """What is kept of the last run of a suite, as results.json beside its logs."""

    seconds: float
    results: tuple[Result, ...]


def _judge(suite: Suite, which: str, tests: str, *, last: bool, store: bool) -> bool:
    """Whether the results are the expected ones."""
    directory = LOGS / which.replace(":", "-") / suite.name
    try:
        run = _last_run(directory) if last else _run(suite, which, tests, directory)
    except ServerUnavailable as reason:
        print(f"{suite.name}: skipped: {reason}", flush=True)
        if store:
            _store(suite, which, Judgement(missing=str(reason)))
        return True
    expected = read_expected(EXPECTED).get(suite.name, Expected())
    comparison = compare(run.results, expected.kafka if which == KAFKA else expected.llog)
    if tests != "*":  # a part of the suite says nothing about the tests that did not run
        comparison = msgspec.structs.replace(comparison, outdated=())
    passes, skips = count(run.results, Outcome.PASSED), count(run.results, Outcome.SKIPPED)
    judgement = Judgement(passes, skips, comparison.failures, run.seconds)
    _report(suite, judgement, comparison)
    if store:
        _store(suite, which, judgement)
    return comparison.agrees


def _run(suite: Suite, which: str, tests: str, directory: Path) -> Run:
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "suite").mkdir(parents=True)
    began = time.monotonic()
    with broker(which, suite, directory) as address:
        results = tuple(suite.run(Target(address, directory / "suite", tests)))
    run = Run(round(time.monotonic() - began, 1), results)
    (directory / RUN).write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    return run


def _last_run(directory: Path) -> Run:
    return msgspec.json.decode((directory / RUN).read_bytes(), type=Run)


def _report(suite: Suite, judgement: Judgement, comparison: Comparison) -> None:
    print(
        f"{suite.name} {suite.version}: {judgement.passed} passed, {judgement.failed} failed, "
        f"{judgement.skipped} skipped in {judgement.seconds:.0f} s",
        flush=True,
    )
    for failures in comparison.failures:
        print(f"  {len(failures.tests)} failed: {failures.reason}")
    for result in comparison.news:
        print(f"  NEW FAILURE {result.name}: {result.error}")
    for name in comparison.outdated:
        print(f"  NO LONGER FAILS {name}: take it out of {EXPECTED.relative_to(ROOT)}")
    sys.stdout.flush()


def _store(suite: Suite, which: str, judgement: Judgement) -> None:
    """Replace one cell of the table; the others stay."""
    rows = {row.name: row for row in read_results()}
    before = rows.get(suite.name, SuiteResults(suite.name, suite.title, suite.version))
    rows[suite.name] = SuiteResults(
        suite.name,
        suite.title,
        suite.version,
        suite.note,
        judgement if which == LLOG else before.llog,
        judgement if which == KAFKA else before.kafka,
    )
    write_results(tuple(rows[each.name] for each in SUITES if each.name in rows))


if __name__ == "__main__":
    sys.exit(main())
