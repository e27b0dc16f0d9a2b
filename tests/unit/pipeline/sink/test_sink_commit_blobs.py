"""Blobs of a batch that are too old or gone, and topics that went meanwhile: nothing is lost, doubled or made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llog.errors import InvalidArgument, SinkPlanLost, SinkUploadLost
from llog.formats.values import ControlRecord, decode_value, encode_value
from llog.log.keys import Log
from llog.log.producer_state import KnownProducers
from llog.log.topics.create import initialize
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.pipeline.sink import perform as sink_perform
from llog.pipeline.sink import plan as sink_plan
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.uploads import copy_slices
from tests.unit.pipeline.sink.sink_batches import (
    FIRST,
    SECOND,
    A,
    B,
    bytes_of,
    numbered,
    plan_of,
    planned_only,
    undone,
)
from tests.unit.pipeline.sink.sink_stage import Stage, placed, rows


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(atomic=request.param)


@pytest.mark.parametrize("confirmed", [False, True])
async def test_a_blob_that_is_too_old_is_copied(stage: Stage, confirmed: bool) -> None:
    uploads = await planned_only(stage, confirmed=confirmed)
    await raise_horizon(stage, A)
    done = await commit_batch(stage.context, FIRST, [])
    assert done.slices.appended == len(uploads) == 3
    assert await stage.values(A) == [b"a", b"c"]
    assert await stage.values(B) == [b"b"]


async def test_a_copy_that_grew_too_old_in_turn_is_made_again_from_the_plan_s_own_blob(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver sleeps between making it and committing it. Nothing names the copy, so vacuum has taken it by then."""
    await planned_only(stage, confirmed=True)
    await raise_horizon(stage, A)
    slept = iter([True])

    async def copied_and_slept(context: Any, slices: Any) -> Any:
        moved = await copy_slices(context, slices)
        if next(slept, False):
            await raise_horizon(stage, A)
            await stage.objects.delete_many([(await context.find_object(part.data_key))[1] for part in moved])
        return moved

    monkeypatch.setattr(sink_perform, "copy_slices", copied_and_slept)
    assert (await commit_batch(stage.context, FIRST, [])).slices.appended == 3
    assert await stage.values(A) == [b"a", b"c"]


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
    """Compacted, its blob removed: only the producer state shows that the slice is in the log."""
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
    monkeypatch.setattr("llog.pipeline.sink.perform._Performance._is_done", _never)
    assert await sink_perform.perform(stage.context, plan, slices) == (0, 3, 0)


async def test_a_blob_that_is_gone_says_that_the_slice_is_there_when_the_plan_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver looked at the log before the others wrote to it, and for the blob after they were done with it."""
    plan, slices = await finished_by_another(stage)
    monkeypatch.setattr("llog.pipeline.sink.perform._Performance._is_appended", _never)
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
    assert stage.objects.puts == 1, "never from a blob drawn for another incarnation"


async def test_a_slice_of_an_unknown_log_is_never_planned() -> None:
    part = sink_plan.UploadedSlice(
        topic="t", partition=0, incarnation=sink_plan.UNKNOWN_INCARNATION, data_key="memory://x", encoding="kafka-v2",
        byte_offset=0, byte_length=1, msg_count=1,
    )  # fmt: skip
    with pytest.raises(InvalidArgument):
        sink_plan.plan_slices("q", 0, [part])


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
