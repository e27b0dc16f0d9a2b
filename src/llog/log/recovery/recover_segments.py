"""Which segments bring records back that a restored log lacks, and from which offset on.

They are gone through by offset from where the log ended when it was restored, so a second run decides as the first did,
whatever it has appended since. What must stay true
- no record comes twice: what the log names is passed over, and the sources of a segment that is appended are not;
- up to the first gap records come back at the offsets they had. Behind it nothing can keep them, so there the blobs of
  a segment are better, which are appended in the order of their instants, as long as all of them are there;
- a segment that key compaction made has offsets without records, which no append can write: it is a gap, and told of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llog.errors import ObjectNotFound
from llog.log.context import LogContext
from llog.log.recovery.recover_find import FoundSegment, Named

MADE_BY_KEY = "made by key compaction, so it cannot be appended; what its blobs still hold is"
COMPACTED_SINCE = "its log was compacted since the restore: nobody can tell which of its records are there"
LATER_LIFE = "its topic was deleted and created again since the backup"


class SegmentPart(NamedTuple):
    """A segment from an offset on."""

    segment: FoundSegment
    start_offset: int


class SegmentPlan(NamedTuple):
    appended: list[SegmentPart]
    """In this order."""
    contained: list[FoundSegment]
    """All their records are in the log once that is done."""
    left: list[tuple[SegmentPart, str]]
    """What does not come back, and why."""


async def plan_segments(context: LogContext, segments: Sequence[FoundSegment], named: Named) -> SegmentPlan:
    position = named.restored_counter
    if position is None:
        return await _plan_without_an_end(context, segments, named)
    # A log that is not there yet ends where it will begin.
    position = max(position, first_offset_of(segments))
    plan = SegmentPlan([], [one for one in segments if one.end_offset < position], [])
    behind_a_gap, open_ = False, list(segments)
    while (chosen := plan_next(open_, position)) is not None:
        open_.remove(chosen)
        if named.is_whole(chosen.uri):
            plan.contained.append(chosen)
            position = chosen.end_offset + 1
            continue
        behind_a_gap = behind_a_gap or chosen.start_offset > position
        start_offset = max(position, chosen.start_offset)
        if not chosen.is_dense():
            behind_a_gap = True
            plan.left.append((SegmentPart(chosen, start_offset), MADE_BY_KEY))
        else:
            if not behind_a_gap or not await _is_in_blobs(context, chosen):
                plan.appended.append(SegmentPart(chosen, start_offset))
                plan.contained.append(chosen)
            position = chosen.end_offset + 1
    return plan


def first_offset_of(segments: Sequence[FoundSegment]) -> int:
    """Of the topic that they are of, as far as they show it: some begin at 1."""
    return min(1, min(one.start_offset for one in segments))


def plan_next(segments: Sequence[FoundSegment], position: int) -> FoundSegment | None:
    """The segment to go on with at `position`: the one that reaches furthest from there, or the next behind a gap. One
    that key compaction made comes last: what it was made of may be there still."""
    here = [one for one in segments if one.start_offset <= position <= one.end_offset]
    if here:
        return max(here, key=lambda one: (one.is_dense(), one.end_offset))
    return min((one for one in segments if one.start_offset > position), key=lambda one: one.start_offset, default=None)


async def _plan_without_an_end(context: LogContext, segments: Sequence[FoundSegment], named: Named) -> SegmentPlan:
    plan = SegmentPlan([], [], [])
    for one in segments:
        sources = one.extension.sources
        if named.is_whole(one.uri) or (sources and all(map(named.knows, sources))):
            plan.contained.append(one)
        elif not await _is_in_blobs(context, one):
            plan.left.append((SegmentPart(one, one.start_offset), COMPACTED_SINCE))
    return plan


async def _is_in_blobs(context: LogContext, segment: FoundSegment) -> bool:
    """Are all of its sources blobs, and there?"""
    for uri in segment.extension.sources:
        store, name = await context.find_object(uri)
        parsed = context.keys.parse_object(name)
        if parsed is None or parsed.kind != "blob":
            return False
        try:
            await store.head(name)
        except ObjectNotFound:
            return False
    return bool(segment.extension.sources)
