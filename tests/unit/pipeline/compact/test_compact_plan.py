"""What a round of compaction rewrites, and in which tasks."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.concurrency import ByteBudget
from llog.formats.values import IndexEntry
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.rewrite.publish import Run
from llog.pipeline.compact.merge import plan_merge_tasks
from llog.pipeline.compact.plan import (
    COMPACT_WINDOW_OBJECTS_MAX,
    NamedRun,
    SegmentRules,
    Sizing,
    plan_round,
    plan_shares,
    window_of_runs,
)
from tests.patience import PATIENCE_SECONDS

ONE, TWO = Log("orders", 0), Log("orders", 1)
ANY_SIZE = SegmentRules(target_bytes=1 << 40)


def blob(number: int, store: str = "memory://x") -> str:
    return f"{store}/llog/wal-shared/{number:032x}"


def entry(end_offset: int, uri: str, *, size: int = 100, at: int | None = 0, count: int = 1) -> Entry:
    value = IndexEntry(
        type="WAL",
        msg_count=count,
        data_key=uri,
        encoding="kafka-v2",
        byte_offset=at,
        byte_length=None if at is None else size,
        created_at_ms=1,
    )
    return Entry(end_offset, value, 7)


def run_over(*blobs: int, size: int = 100, at: int = 0) -> Run:
    """One offset in each of these blobs."""
    return Run(tuple(entry(offset + 1, blob(number), size=size, at=at) for offset, number in enumerate(blobs)))


def ends(plan_runs: object) -> list[tuple[int, int, int]]:
    return [(one.run.start_offset, one.run.end_offset, one.window) for one in plan_runs]  # type: ignore[attr-defined]


def sizing(window_bytes: int, cores: int = 1_000) -> Sizing:
    return Sizing(cores, window_bytes, window_bytes)


def test_a_blob_belongs_to_one_window_and_windows_follow_the_blobs_age() -> None:
    chosen = {ONE: run_over(1, 2, 3, 4), TWO: run_over(1, 2, 3, 4, at=100)}
    plan = plan_round(chosen, sizing(400), ANY_SIZE)
    assert plan.windows == 2
    assert ends(plan.runs[ONE]) == ends(plan.runs[TWO]) == [(1, 2, 0), (3, 4, 1)]


def test_a_log_that_goes_back_to_an_earlier_blob_has_two_runs_in_its_window() -> None:
    plan = plan_round({ONE: run_over(1, 3, 2, 4), TWO: run_over(1, 2, 3, 4)}, sizing(200), ANY_SIZE)
    assert ends(plan.runs[ONE]) == [(1, 1, 0), (2, 2, 1), (3, 3, 0), (4, 4, 1)]
    assert ends(plan.runs[TWO]) == [(1, 2, 0), (3, 4, 1)]


def test_a_log_whose_ids_disagree_with_its_order_does_not_wait_for_itself() -> None:
    """A writer's clock was ahead, or several blobs were made within a millisecond."""
    narrow = Sizing(1, 100, 100)  # three windows of one blob
    plan = plan_round({ONE: run_over(9, 1, 2, 3, 4)}, narrow, ANY_SIZE)
    assert ends(plan.runs[ONE]) == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    both = plan_round({ONE: run_over(9, 1, 2, 3), TWO: run_over(5, 6, 7, 8)}, narrow, ANY_SIZE)
    assert ends(both.runs[TWO]) == [(1, 1, 0), (2, 2, 1), (3, 3, 2)], "older than what the other begins with"
    assert ONE not in both.runs


def test_a_segment_ends_where_it_is_full_by_bytes_by_offsets_or_by_entries() -> None:
    chosen = {ONE: run_over(1, 2, 3, 4, 5)}
    by_bytes = plan_round(chosen, sizing(10_000), SegmentRules(target_bytes=200))
    by_offsets = plan_round(chosen, sizing(10_000), SegmentRules(1 << 40, max_offsets=3))
    by_entries = plan_round(chosen, sizing(10_000), SegmentRules(1 << 40, max_entries=4))
    assert ends(by_bytes.runs[ONE]) == [(1, 2, 0), (3, 4, 0), (5, 5, 0)]
    assert ends(by_offsets.runs[ONE]) == [(1, 3, 0), (4, 5, 0)]
    assert ends(by_entries.runs[ONE]) == [(1, 4, 0), (5, 5, 0)]


def test_an_entry_larger_than_a_segment_should_be_is_a_segment_of_its_own() -> None:
    plan = plan_round({ONE: run_over(1, 2, size=1_000)}, sizing(10_000), SegmentRules(target_bytes=10))
    assert ends(plan.runs[ONE]) == [(1, 1, 0), (2, 2, 0)]


def test_what_lies_behind_the_end_of_a_round_is_left_for_the_next() -> None:
    narrow = Sizing(1, 100, 100)  # three windows of one blob
    plan = plan_round({ONE: run_over(1, 2, 3, 4, 5), TWO: run_over(9)}, narrow, ANY_SIZE)
    assert ends(plan.runs[ONE]) == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert TWO not in plan.runs


def test_a_round_always_takes_something() -> None:
    plan = plan_round({ONE: run_over(1, size=10_000)}, Sizing(1, 10, 10), ANY_SIZE)
    assert ends(plan.runs[ONE]) == [(1, 1, 0)]


@given(paths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9), min_size=1, max_size=5))
def test_in_whatever_order_blobs_were_committed_some_log_gets_on(paths: list[list[int]]) -> None:
    chosen = {Log("t", number): run_over(*path) for number, path in enumerate(paths)}
    assert plan_round(chosen, Sizing(1, 10, 10), ANY_SIZE).runs


def test_a_window_names_no_more_objects_than_may_travel() -> None:
    count = COMPACT_WINDOW_OBJECTS_MAX + 1
    plan = plan_round({ONE: run_over(*range(count), size=1)}, Sizing(4), ANY_SIZE)
    assert plan.windows == 2


def test_windows_are_of_one_length_rather_than_full_ones_and_a_rest() -> None:
    plan = plan_round({ONE: run_over(*range(7))}, sizing(300), ANY_SIZE)
    assert ends(plan.runs[ONE]) == [(1, 2, 0), (3, 5, 1), (6, 7, 2)]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40), window=st.integers(50, 400))
def test_a_window_is_at_most_an_object_longer_than_it_should_be(sizes: list[int], window: int) -> None:
    entries = tuple(entry(number + 1, blob(number), size=size) for number, size in enumerate(sizes))
    plan = plan_round({ONE: Run(entries)}, sizing(window), ANY_SIZE)
    assert plan.windows == len(plan.runs[ONE]) <= -(-sum(sizes) // window)
    for one in plan.runs[ONE]:
        assert sum(part.value.byte_length or 0 for part in one.run.entries) <= window + max(sizes)


def test_the_age_of_a_blob_decides_also_between_stores() -> None:
    entries = (entry(1, blob(1, "file:///b")), entry(2, blob(2, "file:///a")), entry(3, blob(3, "file:///b")))
    plan = plan_round({ONE: Run(entries)}, sizing(100), ANY_SIZE)
    assert ends(plan.runs[ONE]) == [(1, 1, 0), (2, 2, 1), (3, 3, 2)]


@settings(deadline=None)
@given(
    paths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=30), min_size=1, max_size=5),
    window=st.integers(50, 900),
    target=st.integers(50, 900),
)
def test_runs_tile_each_log_from_its_first_entry_on(paths: list[list[int]], window: int, target: int) -> None:
    chosen = {Log("t", number): run_over(*path, size=50 + number, at=number * 200) for number, path in enumerate(paths)}
    plan = plan_round(chosen, sizing(window), SegmentRules(target_bytes=target))
    for log, run in chosen.items():
        planned = [one for part in plan.runs[log] for one in part.run.entries]
        assert planned == list(run.entries)
        for part in plan.runs[log]:
            assert sum(one.value.byte_length or 0 for one in part.run.entries) <= target or len(part.run.entries) == 1
    windows: dict[str, set[int]] = {}
    for part in itertools.chain.from_iterable(plan.runs.values()):
        for one in part.run.entries:
            windows.setdefault(one.value.data_key, set()).add(part.window)
    assert all(len(places) == 1 for places in windows.values())


def test_shares_are_equal_between_topics_not_between_partitions() -> None:
    logs = [Log("small", 0), *(Log("large", partition) for partition in range(10))]
    shares = plan_shares(logs, Sizing(1_000), SegmentRules(target_bytes=1))
    assert shares[logs[0]].byte_length == pytest.approx(10 * shares[logs[1]].byte_length)


def test_a_share_is_at_least_one_segment() -> None:
    logs = [Log("large", partition) for partition in range(1_000)]
    assert plan_shares(logs, Sizing(1), SegmentRules())[logs[0]].byte_length == SegmentRules().target_bytes


def test_windows_are_large_but_leave_no_core_idle() -> None:
    spark = Sizing(4)
    assert spark.window_bytes(1 << 40) == spark.window_bytes_max
    assert spark.window_bytes(600 << 20) == 150 << 20
    assert spark.window_bytes(1 << 20) == spark.window_bytes_min
    assert spark.window_bytes(1_100 << 20) == (1_100 << 20) // 8, "not five windows for four cores"
    assert Sizing.in_process().window_bytes(300 << 20) == Sizing.in_process().window_bytes_max


def test_a_window_reads_of_each_object_what_its_slices_span() -> None:
    runs = [
        NamedRun(ONE, Run((entry(1, blob(1), at=50, size=10), entry(2, blob(2), at=0, size=5))), 1, 1, 0, "one"),
        NamedRun(TWO, Run((entry(1, blob(1), at=200, size=20),)), 1, 1, 0, "two"),
    ]
    window = window_of_runs("memory://x", runs)
    assert [(one.byte_offset, one.byte_length) for one in window.objects] == [(50, 170), (0, 5)]
    assert window.byte_length == 175
    assert [piece.source for piece in window.runs[1].slices] == [0]


def test_an_entry_without_a_range_makes_the_window_read_the_whole_object() -> None:
    entries = (entry(1, blob(1), at=5), entry(2, blob(1), at=None), entry(3, blob(1), at=9))
    window = window_of_runs("memory://x", [NamedRun(ONE, Run(entries), 1, 1, 0, "one")])
    assert [(one.byte_offset, one.byte_length) for one in window.objects] == [(None, None)]


def test_merges_are_spread_by_their_size() -> None:
    sizes = {Log("t", number): size << 20 for number, size in enumerate([200, 100, 90, 10])}
    task_of = plan_merge_tasks(sizes, Sizing(1, window_bytes_min=150 << 20))
    assert [task_of[Log("t", number)] for number in range(4)] == [0, 1, 1, 1]
    assert set(plan_merge_tasks(sizes, Sizing(1)).values()) <= {0, 1, 2}


# -- bytes in hand -----------------------------------------------------------------------------------------------------


async def test_a_budget_keeps_its_bound_and_lets_in_one_that_is_larger_alone() -> None:
    budget, held, most = ByteBudget(100), 0, 0

    async def use(size: int) -> None:
        nonlocal held, most
        async with budget.take(size):
            held += size
            most = max(most, held if size <= 100 else 0)
            assert held <= 100 or held == size
            await asyncio.sleep(0)
            held -= size

    await asyncio.wait_for(
        asyncio.gather(*(use(size) for size in [60, 30, 500, 40, 40, 40, 500, 1] * 5)), PATIENCE_SECONDS
    )
    assert most > 60


async def test_a_cancelled_wait_for_bytes_leaves_them_to_the_next() -> None:
    budget = ByteBudget(10)
    async with budget.take(10):
        waiting = asyncio.create_task(budget.take(5).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(PATIENCE_SECONDS), budget.take(10):
        assert waiting.cancelled(), "it took nothing"
