"""Appends that mean one incarnation of a topic, under simulation; and that the scenario notices when a rule is gone."""

from __future__ import annotations

import pytest

from llog.log.append.append import _Delivery
from llog.testing import incarnation_scenarios
from llog.testing.incarnation_scenarios import Meant
from llog.testing.sim import check_repeatable, find, run_seed
from llog.testing.sim.scenario import SimRun

SEEDS = range(1, 16)


def runs(name: str) -> list[SimRun]:
    what = find(name)
    assert what.module == incarnation_scenarios.__name__
    return [run_seed(what, seed, keep_trace=False) for seed in SEEDS]


@pytest.mark.parametrize("name", ["incarnations-atomic", "incarnations-cas"])
def test_records_are_only_in_the_incarnation_that_they_mean(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Meant] = []
    monkeypatch.setattr(incarnation_scenarios, "Meant", lambda *fields: outcomes.append(Meant(*fields)))
    for seed, run in zip(SEEDS, runs(name), strict=True):
        assert run.ok, f"{name}, seed {seed}: {run.error}\n{run.printed}"
    assert {outcome.landed for outcome in outcomes} == {True, False}


def test_a_log_that_takes_the_records_of_another_incarnation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Delivery, "refuse_others", lambda self, incarnation: True)
    assert not all(run.ok for run in runs("incarnations-atomic"))


def test_an_append_that_creates_a_topic_although_it_means_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Delivery, "expected", lambda self: None)
    assert not all(run.ok for run in runs("incarnations-cas"))


def test_the_scenario_is_repeatable() -> None:
    check_repeatable(find("incarnations-cas"), 3)
