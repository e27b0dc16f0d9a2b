"""Batches for the tests of the sink: some only planned, some undone again, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from llog.formats.values import encode_value
from llog.log.keys import Log
from llog.pipeline.sink import plan as sink_plan
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.plan import decode_plan, plan_key
from llog.pipeline.sink.query import SinkBatch, SinkHead, decode_head, head_key
from llog.pipeline.sink.uploads import make_committable
from tests.unit.pipeline.sink.sink_stage import Crash, Fuse, Stage, placed

A, B = Log("orders", 0), Log("orders", 1)
FIRST, SECOND = SinkBatch("q", 0), SinkBatch("q", 1)


def numbered(count: int, log: Log = A) -> list[pa.Table]:
    """So many tasks with one row each: as many slices of one log."""
    return [placed((f"r{n}", *log)) for n in range(count)]


def bytes_of(count: int) -> list[bytes]:
    return [b"r%d" % n for n in range(count)]


async def undone(stage: Stage, batch: SinkBatch, uploads: Sequence[sink_plan.UploadedSlice]) -> None:
    """The plan as it was before it was marked as done."""
    context = stage.context
    key = plan_key(context.keys, batch.query, batch.number)
    record = await context.metadata.get(key)
    assert record is not None
    plan = decode_plan(record.value, key.path)
    assert plan.done
    living = await make_committable(context, batch, uploads)
    slices = sink_plan.plan_slices(batch.query, batch.number, living)
    again = sink_plan.CommitPlan(
        query=plan.query, batch=plan.batch, plan_id=plan.plan_id, producer_id=plan.producer_id,
        first_epoch=plan.first_epoch, slices=slices, records=plan.records, created_at_ms=plan.created_at_ms,
        confirmed=True,
    )  # fmt: skip
    await context.metadata.put(key, encode_value(again), expected=record.version)


async def head_of(stage: Stage) -> SinkHead:
    record = await stage.context.metadata.get(head_key(stage.context.keys, "q"))
    assert record is not None
    return decode_head(record.value, "head")


async def plan_of(stage: Stage, batch: SinkBatch) -> sink_plan.CommitPlan | None:
    record = await stage.context.metadata.get(plan_key(stage.context.keys, batch.query, batch.number))
    return None if record is None else decode_plan(record.value, "plan")


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
