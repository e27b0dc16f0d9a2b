"""One plan per batch, finished once: crashes, replays that split rows differently, and drivers that come late."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from llog.errors import InvalidArgument, LogFenced, SinkBatchOver, SinkPlanLost, SinkQueryTaken, SinkUploadLost
from llog.formats.values import ControlRecord, decode_value, encode_value
from llog.log.compact import compact_once
from llog.log.delete_topic import delete_topic
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.producer_state import KnownProducers
from llog.log.topics import initialize
from llog.pipeline import sink_commit, sink_perform, sink_plan, sink_records
from llog.pipeline.sink import Batch, commit_batch, forget_query, write
from llog.pipeline.sink_plan import decode_head, decode_plan, head_key, plan_key
from llog.pipeline.sink_query import admit
from llog.pipeline.sink_uploads import committable
from tests.unit.pipeline.sink_stage import Crash, Fuse, Stage, placed, rows

A, B = Log("orders", 0), Log("orders", 1)
SOAK = os.environ.get("LLOG_SOAK") == "1"
FIRST, SECOND = Batch("q", 0), Batch("q", 1)


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(atomic=request.param)


def numbered(count: int, log: Log = A) -> list[pa.Table]:
    """So many tasks with one row each: as many slices of one log."""
    return [placed((f"r{n}", *log)) for n in range(count)]


def bytes_of(count: int) -> list[bytes]:
    return [b"r%d" % n for n in range(count)]


async def test_a_batch_is_in_its_logs(stage: Stage) -> None:
    await initialize(stage.context, B)
    done = await stage.commit(FIRST, placed(("a", *A), ("b", *B), ("c", *A)), placed(("d", *A)))
    assert (done.records, done.slices.appended, done.ours) == (4, 3, True)
    assert await stage.values(A) == [b"a", b"c", b"d"]
    assert await stage.values(B) == [b"b"]
    assert stage.objects.puts == 4, "two tasks, and the two slices of a log that nobody knew"


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


async def undone(stage: Stage, batch: Batch, uploads: Sequence[sink_plan.UploadedSlice]) -> None:
    """The plan as it was before it was marked as done."""
    context = stage.context
    key = plan_key(context.keys, batch.query, batch.number)
    record = await context.metadata.get(key)
    assert record is not None
    plan = decode_plan(record.value, key.path)
    assert plan.done
    living = await committable(context, batch, uploads)
    slices = sink_plan.plan_slices(batch.query, batch.number, living)
    again = sink_plan.CommitPlan(
        query=plan.query, batch=plan.batch, plan_id=plan.plan_id, producer_id=plan.producer_id,
        first_epoch=plan.first_epoch, slices=slices, records=plan.records, created_at_ms=plan.created_at_ms,
        confirmed=True,
    )  # fmt: skip
    await context.metadata.put(key, encode_value(again), expected=record.version)


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
            mine, theirs = await stage.upload(*first), await stage.upload(*other)
            try:
                await commit_batch(stage.open(Fuse(calls, last_takes_effect=effect)), Batch("q", 3), mine)
            except Crash:
                survived = False
                crashes += 1
            stage.open()
            await commit_batch(stage.context, Batch("q", 3), theirs)
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
    """The query goes on although nobody came back for its last batch (its checkpoint was moved by hand)."""
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
    await stage.commit(Batch("q", 2), rows("two"), topic="orders")
    assert await stage.values(A) == [b"zero", b"one", b"two"]
    assert (await plan_of(stage, SECOND)) is not None


async def head_of(stage: Stage) -> sink_plan.SinkHead:
    record = await stage.context.metadata.get(head_key(stage.context.keys, "q"))
    assert record is not None
    return decode_head(record.value, "head")


async def plan_of(stage: Stage, batch: Batch) -> sink_plan.CommitPlan | None:
    record = await stage.context.metadata.get(plan_key(stage.context.keys, batch.query, batch.number))
    return None if record is None else decode_plan(record.value, "plan")


async def test_a_driver_that_slept_writes_nothing(stage: Stage) -> None:
    """It uploaded for batch 0 long ago; by now its plan, and the ones after it, are forgotten."""
    late = await stage.upload(rows("late", partition=1), topic="orders")
    for number in range(4):
        await stage.commit(Batch("q", number), rows(f"{number}"), topic="orders")
    with pytest.raises(SinkBatchOver) as refused:
        await commit_batch(stage.context, FIRST, late)
    assert refused.value.latest == 3
    assert await stage.values(A) == [b"0", b"1", b"2", b"3"]
    assert await stage.values(B) == []


async def test_a_late_plan_of_a_forgotten_batch_is_void(stage: Stage) -> None:
    """Admitted long ago, it creates its plan only now that the real one was removed."""
    late = await stage.upload(rows("late", partition=1), topic="orders")
    living = await committable(stage.context, FIRST, late)
    slices = sink_plan.plan_slices("q", 0, living)
    admitted = await admit(stage.context, FIRST, epochs=1)
    for number in range(4):
        await stage.commit(Batch("q", number), rows(f"{number}"), topic="orders")
    plan = sink_commit._plan(stage.context, FIRST, admitted, slices, "late")
    found = await sink_records.put_plan(stage.context, plan, slices)
    assert found.plan.plan_id == "late", "nothing else was there"
    with pytest.raises(SinkBatchOver):
        await commit_batch(stage.context, FIRST, late)
    assert await stage.values(B) == []
    await stage.commit(Batch("q", 4), rows("4"), topic="orders")
    assert await stage.values(B) == []
    assert await plan_of(stage, FIRST) is None, "removed with the next batch"


async def test_plans_go_as_the_query_goes_on(stage: Stage) -> None:
    for number in range(6):
        await stage.commit(Batch("q", number), rows(f"{number}"), topic="orders")
    plans = [await plan_of(stage, Batch("q", number)) for number in range(6)]
    assert [plan is not None for plan in plans] == [False, False, False, False, True, True]
    assert all(plan is None or (plan.done and not plan.slices) for plan in plans)
    await forget_query(stage.context, "q")
    left = [record async for record in stage.context.metadata.scan_tree(stage.context.keys.sinks("q").path)]
    assert left == []


async def test_epochs_run_out_and_a_new_producer_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.pipeline.sink_query.SINK_EPOCHS_MAX", 3)
    producers = []
    for number in range(8):
        await stage.commit(Batch("q", number), rows(f"{number}"), topic="orders")
        producers.append((await head_of(stage)).producer_id)
    assert len(set(producers)) == 3
    assert producers == sorted(producers)
    assert await stage.values(A) == [b"%d" % number for number in range(8)]


async def test_queries_do_not_disturb_each_other(stage: Stage) -> None:
    for number in range(3):
        for query in ("p", "q", "r/s t"):
            await stage.commit(Batch(query, number), rows(f"{query}{number}"), topic="orders")
    assert len(set(await stage.values(A))) == 9


async def test_a_plan_too_large_for_one_value_has_pages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = sink_plan.paged
    monkeypatch.setattr(sink_records, "paged", lambda slices: cut(slices, 1_000))
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
    monkeypatch.setattr(sink_records, "paged", lambda slices: cut(slices, 200))
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
    monkeypatch.setattr(sink_records, "paged", lambda slices: cut(slices, 200))
    uploads = await planned_only(stage)
    plan = await plan_of(stage, FIRST)
    assert plan is not None
    await stage.context.metadata.delete(sink_plan.page_keys(stage.context.keys, plan)[1])
    assert (await commit_batch(stage.context, FIRST, uploads)).slices.appended == 3
    assert (await stage.values(A), await stage.values(B)) == ([b"a", b"c"], [b"b"])
    left = [r async for r in stage.context.metadata.scan_tree(plan_key(stage.context.keys, "q", 0).path)]
    assert len(left) == 1, "pages of both plans are removed"


async def test_a_query_id_belongs_to_one_checkpoint(stage: Stage) -> None:
    await stage.commit(Batch("q", 0, "checkpoint-1"), rows("a"), topic="orders")
    for number in (0, 1):
        with pytest.raises(SinkQueryTaken) as refused:
            await stage.commit(Batch("q", number, "checkpoint-2"), rows("b"), topic="orders")
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


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_blob_that_is_too_old_is_copied(stage: Stage, confirmed: bool) -> None:
    uploads = await planned_only(stage, confirmed=confirmed)
    await raise_horizon(stage, A)
    done = await commit_batch(stage.context, FIRST, [])
    assert done.slices.appended == len(uploads) == 3
    assert await stage.values(A) == [b"a", b"c"]
    assert await stage.values(B) == [b"b"]


async def test_uploads_that_vacuum_removed_fail_before_anything_is_visible(stage: Stage) -> None:
    uploads = await stage.upload(placed(("a", *A), ("b", *B)))
    await commit_batch(stage.context, FIRST, [])
    await initialize(stage.context, A)
    await raise_horizon(stage, A)
    await remove_blobs(stage)
    with pytest.raises(SinkUploadLost, match="nothing was written"):
        await commit_batch(stage.context, SECOND, uploads)
    assert await plan_of(stage, SECOND) is None
    assert await stage.values(A) == []


async def test_a_slice_that_is_there_is_known_although_its_blob_is_too_old(stage: Stage) -> None:
    """Compacted, its blob removed: nothing but the producers' state tells that it is there."""
    uploads = await stage.upload(*numbered(7))
    await commit_batch(stage.context, FIRST, uploads)
    await undone(stage, FIRST, uploads)
    while await compact_once(stage.context, A) is not None:
        pass
    await raise_horizon(stage, A)
    await remove_blobs(stage)
    done = await commit_batch(stage.context, FIRST, [])
    assert done.slices == (0, 7, 0)
    assert await stage.values(A) == bytes_of(7)


async def test_a_plan_whose_blobs_are_gone_says_so(stage: Stage) -> None:
    await planned_only(stage, confirmed=True)
    await raise_horizon(stage, A)
    await remove_blobs(stage)
    with pytest.raises(SinkPlanLost, match="new queryId"):
        await commit_batch(stage.context, FIRST, [])


async def finished_by_another(stage: Stage) -> tuple[sink_plan.CommitPlan, Sequence[sink_plan.PlanSlice]]:
    """A plan as a driver holds it that slept: others have finished it, compacted the logs and removed its blobs."""
    await planned_only(stage, confirmed=True)
    plan = await plan_of(stage, FIRST)
    assert plan is not None
    await commit_batch(stage.context, FIRST, [])
    for log in (A, B):
        while await compact_once(stage.context, log) is not None:
            pass
    await raise_horizon(stage, A, B)
    await remove_blobs(stage)
    return plan, plan.slices


async def test_a_blob_that_is_gone_says_nothing_as_long_as_nobody_can_tell_what_is_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, slices = await finished_by_another(stage)
    answers, catch_up = iter([False, False]), KnownProducers.catch_up

    async def holey_at_first(*args: Any) -> bool:
        return next(answers, True) and await catch_up(*args)

    monkeypatch.setattr(KnownProducers, "catch_up", holey_at_first)
    monkeypatch.setattr("llog.pipeline.sink_perform._Performance._is_done", _never)
    assert await sink_perform.perform(stage.context, plan, slices) == (0, 3, 0)


async def test_a_blob_that_is_gone_says_that_the_slice_is_there_when_the_plan_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver looked at the log before the others wrote to it, and for the blob after they were done with it."""
    plan, slices = await finished_by_another(stage)
    monkeypatch.setattr("llog.pipeline.sink_perform._Performance._is_there", _never)
    assert await sink_perform.perform(stage.context, plan, slices) == (0, 3, 0)
    assert (await stage.values(A), await stage.values(B)) == ([b"a", b"c"], [b"b"])


async def _never(*_: Any) -> bool:
    return False


async def test_a_topic_deleted_after_the_plan_takes_its_records_with_it(stage: Stage) -> None:
    await planned_only(stage)
    await delete_topic(stage.context, "orders")
    await initialize(stage.context, A)
    done = await commit_batch(stage.context, FIRST, [])
    assert done.slices.gone == 3
    assert await stage.values(A) == []


async def test_a_topic_recreated_before_the_plan_gets_the_records(stage: Stage) -> None:
    uploads = await stage.upload(rows("a"), topic="orders")
    await delete_topic(stage.context, "orders")
    await initialize(stage.context, A)
    stage.objects.puts = 0
    await commit_batch(stage.context, FIRST, uploads)
    assert await stage.values(A) == [b"a"]
    assert stage.objects.puts == 1, "never from a blob drawn for another life"


async def test_a_slice_of_an_unknown_log_is_never_planned() -> None:
    part = sink_plan.UploadedSlice(
        topic="t", partition=0, incarnation=sink_plan.UNKNOWN_LIFE, data_key="memory://x", encoding="kafka-v2",
        byte_offset=0, byte_length=1, msg_count=1,
    )  # fmt: skip
    with pytest.raises(InvalidArgument):
        sink_plan.plan_slices("q", 0, [part])


async def test_write_is_all_of_it(stage: Stage) -> None:
    done = await write(stage.context, FIRST, rows("a", "b"), topic="orders")
    assert done.records == 2
    assert await stage.values(A) == [b"a", b"b"]


# -- making trouble ---------------------------------------------------------------------------------------------------


async def planned_only(stage: Stage, *, confirmed: bool = False) -> list[sink_plan.UploadedSlice]:
    """A driver crashed right after it recorded its plan, or confirmed it."""
    uploads = await stage.upload(placed(("a", *A), ("b", *B)), placed(("c", *A)))
    for calls in range(1_000):
        plan = await plan_of(stage, FIRST)
        if plan is not None and plan.confirmed >= confirmed:
            break
        with pytest.raises(Crash):
            await commit_batch(stage.open(Fuse(calls, last_takes_effect=True)), FIRST, uploads)
        stage.open()
    assert await stage.values(A) == []
    return uploads


async def raise_horizon(stage: Stage, *logs: Log) -> None:
    for log in logs or (A,):
        key = stage.context.keys.control(log)
        record = await stage.context.metadata.get(key)
        assert record is not None
        control = decode_value(ControlRecord, record.value, key.path)
        raised = encode_value(_with_horizon(control, stage.now_ms()))
        await stage.context.metadata.put(key, raised, expected=record.version)


def _with_horizon(control: ControlRecord, horizon_ms: int) -> ControlRecord:
    from msgspec.structs import replace

    return replace(control, commit_horizon_ms=horizon_ms)


async def remove_blobs(stage: Stage) -> None:
    names = [found.name async for found in stage.objects.list(stage.context.keys.blobs())]
    await stage.objects.delete_many(names)
