"""Confirming a commit plan: from then on its blobs stay until it is done, so it may be performed.

    1. the plan is there, and names its blobs
    2. only then: strict reads of its logs' control records. Is none of its blobs older than their horizons?
    3. mark the plan as confirmed, at the version it was read at

Why the order is safe: vacuum goes the other way round. It raises the horizons of a blob's logs first, and looks for
plans that name it afterwards (`vacuum_plans`). So either vacuum meets the plan, and keeps its blobs; or the plan came
later, and 2 sees the raised horizon. The plan is then made anew, before anything of it is in a log: slices in blobs
that are too old are copied, and the copies' blobs have to pass 2 like any other. A blob that is gone makes the plan
void; since nobody confirmed it, nobody has performed any of it, and another may take its place.

What must stay true: an unconfirmed plan is never performed, a confirmed one never changes but to be done. A plan that
was made long ago is made young before it is confirmed, because vacuum keeps the blobs of old ones no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import ObjectNotFound
from llog.formats.values import ControlRecord, decode_value, encode_value
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.pipeline.sink.copy import copied
from llog.pipeline.sink.plan import CommitPlan, PlanSlice, append_id, plan_key
from llog.pipeline.sink.query import persist
from llog.pipeline.sink.records import Found, find, put_plan, slices_of

# A plan that is older when it is confirmed is made young first: so a driver has at least the rest to perform it.
SINK_PLAN_CONFIRM_MS_MAX: Final = 24 * 3_600_000


class Confirmation(NamedTuple):
    found: Found | None
    """The plan as it is now; None: it is gone, because the query went on."""
    void: bool = False
    """Blobs or pages of it are gone, and nothing of it was written, or ever will be."""


async def confirm(context: LogContext, found: Found) -> Confirmation:
    """Confirmed, done, void or gone, whoever did it."""
    plan: Found = found

    async def attempt(again: bool) -> Confirmation | None:
        nonlocal plan
        if again:
            there = await find(context, plan.batch, strict=True)
            if there is None:
                return Confirmation(None)
            plan = there
        if plan.plan.confirmed or plan.plan.done:
            return Confirmation(plan)
        slices = await slices_of(context, plan.plan)
        if slices is None:
            there = await find(context, plan.batch, strict=True)
            return Confirmation(plan, void=True) if there is not None and there.version == plan.version else None
        fits = await _fits(context, slices)
        if all(fits) and plan.plan.created_at_ms >= context.now_ms() - SINK_PLAN_CONFIRM_MS_MAX:
            return Confirmation(await _mark(context, plan))
        try:
            moved = await _moved(context, plan.plan, slices, fits)
        except ObjectNotFound:
            return Confirmation(plan, void=True)
        plan = await put_plan(context, _younger(context, plan.plan), moved, replacing=plan)
        return None

    return await persist(context, found.batch, attempt)


async def _mark(context: LogContext, found: Found) -> Found:
    key = plan_key(context.keys, found.plan.query, found.plan.batch)
    confirmed = replace(found.plan, confirmed=True)
    return Found(confirmed, await context.metadata.put(key, encode_value(confirmed, key.path), expected=found.version))


async def _fits(context: LogContext, slices: Sequence[PlanSlice]) -> list[bool]:
    """Which of them are in blobs that vacuum cannot have taken. A log that is not what the plan was made for gets
    nothing from it; performing tells why."""
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


async def _moved(
    context: LogContext, plan: CommitPlan, slices: Sequence[PlanSlice], fits: Sequence[bool]
) -> list[PlanSlice]:
    """The same slices, those that do not fit in new blobs. Raises `ObjectNotFound`."""
    copies = iter(await copied(context, [part for part, fit in zip(slices, fits, strict=True) if not fit]))
    return [part if fit else _renamed(plan, next(copies)) for part, fit in zip(slices, fits, strict=True)]


def _renamed(plan: CommitPlan, part: PlanSlice) -> PlanSlice:
    return replace(part, append_id=append_id(plan.query, plan.batch, part.log, part.n, part.data_key))


def _younger(context: LogContext, plan: CommitPlan) -> CommitPlan:
    plan_id = f"{plan.origin}-{context.random_bits(64):016x}"
    return replace(plan, plan_id=plan_id, created_at_ms=context.now_ms())
