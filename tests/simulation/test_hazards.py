"""Every known hazard, played on the real code: with the rules in place none of them does harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

import llog.testing.hazards
from llog.testing.mutants import MUTANTS, NOT_COVERED
from llog.testing.sim import SCENARIOS, run_script

ROWS = sorted(name for name, what in SCENARIOS.items() if what.module.startswith(llog.testing.hazards.__name__))
# Their order of events exists only where an append is pending for a while.
COMPARE_AND_SET_ONLY = {"h01a", "h05b", "h27"}


@pytest.mark.parametrize("row", ROWS)
def test_a_hazard_does_no_harm_on_a_compare_and_set_store(row: str) -> None:
    run = run_script(SCENARIOS[row])
    assert run.ok, f"{run.error}\n{run.printed}"


@pytest.mark.parametrize("row", [row for row in ROWS if row not in COMPARE_AND_SET_ONLY])
def test_a_hazard_does_no_harm_on_an_atomic_store(row: str) -> None:
    what = SCENARIOS[row]
    run = run_script(replace(what, options={**what.options, "atomic_groups": True}))
    assert run.ok, f"{run.error}\n{run.printed}"


def test_every_row_has_a_mutant_and_every_mutant_a_row() -> None:
    assert {mutant.row for mutant in MUTANTS} == set(ROWS)
    assert not NOT_COVERED.keys() & set(ROWS)
