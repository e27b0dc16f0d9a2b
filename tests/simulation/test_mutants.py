"""Mutants of the protocol: they fit the code, and the ones that are tried here are killed.

All of them are judged by `python -m llog.testing.mutants`, or here with LLOG_SOAK=1.
"""

from __future__ import annotations

import os

import pytest

from llog.testing.mutants import MUTANTS, Edit, Mutant, MutantOutOfDate
from llog.testing.mutants.__main__ import judge, main, run
from llog.testing.mutants.child import install
from llog.testing.mutants.mutant import check_up_to_date

SOAK = os.environ.get("LLOG_SOAK") == "1"
# One of a pure decision, one of an order of steps, one of the simulated store itself.
TRIED = ("h05a", "h07", "h12")
NAMES = [mutant.name for mutant in MUTANTS]


def _mutant(*edits: Edit) -> Mutant:
    return Mutant("h05a", "for a test", edits)


def test_mutants_have_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_a_mutant_fits_the_code_as_it_is(mutant: Mutant) -> None:
    check_up_to_date(mutant)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if SOAK or m.name in TRIED], ids=lambda m: m.name)
def test_a_mutant_is_killed_by_its_row(mutant: Mutant) -> None:
    result = run(mutant)
    assert result.killed, result.verdict


def test_a_mutant_that_changes_nothing_that_matters_survives() -> None:
    assert not judge(_mutant(), 0, "sim: h05a: script: ok\n").killed


@pytest.mark.parametrize(
    "output",
    [
        "Traceback (most recent call last):\nImportError: no such name\n",
        "sim: h05a: script: SimulationStuck: no actor can do anything any more\n",
        "sim: h05b: script: HazardViolated: of another row\n",
    ],
)
def test_only_a_violated_expectation_of_its_row_kills_a_mutant(output: str) -> None:
    result = judge(_mutant(), 1, output)
    assert not result.killed
    assert "NOT JUDGED" in result.verdict


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit("llog.log.control", "text that is not there", ""), "0 times, not once"),
        (Edit("llog.log.control", "control", "kontrol"), "times, not once"),
        (Edit("llog.log.control", "def reserve(", "def reserve("), "changes nothing"),
        (Edit("llog.log.nonesuch", "x", "y"), "no module llog.log.nonesuch"),
    ],
)
def test_a_mutant_that_does_not_fit_is_out_of_date(edit: Edit, reason: str) -> None:
    with pytest.raises(MutantOutOfDate, match=reason):
        check_up_to_date(_mutant(edit))


def test_a_module_that_is_there_already_cannot_be_changed() -> None:
    import llog.log.control

    with pytest.raises(MutantOutOfDate, match=r"llog\.log\.control was imported before"):
        install(_mutant(Edit(llog.log.control.__name__, "def reserve(", "def deserve(")))


def test_a_name_that_no_mutant_has_is_an_error_that_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nonesuch"]) == 2
    assert "h05a" in capsys.readouterr().err


def test_the_runner_tells_each_verdict_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "h05b"]) == 0
    told = capsys.readouterr().out
    assert "mutants: h05b: killed: " in told
    assert "1 killed, 0 not" in told
