"""The commit of one batch: one plan per (query, batch), created once and finished by any driver (protocol section 11).

    1. if a plan of this batch exists, finish that plan; our own uploads stay orphans
    2. else read or create the control records, and copy slices of logs that were unknown at upload      (h04)
    3. be admitted: move the query's head to this batch, allot epochs, finish the plan of the previous batch
    4. create the plan, if none exists
    5. confirm it: from here on the batch will be written, by this driver or the next
    6. with the confirmed plan in hand, check that the head is still at this batch; then perform the plan
    7. mark the plan as done, and remove the plans of older batches

Why the order is safe: a crash before 5 leaves orphans for vacuum, or a plan of which nothing is written. The next
driver confirms that plan, or replaces it if its blobs are gone. A crash after 5 leaves a plan that names every byte of
the batch; vacuum keeps those blobs, and performing the plan twice adds nothing (`perform`). Two concurrent drivers
agree on one plan in 4 and 5. A driver that was suspended is refused in 3 or 6, or repeats what is in the logs
(`query`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import ObjectNotFound, SinkBusy, SinkPlanLost
from llog.formats.values import ControlRecord, decode_value, encode_value
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.pipeline.sink.perform import Performed, perform
from llog.pipeline.sink.plan import (
    CommitPlan,
    PlanSlice,
    StoredPlan,
    UploadedSlice,
    append_id,
    epochs_needed,
    find_plan,
    mark_done,
    plan_key,
    plan_slices,
    put_plan,
    remove_older_plans,
    slices_of,
)
from llog.pipeline.sink.query import (
    Admission,
    SinkBatch,
    admit,
    check_current,
    check_owner,
    head_key,
    persist,
    query_key,
)
from llog.pipeline.sink.uploads import copy_slices, make_committable

# Void plans of one batch, one after the other, before its driver gives up.
SINK_PLANS_VOID_MAX: Final = 8
# An older plan is created anew before it is confirmed. Vacuum keeps a plan's blobs for a week, so a driver has at least
# six days to perform it.
SINK_PLAN_CONFIRM_MS_MAX: Final = 24 * 3_600_000


class SinkResult(NamedTuple):
    batch: SinkBatch
    records: int
    """Of the plan that was finished, which may be another driver's."""
    slices: Performed
    ours: bool
    """The finished plan names the uploads of this call; otherwise they are orphans."""


async def commit_batch(context: LogContext, batch: SinkBatch, uploads: Sequence[UploadedSlice]) -> SinkResult:
    """Write a batch exactly once. `uploads` are in the order in which their records go into each log."""
    plan_id = f"{context.random_bits(128):032x}"
    stored = await _agree(context, batch, uploads, plan_id)
    ours = stored.plan.origin == plan_id
    if stored.plan.done:
        return SinkResult(batch, stored.plan.records, Performed(), ours)
    head = await check_current(context, batch)
    performed = await _finish(context, stored)
    await remove_older_plans(context, batch, head.before)
    return SinkResult(batch, stored.plan.records, performed, ours)


async def forget_query(context: LogContext, query: str) -> None:
    """Remove all records of a query that will not run again."""
    keys = [record.key async for record in context.metadata.scan_all(context.keys.sinks(query), strict=True)]
    for key in sorted(keys, key=lambda key: key == head_key(context.keys, query)):
        await context.metadata.delete(key)
    await context.metadata.delete(query_key(context.keys, query))


# -- planning ----------------------------------------------------------------------------------------------------------


async def _agree(context: LogContext, batch: SinkBatch, uploads: Sequence[UploadedSlice], plan_id: str) -> StoredPlan:
    """The one plan of the batch: confirmed, or done."""
    stored = await find_plan(context, batch)
    void: StoredPlan | None = None
    for _ in range(SINK_PLANS_VOID_MAX):
        if stored is None:
            stored = await _create(context, batch, uploads, plan_id, void)
        check_owner(batch, stored.plan.checkpoint)
        confirmation = await confirm(context, stored)
        if confirmation.stored is None:
            await check_current(context, batch)
        elif not confirmation.void:
            return confirmation.stored
        stored, void = None, confirmation.stored
    raise SinkBusy(batch.query, batch.number, f"{SINK_PLANS_VOID_MAX} commit plans in a row lost their blobs")


async def _create(
    context: LogContext, batch: SinkBatch, uploads: Sequence[UploadedSlice], plan_id: str, void: StoredPlan | None
) -> StoredPlan:
    slices = plan_slices(batch.query, batch.number, await make_committable(context, batch, uploads))
    admission = await admit(context, batch, epochs=epochs_needed(slices))
    await _finish_previous(context, batch, admission)
    return await put_plan(context, _plan(context, batch, admission, slices, plan_id), slices, void)


def _plan(
    context: LogContext, batch: SinkBatch, admission: Admission, slices: Sequence[PlanSlice], plan_id: str
) -> CommitPlan:
    return CommitPlan(
        query=batch.query,
        batch=batch.number,
        plan_id=plan_id,
        producer_id=admission.producer_id,
        first_epoch=admission.first_epoch,
        slices=(),
        records=sum(part.msg_count for part in slices),
        checkpoint=batch.checkpoint,
        created_at_ms=context.now_ms(),
    )


# -- confirming --------------------------------------------------------------------------------------------------------


class Confirmation(NamedTuple):
    stored: StoredPlan | None
    """The plan as it is now; None: it was removed, because the query advanced."""
    void: bool = False
    """Blobs or pages of the plan are gone. Nothing of it was written, or ever will be."""


async def confirm(context: LogContext, stored: StoredPlan) -> Confirmation:
    """Confirm a plan: from then on its blobs stay until it is done, so it may be performed.

        1. the plan is stored and names its blobs
        2. strict reads of its logs' control records: no blob of the plan is older than its log's horizon
        3. mark the plan as confirmed, at the version at which it was read

    Why the order is safe: vacuum goes the other way. It raises the horizons of a blob's logs first, and then looks for
    plans that name the blob (`pipeline.vacuum.references`). So vacuum sees the plan and keeps its blobs, or the plan
    came later and step 2 sees the raised horizon. In the latter case the plan is replaced before anything of it is in a
    log: slices in old blobs are copied, and the copies must pass step 2 too. If a blob is gone the plan is void. No
    driver performs an unconfirmed plan, so another plan may replace it. A confirmed plan changes only to be done.

    A plan that was created long ago is replaced by a young one, because vacuum does not keep blobs of old plans.
    """
    plan: StoredPlan = stored

    async def attempt(again: bool) -> Confirmation | None:
        nonlocal plan
        if again:
            current = await find_plan(context, plan.batch, strict=True)
            if current is None:
                return Confirmation(None)
            plan = current
        if plan.plan.confirmed or plan.plan.done:
            return Confirmation(plan)
        slices = await slices_of(context, plan.plan)
        if slices is None:
            current = await find_plan(context, plan.batch, strict=True)
            return Confirmation(plan, void=True) if current is not None and current.version == plan.version else None
        fits = await _fits(context, slices)
        if all(fits) and plan.plan.created_at_ms >= context.now_ms() - SINK_PLAN_CONFIRM_MS_MAX:
            return Confirmation(await _mark_confirmed(context, plan))
        try:
            moved = await _move(context, plan.plan, slices, fits)
        except ObjectNotFound:
            return Confirmation(plan, void=True)
        plan = await put_plan(context, _renewed(context, plan.plan), moved, replacing=plan)
        return None

    return await persist(context, stored.batch, attempt)


async def _mark_confirmed(context: LogContext, stored: StoredPlan) -> StoredPlan:
    key = plan_key(context.keys, stored.plan.query, stored.plan.batch)
    plan = replace(stored.plan, confirmed=True)
    return StoredPlan(plan, await context.metadata.put(key, encode_value(plan, key.path), expected=stored.version))


async def _fits(context: LogContext, slices: Sequence[PlanSlice]) -> list[bool]:
    """For each slice: vacuum cannot have removed its blob. A slice of a deleted log counts as fitting, because
    nothing is appended to that log; performing the plan reports why."""
    logs = list(dict.fromkeys(part.log for part in slices))
    records = await get_all(context.metadata, [context.keys.control(log) for log in logs], strict=True)
    controls: dict[Log, ControlRecord] = {}
    for log, record in zip(logs, records, strict=True):
        if record is not None:
            controls[log] = decode_value(ControlRecord, record.value, record.key.path)

    def fits(part: PlanSlice) -> bool:
        control = controls.get(part.log)
        if control is None or control.incarnation != part.incarnation or control.log_state == "DELETED":
            return True
        return part.created_at_ms >= control.commit_horizon_ms

    return [fits(part) for part in slices]


async def _move(
    context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice], fits: Sequence[bool]
) -> list[PlanSlice]:
    """The slices, with those that do not fit copied into new blobs. Raises `ObjectNotFound`."""
    copies = iter(await copy_slices(context, [part for part, fit in zip(slices, fits, strict=True) if not fit]))
    return [part if fit else _renamed(plan, next(copies)) for part, fit in zip(slices, fits, strict=True)]


def _renamed(plan: CommitPlan, part: PlanSlice) -> PlanSlice:
    return replace(part, append_id=append_id(plan.query, plan.batch, part.log, part.n, part.data_key))


def _renewed(context: LogContext, plan: CommitPlan) -> CommitPlan:
    plan_id = f"{plan.origin}-{context.random_bits(64):016x}"
    return replace(plan, plan_id=plan_id, created_at_ms=context.now_ms())


# -- finishing ---------------------------------------------------------------------------------------------------------


async def _finish_previous(context: LogContext, batch: SinkBatch, admission: Admission) -> None:
    """Finish the plan of the previous batch. The head has moved: a plan of that batch confirmed from now on is void."""
    if admission.before < 0:
        return
    stored = await find_plan(context, batch._replace(number=admission.before), strict=True)
    if stored is None:
        return
    confirmation = await confirm(context, stored)
    if confirmation.stored is not None and not confirmation.void and not confirmation.stored.plan.done:
        await _finish(context, confirmation.stored)


async def _finish(context: LogContext, stored: StoredPlan) -> Performed:
    plan = stored.plan
    slices = await slices_of(context, plan)
    if slices is None:
        # Another driver marked the plan as done, and only then removed its pages.
        current = await find_plan(context, stored.batch, strict=True)
        if current is not None and not current.plan.done:
            raise SinkPlanLost(plan.query, plan.batch, f"pages of its commit plan {plan.plan_id} are missing")
        return Performed()
    performed = await perform(context, plan, slices)
    await mark_done(context, stored)
    return performed
