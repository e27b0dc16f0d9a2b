"""The records of a commit plan: found, put in their place, read page by page, marked, removed.

What must stay true: a plan's pages are put before the plan that names them, and under an id that nobody else writes
under; they go when no plan names them any more. A plan that is there is changed at the version it was read at, and by
nobody who has not read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import MetadataStoreError, VersionConflict
from llog.formats.values import encode_value
from llog.log.context import LogContext
from llog.pipeline.sink.plan import (
    CommitPlan,
    PlanPage,
    PlanSlice,
    decode_page,
    decode_plan,
    page_keys,
    paged,
    plan_key,
)
from llog.pipeline.sink.query import Batch, check_current, persist
from llog.stores.metadata.port import ABSENT, Key, Record


class Found(NamedTuple):
    plan: CommitPlan
    version: int

    @property
    def batch(self) -> Batch:
        return Batch(self.plan.query, self.plan.batch)


async def find(context: LogContext, batch: Batch, *, strict: bool = False) -> Found | None:
    """Not seeing one may be a stale answer: creating decides."""
    key = plan_key(context.keys, batch.query, batch.number)

    async def look(again: bool) -> tuple[Record | None]:
        return (await context.metadata.get(key, strict=strict or again),)

    [record] = await persist(context, batch, look)
    return None if record is None else Found(decode_plan(record.value, key.path), record.version)


async def put_plan(
    context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice], replacing: Found | None = None
) -> Found:
    """The plan, where none is or in place of `replacing`; or the one that somebody else was faster with."""
    batch = Batch(plan.query, plan.batch)
    key, plan = plan_key(context.keys, batch.query, batch.number), await with_pages(context, plan, slices)
    version = ABSENT if replacing is None else replacing.version

    async def create(strict: bool) -> Found | None:
        if strict:  # an attempt came to nothing that we know of: what is there decides
            there = await find(context, batch, strict=True)
            if there is not None and there.version != version:
                return there
            if there is None and replacing is not None:
                await check_current(context, batch)  # removed because the query went on
        return Found(plan, await context.metadata.put(key, encode_value(plan, key.path), expected=version))

    found = await persist(context, batch, create)
    if found.plan.plan_id != plan.plan_id:
        await remove(context, page_keys(context.keys, plan))
    elif replacing is not None:
        await remove(context, page_keys(context.keys, replacing.plan))
    return found


async def with_pages(context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice]) -> CommitPlan:
    """The plan with its slices: inside it, or on pages that are there now. Nobody else writes under its id, so putting
    one again is harmless."""
    pages = paged(slices)
    if len(pages) == 1:
        return replace(plan, slices=pages[0], pages=0)
    plan = replace(plan, slices=(), pages=len(pages))
    for key, page in zip(page_keys(context.keys, plan), pages, strict=True):
        value = encode_value(PlanPage(slices=page), key.path)

        async def put(_: bool, key: Key = key, value: bytes = value) -> int | None:
            return await context.metadata.put(key, value)

        await persist(context, Batch(plan.query, plan.batch), put)
    return plan


async def slices_of(context: LogContext, plan: CommitPlan) -> Sequence[PlanSlice] | None:
    """None: pages are missing. Whoever removed them has changed the plan first."""
    if not plan.pages:
        return plan.slices
    keys = page_keys(context.keys, plan)

    async def read(_: bool) -> list[Record | None]:
        return await context.metadata.get_many(keys, strict=True)

    slices: list[PlanSlice] = []
    for record in await persist(context, Batch(plan.query, plan.batch), read):
        if record is None:
            return None
        slices += decode_page(record.value, record.key.path).slices
    return slices


async def mark_done(context: LogContext, found: Found) -> None:
    plan, version = found.plan, found.version
    key = plan_key(context.keys, plan.query, plan.batch)
    done = encode_value(replace(plan, slices=(), pages=0, done=True), key.path)

    async def mark(strict: bool) -> bool:
        nonlocal version
        if strict:
            record = await context.metadata.get(key, strict=True)
            if record is None or decode_plan(record.value, key.path).done:
                return True
            version = record.version
        await context.metadata.put(key, done, expected=version)
        return True

    await persist(context, found.batch, mark)


async def forget_older(context: LogContext, batch: Batch, before: int) -> None:
    """Plans of batches older than the one before: a replay never asks for them again. What cannot be removed now, or is
    left by a crash, goes with a later batch."""
    try:
        for record in await context.metadata.scan(context.keys.sinks(batch.query)):
            parsed = context.keys.parse(record.key.path)
            if parsed is None or parsed.kind != "sink" or parsed.offset >= before:
                continue
            old = decode_plan(record.value, record.key.path)
            await remove(context, page_keys(context.keys, old))
            await context.metadata.delete(record.key, expected=record.version)
    except MetadataStoreError as error:
        if not (error.retriable or isinstance(error, VersionConflict)):
            raise


async def remove(context: LogContext, keys: Sequence[Key]) -> None:
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
