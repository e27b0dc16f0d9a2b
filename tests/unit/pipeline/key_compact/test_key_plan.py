"""Which segments a pass of key compaction reads, which it rewrites, and together with which others."""

from __future__ import annotations

from llog.formats.values import IndexEntry
from llog.limits import KEY_COMPACT_LEVEL
from llog.log.index import Entry
from llog.log.topics.config import TopicConfig
from llog.pipeline.key_compact.plan import (
    KEY_COMPACT_GROUP_TARGETS_MAX,
    ScannedEntry,
    plan_due,
    plan_due_at_ms,
    plan_groups,
    plan_range,
)
from llog.pipeline.key_compact.tasks import NO_HORIZON, ScannedSegment

NOW = 1_000_000
CONFIG = TopicConfig.of({"cleanup.policy": "compact", "min.compaction.lag.ms": "100", "max.compaction.lag.ms": "500"})


def entry(start: int, end: int, *, level: int = 1, newest_ms: int = 0, size: int = 100) -> Entry:
    value = IndexEntry(
        type="COMPACTED",
        level=level,
        msg_count=end - start + 1,
        data_key=f"memory://x/{end}",
        encoding="kafka-v2",
        byte_length=size,
        footer_length=0,
        max_timestamp_ms=newest_ms,
        created_at_ms=1,
    )
    return Entry(end, value, 1)


def scanned(
    start: int, end: int, *, gone: int = 0, unmarked: int = 0, due_ms: int = NO_HORIZON, level: int = KEY_COMPACT_LEVEL
) -> ScannedEntry:
    count = end - start + 1
    found = ScannedSegment((), count, count, unmarked, due_ms, 100)
    return ScannedEntry(0, entry(start, end, level=level), found, count - gone)


def ends(groups: list[list[ScannedEntry]]) -> list[list[int]]:
    return [[one.entry.end_offset for one in group] for group in groups]


def test_the_range_ends_at_a_gap_and_before_records_that_are_too_young() -> None:
    assert len(plan_range([entry(1, 3), entry(4, 6), entry(8, 9)], CONFIG, NOW).entries) == 2
    young = entry(4, 6, newest_ms=NOW - 99)
    assert len(plan_range([entry(1, 3), young, entry(7, 9)], CONFIG, NOW).entries) == 1
    assert len(plan_range([entry(1, 3), entry(4, 6, newest_ms=NOW - 100)], CONFIG, NOW).entries) == 2


def test_a_log_is_clean_up_to_the_last_segment_that_a_pass_wrote() -> None:
    entries = [entry(1, 3), entry(4, 6, level=KEY_COMPACT_LEVEL + 1), entry(7, 9), entry(10, 12)]
    found = plan_range(entries, CONFIG, NOW)
    assert (found.clean_until, found.clean_bytes, found.dirty_bytes) == (7, 200, 200)
    assert found.first_dirty is entries[2]


def test_a_pass_is_due_by_the_dirty_ratio_by_the_lag_or_by_force() -> None:
    clean = [entry(1, 3, level=KEY_COMPACT_LEVEL, size=300)]
    dirty, little = [*clean, entry(4, 6, size=300)], plan_range([*clean, entry(4, 6)], CONFIG, NOW)
    assert plan_due(plan_range(dirty, CONFIG, NOW), CONFIG, NOW, oldest_dirty_ms=NOW, force=False) == "yes"
    assert plan_due(little, CONFIG, NOW, oldest_dirty_ms=NOW - 499, force=False) == "not dirty enough"
    assert plan_due(little, CONFIG, NOW, oldest_dirty_ms=NOW - 500, force=False) == "yes"
    assert plan_due(little, CONFIG, NOW, oldest_dirty_ms=None, force=True) == "yes"
    assert (
        plan_due(plan_range(clean, CONFIG, NOW), CONFIG, NOW, oldest_dirty_ms=None, force=False) == "nothing to clean"
    )
    assert plan_due(plan_range([], CONFIG, NOW), CONFIG, NOW, oldest_dirty_ms=None, force=True) == "nothing to clean"


def test_a_range_that_is_not_worth_a_pass_says_when_ages_make_it_worth_one() -> None:
    clean = [entry(1, 3, level=KEY_COMPACT_LEVEL, size=900)]

    def due_at_ms(entries: list[Entry], oldest_dirty_ms: int | None = None) -> int | None:
        chosen = plan_range(entries, CONFIG, NOW)
        return plan_due_at_ms(entries, chosen, CONFIG, NOW, oldest_dirty_ms=oldest_dirty_ms)

    assert due_at_ms(clean) is None
    assert due_at_ms([*clean, entry(4, 6, newest_ms=NOW - 30)]) == NOW + 70, "old enough"
    assert due_at_ms([*clean, entry(5, 6)]) is None, "behind a gap"
    assert due_at_ms([*clean, entry(4, 6)], NOW - 450) == NOW + 50, "it waited for long enough"
    assert due_at_ms([*clean, entry(4, 6), entry(7, 9, newest_ms=NOW - 80)], NOW - 450) == NOW + 20


def test_neighbours_that_lose_something_become_one_segment_up_to_a_size() -> None:
    found = [
        scanned(1, 4, gone=2),
        scanned(5, 8, gone=2),
        scanned(9, 12),
        scanned(13, 16, gone=1),
        scanned(17, 20, gone=4),
    ]
    plan = plan_groups(found, NOW, delete_retention_ms=1, target_bytes=100)
    assert ends(plan) == [[4, 8], [16, 20]]
    assert ends(plan_groups(found, NOW, delete_retention_ms=1, target_bytes=99)) == [[4], [8], [16, 20]]


def test_a_group_is_bounded_though_the_records_that_stay_are_nearly_all_of_its_bytes() -> None:
    """By record counts almost nothing stays, but the few kept records may be the large ones."""
    found = [scanned(first, first + 99, gone=99) for first in range(1, 1_200, 100)]
    plan = plan_groups(found, NOW, delete_retention_ms=1, target_bytes=100)
    assert [len(group) for group in plan] == [KEY_COMPACT_GROUP_TARGETS_MAX] * 3


def test_tombstones_are_given_their_time_and_taken_when_it_has_come() -> None:
    assert plan_groups([scanned(1, 4, due_ms=NOW + 1)], NOW, delete_retention_ms=1, target_bytes=9) == []
    assert ends(plan_groups([scanned(1, 4, due_ms=NOW)], NOW, delete_retention_ms=1, target_bytes=9)) == [[4]]
    assert ends(plan_groups([scanned(1, 4, unmarked=1)], NOW, delete_retention_ms=1, target_bytes=9)) == [[4]]


def test_an_entry_that_may_lose_tombstones_begins_a_group() -> None:
    found = [
        scanned(1, 4, gone=1),
        scanned(5, 8, gone=1, due_ms=NOW),
        scanned(9, 12, gone=1),
        scanned(13, 16, unmarked=1),
    ]
    assert ends(plan_groups(found, NOW, delete_retention_ms=1, target_bytes=10**6)) == [[4], [8, 12, 16]]
    assert ends(plan_groups(found, NOW, delete_retention_ms=0, target_bytes=10**6)) == [[4], [8, 12], [16]]


def test_the_last_entry_is_rewritten_to_mark_how_far_the_log_is_clean() -> None:
    found = [scanned(1, 4, level=1), scanned(5, 8, level=1)]
    assert ends(plan_groups(found, NOW, delete_retention_ms=1, target_bytes=10**6)) == [[8]]
    assert plan_groups([*found, scanned(9, 12)], NOW, delete_retention_ms=1, target_bytes=10**6) == []
