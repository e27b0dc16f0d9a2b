"""The commit of one batch: one plan per (query, batch), made once and finished by whoever finds it (PROTOCOL 11).

    1. is there a plan of this batch? Then it is the one that is finished, and our own uploads count for nothing
    2. else: initialize and know the logs; copy what was uploaded for logs that nobody knew then       (h04)
    3. be admitted: move the query's head to this batch, take epochs; finish the plan of the batch before
    4. create the plan, if none is there: THE point from which the batch is written, now or by the next driver
    5. with the plan in hand, see that the head still stands at this batch; then perform the plan
    6. mark it as done; remove the plans of older batches

Why the order is safe: a crash before 4 leaves orphans for vacuum, and the next driver begins anew; a crash after it
leaves a plan that names every byte of the batch, and performing it twice adds nothing (`sink_perform`). Two drivers at
once agree on one plan in 4. One that slept is refused in 3 or 5, or repeats what is there (`sink_query`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import MetadataStoreError, SinkPlanLost, VersionConflict
from llog.formats.values import encode_value
from llog.log.context import LogContext
from llog.pipeline.sink_perform import Performed, perform
from llog.pipeline.sink_plan import (
    CommitPlan,
    PlanPage,
    PlanSlice,
    UploadedSlice,
    decode_page,
    decode_plan,
    epochs_needed,
    head_key,
    page_keys,
    paged,
    plan_key,
    plan_slices,
)
from llog.pipeline.sink_query import Admitted, Batch, admit, check_current, check_owner, persist
from llog.pipeline.sink_uploads import committable
from llog.stores.metadata.port import ABSENT, Key, Record


class Committed(NamedTuple):
    batch: Batch
    records: int
    """Of the plan that was finished, which need not be ours."""
    slices: Performed
    ours: bool
    """The plan names what this call uploaded; otherwise those uploads are orphans."""


class _Found(NamedTuple):
    plan: CommitPlan
    version: int


async def commit_batch(context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice]) -> Committed:
    """Write a batch, once. `uploads` are in the order in which their records are to stand in each log."""
    found = await _find(context, batch)
    plan_id = ""
    if found is None:
        plan_id = f"{context.random_bits(128):032x}"
        found = await _planned(context, batch, uploads, plan_id)
    check_owner(batch, found.plan.checkpoint)
    ours = found.plan.plan_id == plan_id
    if found.plan.done:
        return Committed(batch, found.plan.records, Performed(), ours)
    head = await check_current(context, batch)
    performed = await _finish(context, found)
    await _forget_older(context, batch, head.before)
    return Committed(batch, found.plan.records, performed, ours)


async def forget_query(context: LogContext, query: str) -> None:
    """Remove all that is kept of a query that will never come again: one whose id nobody else knows."""
    keys = [record.key async for record in context.metadata.scan_all(context.keys.sinks(query), strict=True)]
    for key in sorted(keys, key=lambda key: key == head_key(context.keys, query)):
        await context.metadata.delete(key)


# -- planning ----------------------------------------------------------------------------------------------------------


async def _planned(context: LogContext, batch: Batch, uploads: Sequence[UploadedSlice], plan_id: str) -> _Found:
    slices = plan_slices(batch.query, batch.number, await committable(context, batch, uploads))
    admitted = await admit(context, batch, epochs=epochs_needed(slices))
    await _finish_before(context, batch, admitted)
    return await _create(context, batch, _plan(context, batch, admitted, slices, plan_id), slices)


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


async def _create(context: LogContext, batch: Batch, plan: CommitPlan, slices: Sequence[PlanSlice]) -> _Found:
    """The plan, created; or the one that somebody else created first."""
    pages = paged(slices)
    if len(pages) == 1:
        plan = replace(plan, slices=pages[0])
    else:
        plan = replace(plan, pages=len(pages))
        await _put_pages(context, batch, plan, pages)
    key = plan_key(context.keys, batch.query, batch.number)

    async def create(strict: bool) -> _Found | None:
        if strict:  # an attempt came to nothing that we know of: what is there decides
            record = await context.metadata.get(key, strict=True)
            if record is not None:
                return _Found(decode_plan(record.value, key.path), record.version)
        return _Found(plan, await context.metadata.put(key, encode_value(plan, key.path), expected=ABSENT))

    found = await persist(context, batch, create)
    if found.plan.plan_id != plan.plan_id:
        await _remove(context, page_keys(context.keys, plan))
    return found


async def _put_pages(
    context: LogContext, batch: Batch, plan: CommitPlan, pages: Sequence[tuple[PlanSlice, ...]]
) -> None:
    """Before the plan that names them. Nobody else writes under its id, so putting one again is harmless."""
    for key, page in zip(page_keys(context.keys, plan), pages, strict=True):
        value = encode_value(PlanPage(slices=page), key.path)

        async def put(_: bool, key: Key = key, value: bytes = value) -> int | None:
            return await context.metadata.put(key, value)

        await persist(context, batch, put)


# -- finding and finishing ---------------------------------------------------------------------------------------------


async def _find(context: LogContext, batch: Batch, *, strict: bool = False) -> _Found | None:
    """Not seeing one may be a stale answer: creating decides."""
    key = plan_key(context.keys, batch.query, batch.number)

    async def look(again: bool) -> tuple[Record | None]:
        return (await context.metadata.get(key, strict=strict or again),)

    [record] = await persist(context, batch, look)
    return None if record is None else _Found(decode_plan(record.value, key.path), record.version)


async def _finish_before(context: LogContext, batch: Batch, admitted: Admitted) -> None:
    """Only now that the head has moved: a plan of the batch before that is created later is void."""
    if admitted.before < 0:
        return
    found = await _find(context, batch._replace(number=admitted.before), strict=True)
    if found is not None and not found.plan.done:
        await _finish(context, found)


async def _finish(context: LogContext, found: _Found) -> Performed:
    plan = found.plan
    slices = await _slices(context, plan)
    if slices is None:
        # Whoever was faster has marked the plan as done, and only then removed its pages.
        now = await _find(context, Batch(plan.query, plan.batch), strict=True)
        if now is not None and not now.plan.done:
            raise SinkPlanLost(plan.query, plan.batch, f"pages of its commit plan {plan.plan_id} are missing")
        return Performed()
    performed = await perform(context, plan, slices)
    await _mark_done(context, found)
    await _remove(context, page_keys(context.keys, plan))
    return performed


async def _slices(context: LogContext, plan: CommitPlan) -> Sequence[PlanSlice] | None:
    if not plan.pages:
        return plan.slices
    keys = page_keys(context.keys, plan)

    async def read(_: bool) -> list[Record | None]:
        return await context.metadata.get_many(keys, strict=True)

    records = await persist(context, Batch(plan.query, plan.batch), read)
    slices: list[PlanSlice] = []
    for record in records:
        if record is None:
            return None
        slices += decode_page(record.value, record.key.path).slices
    return slices


async def _mark_done(context: LogContext, found: _Found) -> None:
    plan = found.plan
    key = plan_key(context.keys, plan.query, plan.batch)
    done = encode_value(replace(plan, slices=(), pages=0, done=True), key.path)
    version = found.version

    async def mark(strict: bool) -> bool:
        nonlocal version
        if strict:
            record = await context.metadata.get(key, strict=True)
            if record is None or decode_plan(record.value, key.path).done:
                return True
            version = record.version
        await context.metadata.put(key, done, expected=version)
        return True

    await persist(context, Batch(plan.query, plan.batch), mark)


async def _forget_older(context: LogContext, batch: Batch, before: int) -> None:
    """Plans of batches older than the one before: a replay never asks for them again. What cannot be removed now, or is
    left by a crash, goes with a later batch."""
    try:
        for record in await context.metadata.scan(context.keys.sinks(batch.query)):
            parsed = context.keys.parse(record.key.path)
            if parsed is None or parsed.kind != "sink" or parsed.offset >= before:
                continue
            old = decode_plan(record.value, record.key.path)
            await _remove(context, page_keys(context.keys, old))
            await context.metadata.delete(record.key, expected=record.version)
    except MetadataStoreError as error:
        if not (error.retriable or isinstance(error, VersionConflict)):
            raise


async def _remove(context: LogContext, keys: Sequence[Key]) -> None:
    """Pages that no plan names any more; what stays for want of an answer is small."""
    if not keys:
        return
    try:
        for record in await context.metadata.get_many(keys, strict=True):
            if record is not None:
                await context.metadata.delete(record.key, expected=record.version)
    except MetadataStoreError as error:
        if not (error.retriable or isinstance(error, VersionConflict)):
            raise
