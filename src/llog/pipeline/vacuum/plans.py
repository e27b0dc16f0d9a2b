"""Blobs that unfinished commit plans of the sink name: references, like an entry or a pending append (PROTOCOL 11).

Why it exists: a plan is recorded before any log knows of its slices, and may be finished long afterwards, by a driver
that is started again. Until then nothing else names its blobs.

What must stay true
- Whoever deletes asks for them AFTER the horizons of the logs were raised, by strict reads. Who plans does it the other
  way round (`sink_confirm`), so one of the two sees the other. An answer that was taken after a log's horizon was
  raised holds for good, as far as that log's blobs are concerned.
- Every query is found: its own record is there before its head, and its head before any plan.
- A plan keeps its blobs for SINK_PLAN_KEPT_MS_MAX, or for a grace if that is longer; one that is done keeps none.
- What cannot be read may name anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final, NamedTuple

from llog.errors import FormatError, InvalidField
from llog.limits import SINK_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.view import view_of
from llog.pipeline.sink.plan import CommitPlan, PlanSlice, decode_page, decode_plan, page_keys
from llog.pipeline.sink.query import queries_key
from llog.stores.metadata.port import Record

# How long vacuum keeps the blobs of a commit plan that nobody finishes. A driver that is this late is told that its
# plan is lost; nothing keeps blobs for ever.
SINK_PLAN_KEPT_MS_MAX: Final = 7 * 24 * 3_600_000


class PlannedBlobs(NamedTuple):
    uris: frozenset[str]
    confirmed: frozenset[str] = frozenset()
    """Those among them that must be there: their plan may have been performed in part."""
    expired: tuple[str, ...] = ()
    """Keys of plans that nobody has finished in all that time, and whose blobs are kept no longer."""
    unreadable: tuple[str, ...] = ()
    """Keys of what may be a plan, and why it cannot be read."""


async def planned_blobs(context: LogContext, *, now_ms: int) -> PlannedBlobs:
    """As of now, by strict reads."""
    uris, confirmed = set[str](), set[str]()
    expired: list[str] = []
    unreadable: list[str] = []
    kept_since_ms = now_ms - max(SINK_PLAN_KEPT_MS_MAX, context.options.vacuum_grace_ms)
    async for record in _plan_records(context):
        path = record.key.path
        try:
            plan = decode_plan(record.value, path)
            if plan.done:
                continue
            if plan.created_at_ms < kept_since_ms:
                expired.append(path)
                continue
            named = await _named(context, record, plan)
            uris |= named
            confirmed |= named if plan.confirmed else set()
        except FormatError as error:
            unreadable.append(f"{path}: {error}")
    return PlannedBlobs(frozenset(uris), frozenset(confirmed), tuple(expired), tuple(unreadable))


async def waited_for(context: LogContext, uris: Collection[str]) -> set[str]:
    """Those of them that a confirmed plan is still to write to a log. What it has for a topic that was deleted since,
    created again or not, nobody writes any more; vacuum may have taken that before the plan was there."""
    wanted: set[str] = set()
    async for record in _plan_records(context):
        try:
            plan = decode_plan(record.value, record.key.path)
            if plan.done or not plan.confirmed:
                continue
            lives: dict[tuple[Log, int], set[str]] = {}
            async for part in _slices(context, plan):
                if part.data_key in uris:
                    lives.setdefault((part.log, part.incarnation), set()).add(part.data_key)
        except FormatError:
            continue  # a finding of its own
        for (log, incarnation), named in lives.items():
            found = await context.metadata.get(context.keys.control(log), strict=True)
            seen = view_of(found, None)
            if seen is not None and seen.control.incarnation == incarnation:
                wanted |= named
    return wanted


async def _slices(context: LogContext, plan: CommitPlan) -> AsyncIterator[PlanSlice]:
    """As far as they are there."""
    for part in plan.slices:
        yield part
    for key in page_keys(context.keys, plan):
        found = await context.metadata.get(key, strict=True)
        for part in () if found is None else decode_page(found.value, key.path).slices:
            yield part


async def _plan_records(context: LogContext) -> AsyncIterator[Record]:
    async for query in context.metadata.scan_all(queries_key(context.keys), strict=True):
        listed = context.keys.parse(query.key.path)
        if listed is None or listed.kind != "sink_query":
            continue
        async for record in context.metadata.scan_all(context.keys.sinks(listed.name), strict=True):
            parsed = context.keys.parse(record.key.path)
            if parsed is not None and parsed.kind == "sink":
                yield record


async def _named(context: LogContext, record: Record, plan: CommitPlan) -> set[str]:
    """What a plan names; of one that changes meanwhile, what it names then."""
    for _ in range(SINK_ROUNDS_MAX):
        on_pages = await _named_on_pages(context, plan)
        if on_pages is not None:
            return on_pages | {part.data_key for part in plan.slices}
        again = await context.metadata.get(record.key, strict=True)
        if again is None:
            return set()
        if again.version == record.version:
            raise InvalidField(record.key.path, "pages of it are missing")
        record, plan = again, decode_plan(again.value, again.key.path)
    raise InvalidField(record.key.path, f"it changed {SINK_ROUNDS_MAX} times while it was read")


async def _named_on_pages(context: LogContext, plan: CommitPlan) -> set[str] | None:
    """One page after the other, since a plan may be large. None: one is missing."""
    uris: set[str] = set()
    for key in page_keys(context.keys, plan):
        found = await context.metadata.get(key, strict=True)
        if found is None:
            return None
        uris |= {part.data_key for part in decode_page(found.value, key.path).slices}
    return uris
