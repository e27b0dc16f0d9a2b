"""Decisions of the service, from values alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.compactor.plan import (
    COMPACTOR_BACKUP_TORN_MS,
    COMPACTOR_MERGES_OVERDUE,
    COMPACTOR_POLL_MS_MAX,
    COMPACTOR_SWEEP_KEYS_PER_LOG,
    COMPACTOR_VACUUM_KEYS_PER_LOG,
    Kind,
    LogBacklog,
    Rules,
    SeenBackup,
    is_pressed,
    plan_backup_in_ms,
    plan_backups_to_remove,
    plan_hurried_vacuum_interval_ms,
    plan_idle_vacuum_interval_ms,
    plan_next_ms,
    plan_pass,
    plan_pause_ms,
    plan_poll_ms,
    plan_sweep_interval_ms,
    plan_vacuum_interval_ms,
    plan_work,
)
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.settings import Settings

NOW = 10_000_000
RULES = Rules(trigger_bytes=1_000, trigger_age_ms=60_000, min_age_ms=20_000, max_offsets_per_run=500)
IDLE = LogBacklog(Log("orders", 0), 1, cursor=10, counter=10, lag_offsets=0)
FRESH = IDLE._replace(counter=20, lag_offsets=10, ready_bytes=10, ready_entries=1, oldest_created_at_ms=NOW - 30_000)


def test_a_log_without_fresh_entries_is_left_alone() -> None:
    assert plan_work(IDLE, RULES, NOW) is None
    assert plan_work(IDLE._replace(counter=20, lag_offsets=10), RULES, NOW, hurry=True) is None, "none is old enough"


def test_a_run_in_flight_comes_before_everything() -> None:
    view = FRESH._replace(run_state="DELETING_OLD", ready_bytes=10_000, segments_since_merge=100, retain_at_ms=0)
    assert plan_work(view, RULES, NOW) is Kind.RESUME


@pytest.mark.parametrize(
    ("change", "due"),
    [
        ({}, False),
        ({"ready_bytes": 999}, False),
        ({"ready_bytes": 1_000}, True),
        ({"oldest_created_at_ms": NOW - 59_999}, False),
        ({"oldest_created_at_ms": NOW - 60_000}, True),
        ({"oldest_created_at_ms": NOW + 5_000}, False),
        ({"ready_offsets": 500}, True),
        ({"ready_entries": RULES.max_entries_per_run}, True),
    ],
)
def test_fresh_entries_are_compacted_when_they_are_many_or_old(change: dict[str, Any], due: bool) -> None:
    assert plan_work(FRESH._replace(**change), RULES, NOW) is (Kind.COMPACT if due else None)


def test_whatever_is_ready_goes_when_the_wal_store_fills_up() -> None:
    assert plan_work(FRESH, RULES, NOW, hurry=True) is Kind.COMPACT


def test_the_retention_interval_is_a_setting() -> None:
    assert Rules.of(Settings.from_env({}, retention_interval_ms=7_000)).retention_interval_ms == 7_000
    assert Rules.of(Settings.from_env({})).retention_interval_ms == 300_000


def test_retention_comes_at_its_time_even_in_a_log_that_always_has_fresh_bytes() -> None:
    view = FRESH._replace(ready_bytes=10_000, retain_at_ms=NOW)
    assert plan_work(view, RULES, NOW) is Kind.RETAIN
    assert plan_work(view, RULES, NOW - 1) is Kind.COMPACT
    assert plan_work(view._replace(retain_at_ms=None), RULES, NOW) is Kind.COMPACT


def test_a_log_that_does_not_change_waits_for_the_first_instant_that_may_give_it_work() -> None:
    assert plan_next_ms(IDLE, RULES) is None
    assert plan_next_ms(FRESH, RULES) == NOW - 30_000 + RULES.trigger_age_ms
    assert plan_next_ms(FRESH._replace(retain_at_ms=NOW + 1), RULES) == NOW + 1
    assert plan_next_ms(IDLE._replace(retain_at_ms=NOW + 9, wakes_at_ms=NOW + 5), RULES) == NOW + 5


def test_without_a_watch_an_idle_log_is_read_ever_more_seldom_but_before_an_append_is_due() -> None:
    assert plan_poll_ms(0, 1_000, 60_000) == 1_000
    assert plan_poll_ms(80_000, 1_000, 60_000) == 10_000
    assert plan_poll_ms(10**9, 1_000, 60_000) == 60_000
    assert plan_poll_ms(10**9, 1_000, 10**9) == COMPACTOR_POLL_MS_MAX
    assert plan_poll_ms(10**9, 1_000, 0) == 1_000


@pytest.mark.parametrize("logs", [1, 10_000, 100_000])
def test_what_is_read_in_case_a_change_was_not_reported_does_not_grow_with_the_logs(logs: int) -> None:
    swept = logs * COMPACTOR_SWEEP_KEYS_PER_LOG / (plan_sweep_interval_ms(0, logs) / 3_600_000)
    vacuumed = logs * COMPACTOR_VACUUM_KEYS_PER_LOG / (plan_idle_vacuum_interval_ms(logs) / 3_600_000)
    assert swept + vacuumed <= 1_501


def test_neighbours_are_merged_when_there_are_enough_of_them_and_room_for_a_merge() -> None:
    enough = IDLE._replace(segments_since_merge=RULES.merge_inputs_min)
    assert plan_work(enough, RULES, NOW) is Kind.MERGE
    assert plan_work(enough, RULES, NOW, may_merge=False) is None
    assert plan_work(enough._replace(segments_since_merge=RULES.merge_inputs_min - 1), RULES, NOW) is None


def test_compaction_comes_before_a_merge_until_merges_are_overdue() -> None:
    view = FRESH._replace(ready_bytes=10_000, segments_since_merge=RULES.merge_inputs_min)
    assert plan_work(view, RULES, NOW) is Kind.COMPACT
    overdue = view._replace(segments_since_merge=RULES.merge_inputs_min * COMPACTOR_MERGES_OVERDUE)
    assert plan_work(overdue, RULES, NOW) is Kind.MERGE
    assert plan_work(overdue, RULES, NOW, hurry=True) is Kind.COMPACT
    assert plan_work(overdue, RULES, NOW, may_merge=False) is Kind.COMPACT


def test_rules_come_from_the_settings() -> None:
    settings = Settings.from_env(
        {
            "LLOG_COMPACTOR_TRIGGER_BYTES": "1MiB",
            "LLOG_COMPACTOR_TRIGGER_AGE_MS": "7s",
            "LLOG_COMPACTOR_MIN_AGE_MS": "3s",
            "LLOG_COMPACTOR_MAX_OFFSETS_PER_RUN": "17",
        }
    )
    rules = Rules.of(settings)
    assert (rules.trigger_bytes, rules.trigger_age_ms) == (1 << 20, 7_000)
    assert (rules.min_age_ms, rules.max_offsets_per_run) == (3_000, 17)


logs = st.sets(st.builds(Log, st.sampled_from("abcd"), st.integers(0, 30)))


@given(logs, st.integers())
def test_a_pass_visits_every_log_once_and_topics_in_turn(some: set[Log], seed: int) -> None:
    order = plan_pass(some, random.Random(seed).getrandbits)
    assert sorted(order) == sorted(some)
    left = {topic: sum(log.topic == topic for log in some) for topic in {log.topic for log in some}}
    seen_this_turn: set[str] = set()
    for log in order:
        if log.topic in seen_this_turn:
            still_to_come = {topic for topic, count in left.items() if count}
            assert still_to_come <= seen_this_turn, "a topic came again before another had its turn"
            seen_this_turn = set()
        seen_this_turn.add(log.topic)
        left[log.topic] -= 1


def test_the_order_of_passes_differs() -> None:
    some, bits = [Log("orders", partition) for partition in range(20)], random.Random(1).getrandbits
    assert len({tuple(plan_pass(some, bits)) for _ in range(5)}) == 5


def test_a_pause_is_the_sleep_and_up_to_its_jitter() -> None:
    pauses = {plan_pause_ms(1_000, 250, random.Random(seed).getrandbits) for seed in range(200)}
    assert min(pauses) >= 1_000
    assert max(pauses) < 1_250
    assert len(pauses) > 100
    assert plan_pause_ms(5, 0, random.Random(1).getrandbits) == 5


def test_vacuum_runs_about_as_often_as_objects_outlive_the_grace() -> None:
    assert plan_vacuum_interval_ms(3_600_000, None) == 900_000
    assert plan_vacuum_interval_ms(3_600_000, 300_000) == 300_000
    assert plan_vacuum_interval_ms(10_000, 300_000) == 10_000
    assert plan_hurried_vacuum_interval_ms(300_000) == 30_000
    assert plan_hurried_vacuum_interval_ms(10_000) == 10_000


def test_the_wal_store_presses_above_three_quarters() -> None:
    assert not is_pressed(75, 100)
    assert is_pressed(76, 100)


def backup(at_ms: int, *, whole: bool = True, scheduled: bool = True) -> SeenBackup:
    return SeenBackup(new_object_id(at_ms, random.Random(at_ms).getrandbits), whole, scheduled)


def test_a_backup_is_due_when_the_newest_whole_one_is_old() -> None:
    assert plan_backup_in_ms([], NOW, 1_000) == 0
    assert plan_backup_in_ms([backup(NOW - 1_000)], NOW, 1_000) == 0
    assert plan_backup_in_ms([backup(NOW - 5_000), backup(NOW - 999, scheduled=False)], NOW, 1_000) == 1
    assert plan_backup_in_ms([backup(NOW - 10, whole=False)], NOW, 1_000) == 0


def test_backups_of_a_clock_that_was_far_ahead_count_as_the_oldest() -> None:
    year_ms = 365 * 24 * 3_600_000
    wrong, now = [backup(NOW + year_ms + number) for number in range(2)], backup(NOW - 100)
    assert plan_backup_in_ms(wrong, NOW, 1_000) == 0
    assert plan_backup_in_ms([*wrong, now], NOW, 1_000) == 900
    assert plan_backup_in_ms([backup(NOW + 2_000)], NOW, 1_000) > 0, "another service's clock may be ahead a little"
    assert plan_backups_to_remove([*wrong, now], NOW, kept=2) == [wrong[0]]


def test_only_scheduled_backups_are_removed_the_oldest_ones_and_those_given_up() -> None:
    by_hand = backup(1, scheduled=False)
    old, kept, newest = backup(NOW - 300), backup(NOW - 200), backup(NOW - 100)
    assert plan_backups_to_remove([newest, by_hand, old, kept], NOW, kept=2) == [old]
    torn, under_way = backup(NOW - COMPACTOR_BACKUP_TORN_MS, whole=False), backup(NOW - 1, whole=False)
    assert plan_backups_to_remove([torn, under_way], NOW, kept=2) == [torn]
    assert plan_backups_to_remove([backup(5, whole=False, scheduled=False)], 10**9) == []
