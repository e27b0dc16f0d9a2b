"""Consumer groups under simulation; and that the scenarios notice when a rule is gone."""

from __future__ import annotations

import pytest

from llog.groups.classic.rebalance import Rebalance
from llog.groups.records import GroupHead
from llog.testing import group_scenarios
from llog.testing.sim import SCENARIOS, check_repeatable, find, run_seed

SEEDS = range(1, 5)
NAMES = sorted(name for name, what in SCENARIOS.items() if what.module == group_scenarios.__name__)


@pytest.mark.parametrize("name", NAMES)
def test_members_keep_their_partitions_and_positions(name: str) -> None:
    for seed in SEEDS:
        run = run_seed(find(name), seed, keep_trace=False)
        assert run.ok, f"{name}, seed {seed}: {run.error}\n{run.printed}"


def test_a_life_of_a_group_is_the_same_for_one_seed() -> None:
    check_repeatable(find("group-classic-cas"), 7)


def test_a_coordinator_that_asks_members_to_join_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule G4."""
    resume = Rebalance.resume

    def rebalance(self: Rebalance, head: GroupHead, now_ms: int) -> None:
        resume(self, head, now_ms)
        if self.members and self.state == "Stable":
            self.prepare(now_ms)

    monkeypatch.setattr(Rebalance, "resume", rebalance)
    assert not all(run_seed(find("group-classic-steady-atomic"), seed, keep_trace=False).ok for seed in SEEDS)
