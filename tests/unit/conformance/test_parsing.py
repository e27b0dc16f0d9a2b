from __future__ import annotations

from tests.conformance.outcome import Outcome, failed, passed, skipped
from tests.conformance.parsing import go_results, junit_results, rdkafka_results

GO = """\
=== RUN   TestGroup
=== RUN   TestGroup/range
    group_test.go:96: unexpected number of records: 3 != 4
=== RUN   TestGroup/sticky
--- FAIL: TestGroup (3.20s)
    --- FAIL: TestGroup/range (1.20s)
    --- PASS: TestGroup/sticky (2.00s)
FAIL
"""
RDKAFKA = """\
[<MAIN>                      /  0.000s] Running test 0030_offset_commit ================
\x1b[31m### Test "0030_offset_commit" failed at 0030.c:123:do_test() at Wed: ###
expected no error, got: Broker: Not coordinator
TEST 20261118 (bare, scenario default) SUMMARY
#==================================================================#
|\x1b[36m <MAIN>                                   |    RUNNING |   1.2s \x1b[0m|
|\x1b[31m 0030_offset_commit                       |     FAILED |  1.100s \x1b[0m|\x1b[31m expected no error\x1b[0m
|\x1b[36m 0030_offset_commit_local                 |    SKIPPED |  0.000s \x1b[0m|\x1b[36m local\x1b[0m
|\x1b[32m 0031_get_offsets                         |     PASSED |  0.100s \x1b[0m|
"""


def test_of_a_go_test_with_subtests_the_subtests_are_the_results() -> None:
    assert go_results(GO, "TestGroup", "exit code 1") == [
        failed("TestGroup/range", "unexpected number of records: 3 != 4"),
        passed("TestGroup/sticky"),
    ]


def test_a_go_test_that_fails_beside_passing_subtests_is_a_result_itself() -> None:
    text = "    a_test.go:1: leak\n--- FAIL: TestA (0.10s)\n    --- PASS: TestA/one (0.00s)\n"
    assert go_results(text, "TestA", "exit code 1") == [passed("TestA/one"), failed("TestA", "leak")]


def test_a_go_test_without_subtests_is_one_result() -> None:
    assert go_results("--- PASS: TestA (0.00s)\nPASS\n", "TestA", "exit code 0") == [passed("TestA")]
    text = "    a_test.go:7: needs share groups\n--- SKIP: TestA (0.00s)\n"
    assert go_results(text, "TestA", "exit code 0") == [skipped("TestA", "needs share groups")]


def test_a_go_test_that_did_not_end_failed() -> None:
    text = "=== RUN   TestA\n    --- PASS: TestA/one (0.00s)\npanic: boom\n\ngoroutine 1\n"
    assert go_results(text, "TestA", "over its time limit") == [
        passed("TestA/one"),
        failed("TestA", "boom (over its time limit)"),
    ]


def test_results_of_pytest_are_named_by_module_and_test() -> None:
    text = """<testsuites><testsuite>
    <testcase classname="test.integration.test_admin" name="test_a[x]"/>
    <testcase classname="test.integration.test_admin" name="test_b"><failure message="assert 1 == 2"/></testcase>
    <testcase classname="test.integration.test_admin" name="test_c"><error message="no group"/></testcase>
    <testcase classname="test.integration.test_admin" name="test_d"><skipped message="old broker"/></testcase>
    </testsuite></testsuites>"""
    assert list(junit_results(text)) == [
        passed("test_admin::test_a[x]"),
        failed("test_admin::test_b", "assert 1 == 2"),
        failed("test_admin::test_c", "no group"),
        skipped("test_admin::test_d", "old broker"),
    ]


def test_rows_of_librdkafkas_summary_with_the_number_are_the_results() -> None:
    assert rdkafka_results(RDKAFKA, "0030", "exit code 1") == [
        failed("0030_offset_commit", "expected no error"),
        skipped("0030_offset_commit_local", "local"),
    ]
    assert rdkafka_results(RDKAFKA, "0031", "exit code 0") == [passed("0031_get_offsets")]


def test_a_test_of_librdkafka_that_fell_before_the_summary_failed_with_the_first_error() -> None:
    [result] = rdkafka_results(RDKAFKA.partition("TEST 2026")[0], "0030", "over its time limit")
    assert (result.name, result.outcome) == ("0030_offset_commit", Outcome.FAILED)
    assert result.error == "expected no error, got: Broker: Not coordinator (over its time limit)"
