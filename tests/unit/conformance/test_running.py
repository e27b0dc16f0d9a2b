from __future__ import annotations

import os
from pathlib import Path

import pytest

from llog.testing.servers import ServerUnavailable
from tests.conformance.outcome import Outcome, passed
from tests.conformance.packages import call, kept
from tests.conformance.running import each_alone, run
from tests.conformance.suite import Claims


def test_a_program_gives_its_code_and_both_of_its_streams(tmp_path: Path) -> None:
    ended = run(["sh", "-c", "cat; echo no >&2; exit 3"], limit_seconds=60, log=tmp_path / "log", given="yes\n")
    assert (ended.code, ended.output, ended.why) == (3, "yes\nno\n", "exit code 3")


def test_a_program_over_its_limit_is_killed_with_what_it_started(tmp_path: Path) -> None:
    ended = run(["sh", "-c", "sleep 600 & echo $!; wait"], limit_seconds=0.3, log=tmp_path / "log")
    assert (ended.code, ended.why) == (None, "over its time limit")
    for line in ended.output.split():
        stat = Path(f"/proc/{line}/stat")
        assert not stat.exists() or " Z " in stat.read_text(), "the sleeper lives"


def test_results_keep_the_order_of_the_tests() -> None:
    names = [f"test-{number}" for number in range(10)]
    assert list(each_alone(names, lambda name: [passed(name)])) == [passed(name) for name in names]


def test_a_claim_holds_unless_its_block_raises() -> None:
    claims = Claims()
    with claims.claim("good"):
        pass
    with claims.claim("bad"):
        raise ValueError("because")
    assert [(result.name, result.outcome) for result in claims.results] == [
        ("good", Outcome.PASSED),
        ("bad", Outcome.FAILED),
    ]
    assert claims.results[1].error == "ValueError: because"


def test_a_package_is_made_once_and_half_of_one_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLOG_SERVERS_CACHE", str(tmp_path))

    def fail(stage: Path) -> None:
        (stage / "half").touch()
        raise ServerUnavailable("no network")

    with pytest.raises(ServerUnavailable):
        kept("it-1", fail)
    made = kept("it-1", lambda stage: (stage / "whole").touch())
    assert os.listdir(made) == ["whole"]
    assert kept("it-1", fail) == made


def test_a_package_manager_that_is_missing_or_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="no-such-program is not installed"):
        call("no-such-program", directory=tmp_path)
    with pytest.raises(ServerUnavailable, match="not found in registry"):
        call("sh", "-c", "echo not found in registry >&2; exit 1", directory=tmp_path)
