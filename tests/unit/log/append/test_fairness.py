"""A writer that keeps winning a contended log lets other writers go first; no other writer waits."""

from __future__ import annotations

from llog.log.append.known import (
    LOG_CONTENDED_MS,
    LOG_YIELD_AFTER_COMMITS,
    LOG_YIELD_GAP_MS,
    LOG_YIELD_TRIAL_COMMITS_MAX,
    Fairness,
)


def won_in_a_row(fairness: Fairness, count: int, *, gap_ms: int = 1, start_ms: int = 1_000) -> int:
    """The instant of the last win."""
    for number in range(count):
        fairness.won(start_ms + number * gap_ms)
    return start_ms + (count - 1) * gap_ms


def test_a_writer_alone_on_its_log_yields_only_on_trial_and_ever_more_seldom() -> None:
    fairness = Fairness()
    yields = []
    for commit in range(1, 300):
        fairness.won(commit)
        if fairness.should_yield(commit, on_trial=True):
            yields.append(commit)
    gaps = [later - earlier for earlier, later in zip([0, *yields], yields, strict=False)]
    assert gaps == [8, 16, 32, 64, 64, 64]
    assert gaps[-1] == LOG_YIELD_TRIAL_COMMITS_MAX


def test_where_no_trial_is_needed_a_writer_alone_never_yields() -> None:
    fairness = Fairness()
    now_ms = won_in_a_row(fairness, 10 * LOG_YIELD_AFTER_COMMITS)
    assert not fairness.should_yield(now_ms, on_trial=False)


def test_a_winner_that_lost_of_late_yields_once_per_row() -> None:
    fairness = Fairness()
    fairness.lost(1_000)
    now_ms = won_in_a_row(fairness, LOG_YIELD_AFTER_COMMITS)
    assert fairness.should_yield(now_ms, on_trial=False)
    assert not fairness.should_yield(now_ms, on_trial=False)


def test_a_loser_does_not_yield_and_a_row_begins_anew() -> None:
    fairness = Fairness()
    now_ms = won_in_a_row(fairness, LOG_YIELD_AFTER_COMMITS - 1)
    fairness.lost(now_ms)
    fairness.won(now_ms + 1)
    assert not fairness.should_yield(now_ms + 1, on_trial=True)


def test_commits_that_leave_room_by_themselves_need_no_yield() -> None:
    fairness = Fairness()
    fairness.lost(0)
    now_ms = won_in_a_row(fairness, 10 * LOG_YIELD_AFTER_COMMITS, gap_ms=LOG_YIELD_GAP_MS + 1)
    assert not fairness.should_yield(now_ms, on_trial=False)


def test_old_contention_is_forgotten() -> None:
    fairness = Fairness()
    fairness.lost(0)
    now_ms = won_in_a_row(fairness, LOG_YIELD_AFTER_COMMITS, start_ms=LOG_CONTENDED_MS + 1)
    assert not fairness.should_yield(now_ms, on_trial=False)
