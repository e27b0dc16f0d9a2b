"""One plan per batch, finished once: crashes, replays that split rows differently, and drivers that come late."""

from __future__ import annotations

import os

import pytest

from llog.errors import FormatError, LogFenced, SinkBatchOver, SinkPlanLost, SinkQueryTaken
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.log.topics.create import initialize
from llog.pipeline.sink import commit as sink_commit
from llog.pipeline.sink import plan as sink_plan
from llog.pipeline.sink import targets as sink_targets
from llog.pipeline.sink.commit import commit_batch, forget_query
from llog.pipeline.sink.plan import plan_key
from llog.pipeline.sink.query import SinkBatch, admit
from llog.pipeline.sink.uploads import make_committable
from tests.unit.pipeline.sink.sink_batches import (
    FIRST,
    SECOND,
    A,
    B,
    bytes_of,
    head_of,
    numbered,
    plan_of,
    planned_only,
    undone,
)
from tests.unit.pipeline.sink.sink_stage import Crash, Fuse, Stage, placed, rows

SOAK = os.environ.get("LLOG_SOAK") == "1"


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(atomic=request.param)


async def test_a_batch_is_in_its_logs(stage: Stage) -> None:
    await initialize(stage.context, B)
    done = await stage.commit(FIRST, placed(("a", *A), ("b", *B), ("c", *A)), placed(("d", *A)))
    assert (done.records, done.slices.appended, done.ours) == (4, 3, True)
    assert await stage.values(A) == [b"a", b"c", b"d"]
    assert await stage.values(B) == [b"b"]
    assert stage.objects.puts == 4, "two tasks, and the two slices of an unknown log"


async def test_a_key_goes_to_its_partition_also_where_there_are_more_logs_than_a_driver_looks_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(stage.context, "many", partitions=8)
    table = rows("a", topic="many", key="21")
    known = await stage.upload(table)
    monkeypatch.setattr(sink_targets, "SINK_LOGS_LISTED_MAX", 7)
    assert [part.log for part in await stage.upload(table)] == [part.log for part in known] != [Log("many", 0)]
    await stage.commit(FIRST, table)
    assert await stage.values(known[0].log) == [b"a"]


@pytest.mark.parametrize("record", ["topic", "control"])
async def test_a_record_that_cannot_be_read_harms_only_those_who_write_to_its_topic(stage: Stage, record: str) -> None:
    keys, visits = stage.context.keys, Log("visits", 0)
    for log in (A, visits):
        await initialize(stage.context, log)
    await stage.context.metadata.put(keys.topic("visits") if record == "topic" else keys.control(visits), b"damaged")
    await stage.commit(FIRST, placed(("a", *A)))
    assert await stage.values(A) == [b"a"]
    for topic in (None, "visits"):
        with pytest.raises(FormatError, match="visits"):
            await stage.commit(SECOND, placed(("b", *visits)), topic=topic)


async def test_known_logs_cost_one_put_per_task_and_no_get(stage: Stage) -> None:
    await stage.commit(FIRST, rows("a"), topic="orders")
    stage.objects.puts = stage.objects.gets = 0
    await stage.commit(SECOND, rows("b"), rows("c"), topic="orders")
    assert (stage.objects.puts, stage.objects.gets) == (2, 0)
    assert await stage.values(A) == [b"a", b"b", b"c"]


async def test_a_replay_adds_nothing_however_it_splits_the_rows(stage: Stage) -> None:
    await stage.commit(FIRST, placed(("a", *A), ("b", *B)), placed(("c", *A)))
    done = await stage.commit(FIRST, placed(("a", *A)), placed(("b", *B)), placed(("c", *A)))
    assert not done.ours
    assert done.records == 3
    assert (await stage.values(A), await stage.values(B)) == ([b"a", b"c"], [b"b"])


@pytest.mark.parametrize("slices", [1, 5, 6, 12])
async def test_more_slices_of_a_log_than_it_remembers_are_recognised(stage: Stage, slices: int) -> None:
    """The plan is performed again from its beginning, as after a crash before it was marked as done."""
    uploads = await stage.upload(*numbered(slices))
    await commit_batch(stage.context, FIRST, uploads)
    await undone(stage, FIRST, uploads)
    done = await commit_batch(stage.context, FIRST, [])
    assert done.slices == (0, slices, 0)
    assert await stage.values(A) == bytes_of(slices)


@pytest.mark.parametrize("atomic", [True, False])
async def test_whoever_crashes_where_every_row_of_the_plan_is_there_once(atomic: bool) -> None:
    """At store calls of the commit, with and without the effect of the last one; the replay splits otherwise."""
    first = (placed(("a", *A), ("b", *B)), *numbered(6), placed(("c", *B)))
    other = (placed(("a", *A)), placed(("b", *B), ("c", *B)), placed(*((f"r{n}", *A) for n in range(6))))
    crashes, splits = 0, set()
    for calls in range(0, 1_000, 1 if SOAK else 4):  # every one of them: hazard h24 of the simulation
        survived = True
        for effect in (False, True):
            stage = Stage(atomic=atomic)
            if effect:
                await initialize(stage.context, B)
            first_uploads, other_uploads = await stage.upload(*first), await stage.upload(*other)
            try:
                await commit_batch(stage.open(Fuse(calls, last_takes_effect=effect)), SinkBatch("q", 3), first_uploads)
            except Crash:
                survived = False
                crashes += 1
            stage.open()
            await commit_batch(stage.context, SinkBatch("q", 3), other_uploads)
            values_a, values_b = await stage.values(A), await stage.values(B)
            assert sorted(values_a, key=str) == [b"a", *bytes_of(6)], f"crash after call {calls}"
            assert values_b == [b"b", b"c"]
            split = await stage.entry_count(A), await stage.entry_count(B)
            assert split in ((7, 2), (2, 1)), "as one of the two split them, never a mixture"
            splits.add(split)
        if survived:
            assert crashes > (40 if SOAK else 10)
            assert len(splits) == 2, "some were replayed, and some planned anew"
            return
    pytest.fail("it never came to its end")


async def test_the_next_batch_finishes_what_its_predecessor_left(stage: Stage) -> None:
    """The query advances although no driver replayed its last batch (its checkpoint was moved by hand)."""
    await stage.commit(FIRST, rows("zero"), topic="orders")
    uploads = await stage.upload(rows("one"), topic="orders")
    for calls in range(1_000):
        head, plan = await head_of(stage), await plan_of(stage, SECOND)
        if plan is not None:
            break
        with pytest.raises(Crash):
            await commit_batch(stage.open(Fuse(calls, last_takes_effect=True)), SECOND, uploads)
        stage.open()
    assert plan is not None
    assert not plan.done
    assert head.batch == 1
    assert await stage.values(A) == [b"zero"], "planned, not performed"
    await stage.commit(SinkBatch("q", 2), rows("two"), topic="orders")
    assert await stage.values(A) == [b"zero", b"one", b"two"]
    assert (await plan_of(stage, SECOND)) is not None


async def test_a_driver_that_slept_writes_nothing(stage: Stage) -> None:
    """It uploaded for batch 0 long ago; by now its plan, and the ones after it, are forgotten."""
    late = await stage.upload(rows("late", partition=1), topic="orders")
    for number in range(4):
        await stage.commit(SinkBatch("q", number), rows(f"{number}"), topic="orders")
    with pytest.raises(SinkBatchOver) as refused:
        await commit_batch(stage.context, FIRST, late)
    assert refused.value.latest == 3
    assert await stage.values(A) == [b"0", b"1", b"2", b"3"]
    assert await stage.values(B) == []


async def test_a_late_plan_of_a_forgotten_batch_is_void(stage: Stage) -> None:
    """Admitted long ago, it creates its plan only now that the real one was removed."""
    late = await stage.upload(rows("late", partition=1), topic="orders")
    living = await make_committable(stage.context, FIRST, late)
    slices = sink_plan.plan_slices("q", 0, living)
    admitted = await admit(stage.context, FIRST, epochs=1)
    for number in range(4):
        await stage.commit(SinkBatch("q", number), rows(f"{number}"), topic="orders")
    plan = sink_commit._plan(stage.context, FIRST, admitted, slices, "late")
    found = await sink_plan.put_plan(stage.context, plan, slices)
    assert found.plan.plan_id == "late", "no other plan was stored"
    with pytest.raises(SinkBatchOver):
        await commit_batch(stage.context, FIRST, late)
    assert await stage.values(B) == []
    await stage.commit(SinkBatch("q", 4), rows("4"), topic="orders")
    assert await stage.values(B) == []
    assert await plan_of(stage, FIRST) is None, "removed with the next batch"


async def test_plans_go_as_the_query_goes_on(stage: Stage) -> None:
    for number in range(6):
        await stage.commit(SinkBatch("q", number), rows(f"{number}"), topic="orders")
    plans = [await plan_of(stage, SinkBatch("q", number)) for number in range(6)]
    assert [plan is not None for plan in plans] == [False, False, False, False, True, True]
    assert all(plan is None or (plan.done and not plan.slices) for plan in plans)
    await forget_query(stage.context, "q")
    left = [record async for record in stage.context.metadata.scan_tree(stage.context.keys.sinks("q").path)]
    assert left == []


async def test_epochs_run_out_and_a_new_producer_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.pipeline.sink.query.SINK_EPOCHS_MAX", 3)
    producers = []
    for number in range(8):
        await stage.commit(SinkBatch("q", number), rows(f"{number}"), topic="orders")
        producers.append((await head_of(stage)).producer_id)
    assert len(set(producers)) == 3
    assert producers == sorted(producers)
    assert await stage.values(A) == [b"%d" % number for number in range(8)]


async def test_queries_do_not_disturb_each_other(stage: Stage) -> None:
    for number in range(3):
        for query in ("p", "q", "r/s t"):
            await stage.commit(SinkBatch(query, number), rows(f"{query}{number}"), topic="orders")
    assert len(set(await stage.values(A))) == 9


async def test_a_plan_too_large_for_one_value_has_pages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = sink_plan.paged
    monkeypatch.setattr(sink_plan, "paged", lambda slices: cut(slices, 1_000))
    uploads = await stage.upload(*numbered(12))
    crashes = calls = pages = 0
    while True:
        calls += 3
        try:
            await commit_batch(stage.open(Fuse(calls)), FIRST, uploads)
            break
        except Crash:
            crashes += 1
            stage.open()
            plan = await plan_of(stage, FIRST)
            pages = max(pages, 0 if plan is None else plan.pages)
    stage.open()
    assert crashes > 5
    assert pages > 3
    assert await stage.values(A) == bytes_of(12)
    plan = await plan_of(stage, FIRST)
    assert plan is not None
    assert (plan.done, plan.records, plan.pages) == (True, 12, 0)


async def test_a_plan_whose_pages_are_missing_is_not_taken_for_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = sink_plan.paged
    monkeypatch.setattr(sink_plan, "paged", lambda slices: cut(slices, 200))
    await planned_only(stage, confirmed=True)
    plan = await plan_of(stage, FIRST)
    assert plan is not None
    await stage.context.metadata.delete(sink_plan.page_keys(stage.context.keys, plan)[1])
    with pytest.raises(SinkPlanLost, match="pages"):
        await commit_batch(stage.context, FIRST, [])


async def test_a_plan_without_its_pages_that_nobody_confirmed_gives_way(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = sink_plan.paged
    monkeypatch.setattr(sink_plan, "paged", lambda slices: cut(slices, 200))
    uploads = await planned_only(stage)
    plan = await plan_of(stage, FIRST)
    assert plan is not None
    await stage.context.metadata.delete(sink_plan.page_keys(stage.context.keys, plan)[1])
    assert (await commit_batch(stage.context, FIRST, uploads)).slices.appended == 3
    assert (await stage.values(A), await stage.values(B)) == ([b"a", b"c"], [b"b"])
    left = [r async for r in stage.context.metadata.scan_tree(plan_key(stage.context.keys, "q", 0).path)]
    assert len(left) == 1, "pages of both plans are removed"


async def test_a_query_id_belongs_to_one_checkpoint(stage: Stage) -> None:
    await stage.commit(SinkBatch("q", 0, "checkpoint-1"), rows("a"), topic="orders")
    for number in (0, 1):
        with pytest.raises(SinkQueryTaken) as refused:
            await stage.commit(SinkBatch("q", number, "checkpoint-2"), rows("b"), topic="orders")
        assert refused.value.theirs == "checkpoint-1"
    assert await stage.values(A) == [b"a"]


async def test_an_empty_batch_is_a_batch(stage: Stage) -> None:
    done = await commit_batch(stage.context, FIRST, [])
    assert done.records == 0
    await stage.commit(SECOND, rows("a"), topic="orders")
    assert await stage.values(A) == [b"a"]


async def test_a_fenced_log_stops_the_batch_and_the_replay_finishes_it(stage: Stage) -> None:
    await stage.commit(FIRST, placed(("a", *A), ("b", *B)))
    await fence(stage.context, A, reason="test")
    with pytest.raises(LogFenced):
        await stage.commit(SECOND, placed(("c", *A), ("d", *B)))
    assert await stage.values(B) == [b"b", b"d"], "the other log was not held up"
    await unfence(stage.context, A)
    done = await stage.commit(SECOND, placed(("d", *B)), placed(("c", *A)))
    assert done.slices == (1, 1, 0)
    assert (await stage.values(A), await stage.values(B)) == ([b"a", b"c"], [b"b", b"d"])
