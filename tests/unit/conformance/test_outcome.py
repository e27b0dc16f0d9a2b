from __future__ import annotations

from pathlib import Path

from llog.kafka.conformance import Failures, Judgement, SuiteResults, read_results, table, write_results
from tests.conformance.__main__ import EXPECTED
from tests.conformance.outcome import ERROR_CHARS_MAX, UNEXPLAINED, Known, compare, failed, passed, read_expected
from tests.conformance.suites import SUITES

SHARE = Known(("TestShare*", "TestQueue"), "share groups do not exist")


def test_failures_with_a_known_reason_agree_with_what_is_expected() -> None:
    comparison = compare([failed("TestShareA", "x"), failed("TestQueue", "y"), passed("TestB")], [SHARE])
    assert comparison.failures == (Failures(SHARE.reason, ("TestQueue", "TestShareA"), "x"),)
    assert comparison.agrees


def test_a_failure_without_a_reason_is_news() -> None:
    comparison = compare([failed("TestShareA", "x"), failed("TestQueue", "y"), failed("TestB", "z")], [SHARE])
    assert comparison.news == (failed("TestB", "z"),)
    assert Failures(UNEXPLAINED, ("TestB",), "z") in comparison.failures
    assert not comparison.agrees


def test_an_expected_failure_that_passes_is_outdated() -> None:
    comparison = compare([failed("TestShareA", "x"), passed("TestQueue")], [SHARE])
    assert comparison.outdated == ("TestQueue",)
    assert not comparison.agrees


def test_a_pattern_that_no_failure_matches_is_outdated() -> None:
    assert compare([passed("TestShareA"), failed("TestQueue", "y")], [SHARE]).outdated == ("TestShare*",)


def test_an_unsteady_test_may_pass_and_fail() -> None:
    unsteady = Known(("TestA",), "depends on time", unsteady=True)
    assert compare([passed("TestA")], [unsteady]).agrees
    assert compare([failed("TestA", "late")], [unsteady]).agrees


def test_brackets_of_a_parameter_are_matched_as_they_stand() -> None:
    known = Known(("test_a[x]",), "why")
    assert compare([failed("test_a[x]", "e")], [known]).agrees


def test_errors_are_one_line_of_bounded_length() -> None:
    result = failed("TestA", "first\n  second " + "x" * 1_000)
    assert result.error.startswith("first second xxx")
    assert len(result.error) == ERROR_CHARS_MAX


def test_what_is_expected_names_suites_that_exist() -> None:
    assert set(read_expected(EXPECTED)) <= {suite.name for suite in SUITES}


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = (SuiteResults("a", "A", "1", llog=Judgement(3, 1, (Failures("why", ("x",), "e"),), 2.5)),)
    write_results(results, tmp_path / "results.json")
    assert read_results(tmp_path / "results.json") == results


def test_the_table_names_few_failures_and_counts_many() -> None:
    few, many = Failures("few", ("a", "b"), ""), Failures("many", ("c", "d", "e", "f"), "")
    results = (
        SuiteResults("s", "Suite", "1.2", "a note", llog=Judgement(4, 1, (many, few)), kafka=Judgement(10)),
        SuiteResults("t", "Other", "3", kafka=Judgement(missing="Go is not installed")),
    )
    assert list(table(results))[1:] == [
        "| Suite (a note) | 1.2 | 4 of 10 | 4: many; `a`, `b`: few | 10 of 10 |\n",
        "| Other | 3 | did not run |  | skipped: Go is not installed |\n",
    ]
