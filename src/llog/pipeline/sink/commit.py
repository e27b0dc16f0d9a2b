"""The commit of one batch: one plan per (query, batch), made once and finished by whoever finds it (PROTOCOL 11).

    1. is there a plan of this batch? Then it is the one that is finished, and our own uploads count for nothing
    2. else: initialize and know the logs; copy what was uploaded for logs that nobody knew then       (h04)
    3. be admitted: move the query's head to this batch, take epochs; finish the plan of the batch before
    4. create the plan, if none is there
    5. confirm it: THE point from which the batch is written, now or by the next driver      (`sink_confirm`)
    6. with the confirmed plan in hand, see that the head still stands at this batch; then perform the plan
    7. mark it as done; remove the plans of older batches

Why the order is safe: a crash before 5 leaves orphans for vacuum, or a plan of which nothing is written: the next
driver confirms it, or puts its own in its place where blobs of it are gone. A crash after 5 leaves a plan that names
every byte of the batch, which vacuum keeps, and performing it twice adds nothing (`sink_perform`). Two drivers at once
agree on one plan in 4 and 5. One that slept is refused in 3 or 6, or repeats what is there (`sink_query`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from llog.errors import SinkBusy, SinkPlanLost
from llog.log.context import LogContext
from llog.pipeline.sink.confirm import confirm
from llog.pipeline.sink.perform import Performed, perform
from llog.pipeline.sink.plan import (
    CommitPlan,
    PlanSlice,
    UploadedSlice,
    epochs_needed,
    head_key,
    page_keys,
    plan_slices,
    query_key,
)
from llog.pipeline.sink.query import Admitted, Batch, admit, check_current, check_owner
from llog.pipeline.sink.records import Found, find, forget_older, mark_done, put_plan, remove, slices_of
from llog.pipeline.sink.uploads import committable

# Plans of one batch that turned out to be void, one after the other, before its driver gives up.
SINK_PLANS_ANEW_MAX: Final = 8


class Committed(NamedTuple):
    batch: Batch
    records: int
    """Of the plan that was finished, which need not be ours."""
    slices: Performed
    ours: bool
    """The plan names what this call uploaded; otherwise those uploads are orphans."""


async def commit_batch(context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice]) -> Committed:
    """Write a batch, once. `uploads` are in the order in which their records are to stand in each log."""
    plan_id = f"{context.random_bits(128):032x}"
    found = await _agreed(context, batch, uploads, plan_id)
    ours = found.plan.origin == plan_id
    if found.plan.done:
        return Committed(batch, found.plan.records, Performed(), ours)
    head = await check_current(context, batch)
    performed = await _finish(context, found)
    await forget_older(context, batch, head.before)
    return Committed(batch, found.plan.records, performed, ours)


async def forget_query(context: LogContext, query: str) -> None:
    """Remove all that is kept of a query that will never come again: one whose id nobody else knows."""
    keys = [record.key async for record in context.metadata.scan_all(context.keys.sinks(query), strict=True)]
    for key in sorted(keys, key=lambda key: key == head_key(context.keys, query)):
        await context.metadata.delete(key)
    await context.metadata.delete(query_key(context.keys, query))


# -- planning ----------------------------------------------------------------------------------------------------------


async def _agreed(context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice], plan_id: str) -> Found:
    """The one plan of the batch: confirmed, or done."""
    found = await find(context, batch)
    void: Found | None = None
    for _ in range(SINK_PLANS_ANEW_MAX):
        if found is None:
            found = await _planned(context, batch, uploads, plan_id, void)
        check_owner(batch, found.plan.checkpoint)
        told = await confirm(context, found)
        if told.found is None:
            await check_current(context, batch)
        elif not told.void:
            return told.found
        found, void = None, told.found
    raise SinkBusy(batch.query, batch.number, f"{SINK_PLANS_ANEW_MAX} plans, one after the other, came to nothing")


async def _planned(
    context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice], plan_id: str, void: Found | None
) -> Found:
    slices = plan_slices(batch.query, batch.number, await committable(context, batch, uploads))
    admitted = await admit(context, batch, epochs=epochs_needed(slices))
    await _finish_before(context, batch, admitted)
    return await put_plan(context, _plan(context, batch, admitted, slices, plan_id), slices, void)


def _plan(
    context: LogContext, batch: Batch, admitted: Admitted, slices: Sequence[PlanSlice], plan_id: str
) -> CommitPlan:
    return CommitPlan(
        query=batch.query,
        batch=batch.number,
        plan_id=plan_id,
        producer_id=admitted.producer_id,
        first_epoch=admitted.first_epoch,
        slices=(),
        records=sum(part.msg_count for part in slices),
        checkpoint=batch.checkpoint,
        created_at_ms=context.now_ms(),
    )


# -- finishing ---------------------------------------------------------------------------------------------------------


async def _finish_before(context: LogContext, batch: Batch, admitted: Admitted) -> None:
    """Only now that the head has moved: a plan of the batch before that is confirmed later is void."""
    if admitted.before < 0:
        return
    found = await find(context, batch._replace(number=admitted.before), strict=True)
    if found is None:
        return
    told = await confirm(context, found)
    if told.found is not None and not told.void and not told.found.plan.done:
        await _finish(context, told.found)


async def _finish(context: LogContext, found: Found) -> Performed:
    plan = found.plan
    slices = await slices_of(context, plan)
    if slices is None:
        # Whoever was faster has marked the plan as done, and only then removed its pages.
        now = await find(context, found.batch, strict=True)
        if now is not None and not now.plan.done:
            raise SinkPlanLost(plan.query, plan.batch, f"pages of its commit plan {plan.plan_id} are missing")
        return Performed()
    performed = await perform(context, plan, slices)
    await mark_done(context, found)
    await remove(context, page_keys(context.keys, plan))
    return performed
