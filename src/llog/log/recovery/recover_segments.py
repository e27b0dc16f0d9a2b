"""What recovery does with segments: append records beyond the restored end, and adopt segments over restored entries.

Append. Segments are visited by offset from where the log ended when it was restored, so a second run decides as the
first did, whatever it has appended since.
- No record comes twice: segments that the log references are skipped, and so are the sources of appended segments.
- Up to the first gap, records keep their offsets. Behind a gap they cannot, so the blobs of a segment are preferred
  there, which are appended in order of time, if all of them still exist.
- A segment of key compaction has offsets without records, which no append can write: it is a gap, and is reported.

Adopt. Between the backup and the loss, compaction rewrote slices and vacuum removed the blobs. The restored index still
references those blobs; their records live on in segments. Adopting a segment publishes it as its compactor did (the
last steps of a run, `llog.log.rewrite.publish`), so it is safe at any moment, and any process can finish it.
- A segment is published only over whole valid entries that it covers exactly. Over WAL entries, the cursor moves past
  it.
- Its records must be those of the entries. Equal offsets of the same incarnation are not enough, because appends
  between the restore and the recovery reuse offsets. So each entry must come from the backup, or reference a segment
  from before the restore at the offsets that this segment gives those bytes.
- A segment of key compaction lacks records that were superseded by records that may be lost. It is adopted only where
  an object of those entries is gone.
- The log's start rises to a segment only where every object below it is gone.
- The segment is older than the segment horizon. That is harmless only because vacuum is held until it is referenced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import ObjectNotFound, VersionConflict
from llog.formats.values import CompactionKind, CompactionRun, ControlRecord, IndexEntry, SegmentRecord
from llog.log.append.settle import settle_and_clear
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.recovery.recover_find import FoundSegment, ReferencedRanges
from llog.log.rewrite import segments as catalogue
from llog.log.rewrite.publish import KnownCompaction, finish, load_compaction, publish
from llog.stores.metadata.port import after

MADE_BY_KEY: Final = "key compaction made it, so it cannot be appended; the records in its blobs are appended"
COMPACTED_SINCE: Final = "its log was compacted since the restore, so its missing records cannot be identified"
LATER_INCARNATION: Final = "its topic was deleted and created again since the backup"


# -- append ----------------------------------------------------------------------------------------------------------


class SegmentRest(NamedTuple):
    """A segment from an offset on."""

    segment: FoundSegment
    start_offset: int


class SegmentPlan(NamedTuple):
    appended: list[SegmentRest]
    """To append, in this order."""
    contained: list[FoundSegment]
    """Segments whose records are all in the log afterwards."""
    left: list[tuple[SegmentRest, str]]
    """What is not recovered, and why."""


async def plan_segments(context: LogContext, segments: Sequence[FoundSegment], ranges: ReferencedRanges) -> SegmentPlan:
    position = ranges.restored_counter
    if position is None:
        return await _plan_without_an_end(context, segments, ranges)
    # A log that does not exist yet ends where it will begin.
    position = max(position, first_offset_of(segments))
    plan = SegmentPlan([], [one for one in segments if one.end_offset < position], [])
    behind_a_gap, remaining = False, list(segments)
    while (chosen := plan_next(remaining, position)) is not None:
        remaining.remove(chosen)
        if ranges.is_whole(chosen.uri):
            plan.contained.append(chosen)
            position = chosen.end_offset + 1
            continue
        behind_a_gap = behind_a_gap or chosen.start_offset > position
        start_offset = max(position, chosen.start_offset)
        if not chosen.is_dense():
            behind_a_gap = True
            plan.left.append((SegmentRest(chosen, start_offset), MADE_BY_KEY))
        else:
            if not behind_a_gap or not await _is_in_blobs(context, chosen):
                plan.appended.append(SegmentRest(chosen, start_offset))
                plan.contained.append(chosen)
            position = chosen.end_offset + 1
    return plan


def first_offset_of(segments: Sequence[FoundSegment]) -> int:
    """The first offset of their topic, as far as the segments show it: 1, or lower."""
    return min(1, min(one.start_offset for one in segments))


def plan_next(segments: Sequence[FoundSegment], position: int) -> FoundSegment | None:
    """The next segment at `position`: the one that reaches furthest, or the first behind a gap. A segment of key
    compaction comes last, because its sources may still exist."""
    overlapping = [one for one in segments if one.start_offset <= position <= one.end_offset]
    if overlapping:
        return max(overlapping, key=lambda one: (one.is_dense(), one.end_offset))
    return min((one for one in segments if one.start_offset > position), key=lambda one: one.start_offset, default=None)


async def _plan_without_an_end(
    context: LogContext, segments: Sequence[FoundSegment], ranges: ReferencedRanges
) -> SegmentPlan:
    plan = SegmentPlan([], [], [])
    for one in segments:
        sources = one.extension.sources
        if ranges.is_whole(one.uri) or (sources and all(map(ranges.knows, sources))):
            plan.contained.append(one)
        elif not await _is_in_blobs(context, one):
            plan.left.append((SegmentRest(one, one.start_offset), COMPACTED_SINCE))
    return plan


async def _is_in_blobs(context: LogContext, segment: FoundSegment) -> bool:
    """All sources of the segment are blobs that still exist."""
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


# -- adopt -----------------------------------------------------------------------------------------------------------


async def adopt_segments(
    context: LogContext, log: Log, found: Sequence[FoundSegment], *, restored_at_ms: int
) -> list[FoundSegment]:
    """Publish every segment that fits, widest first; return those that were published."""
    old = [one for one in found if created_at_ms_of(one.segment_id) < restored_at_ms]
    known = {one.uri: one for one in old}

    def is_original(entry: Entry) -> bool:
        return entry.value.created_at_ms < restored_at_ms or is_in_place(entry, known.get(entry.value.data_key))

    # A merged segment replaces segments of lower levels, so those come first. Each adoption may let another segment
    # fit, for example when the cursor reaches it.
    waiting = sorted(old, key=lambda one: (one.extension.level, one.start_offset, -one.end_offset))
    adopted: list[FoundSegment] = []
    while True:
        while fitting := [segment for segment in waiting if await _adopt(context, log, segment, is_original)]:
            adopted += fitting
            taken = {segment.segment_id for segment in fitting}
            waiting = [segment for segment in waiting if segment.segment_id not in taken]
        if not await _skip_lost_records(context, log, waiting, is_original):
            return adopted


def is_in_place(entry: Entry, segment: FoundSegment | None) -> bool:
    """The entry gives the bytes of the segment the same offsets as the segment itself."""
    if segment is None:
        return False
    batches = segment.footer.entries
    starts = batches["base_offset"][batches["byte_position"] == (entry.value.byte_offset or 0)]
    return entry.start_offset in starts


async def _adopt(context: LogContext, log: Log, segment: FoundSegment, is_original: Callable[[Entry], bool]) -> bool:
    control = await settle_and_clear(context, log)
    record = await load_compaction(context, log, control.incarnation)
    if record.value.in_flight is not None:
        await finish(context, log, control, record.value.in_flight)
        record = await load_compaction(context, log, control.incarnation)
    covered = await _covered(context, log, control, record, segment)
    kind = plan_kind(covered, segment, control, cursor=record.value.offset)
    if kind is None or not all(map(is_original, covered)):
        return False
    if not is_worth_as_much(segment, covered) and not await _some_are_gone(context, covered):
        return False
    now_ms = context.now_ms()
    await _register(context, log, segment, covered, now_ms)
    run = planned_adoption(segment, covered, kind, now_ms)
    if not await publish(context, log, record, run):
        return False
    return (await finish(context, log, control, run)).done


async def _skip_lost_records(
    context: LogContext, log: Log, waiting: Sequence[FoundSegment], is_original: Callable[[Entry], bool]
) -> bool:
    """Raise the log's start to the first segment that would fit there; True when it rose.

    Retention may have raised the start since the backup. The segment proves that compaction passed this point: the
    records below it were in segments, too, and where no object of those entries exists, their records are lost.
    """
    control = await settle_and_clear(context, log)
    record = await load_compaction(context, log, control.incarnation)
    for segment in sorted(waiting, key=lambda one: one.start_offset):
        if segment.start_offset <= control.log_start_offset:
            continue
        covered = await _covered(context, log, control, record, segment)
        moved = replace(control, log_start_offset=segment.start_offset)
        if plan_kind(covered, segment, moved, cursor=record.value.offset) is None:
            continue
        below = await _between(context, log, control, record, control.log_start_offset, segment.start_offset - 1)
        original = all(map(is_original, (*below, *covered)))
        if original and await _some_are_gone(context, covered) and await _all_are_gone(context, below):
            await delete_records(context, log, segment.start_offset)
            return True
    return False


async def _covered(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction, segment: FoundSegment
) -> list[Entry]:
    """The valid entries from the first offset of the segment to its last."""
    return await _between(context, log, control, record, segment.start_offset, segment.end_offset)


async def _between(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction, first_offset: int, last_offset: int
) -> list[Entry]:
    found: list[Entry] = []
    start, stop = offset_name(first_offset), after(offset_name(last_offset))
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=stop, strict=True):
        entry = entry_of(item)
        verdict = judge(
            entry,
            incarnation=control.incarnation,
            cursor=record.value.offset,
            log_start_offset=control.log_start_offset,
        )
        if verdict is EntryVerdict.VALID:
            found.append(entry)
    return found


def plan_kind(
    covered: Sequence[Entry], segment: FoundSegment, control: ControlRecord, *, cursor: int
) -> CompactionKind | None:
    """The kind of run that publishes the segment over these entries; None when it does not fit."""
    if segment.extension.incarnation != control.incarnation or segment.end_offset >= control.sequence_counter:
        return None
    if not covered or covered[-1].end_offset != segment.end_offset or covered[0].start_offset != segment.start_offset:
        return None
    if any(b.start_offset != a.end_offset + 1 for a, b in itertools.pairwise(covered)):
        return None
    compacted = [entry for entry in covered if entry.value.type == "COMPACTED"]
    if any(one.value.data_key == segment.uri or _is_later(one, segment) for one in compacted):
        return None
    fresh = [entry for entry in covered if entry.value.type == "WAL"]
    if fresh and not fresh[0].covers(max(cursor, control.log_start_offset)):
        return None
    return "MERGE" if compacted else "COMPACT"


def _is_later(entry: Entry, segment: FoundSegment) -> bool:
    """Merges raise the level; key compaction does not, so the time of creation decides there."""
    extension = segment.extension
    return entry.value.level > extension.level and entry.value.created_at_ms >= extension.created_at_ms


def is_worth_as_much(segment: FoundSegment, covered: Sequence[Entry]) -> bool:
    """The segment has all records of the entries, in fewer segments than before."""
    records = sum(
        entry.value.msg_count if entry.value.record_count is None else entry.value.record_count for entry in covered
    )
    return segment.record_count >= records and all(one.value.level < segment.extension.level for one in covered)


async def _some_are_gone(context: LogContext, covered: Sequence[Entry]) -> bool:
    for uri in dict.fromkeys(entry.value.data_key for entry in covered):
        if not await _exists(context, uri):
            return True
    return False


async def _all_are_gone(context: LogContext, entries: Sequence[Entry]) -> bool:
    for uri in dict.fromkeys(entry.value.data_key for entry in entries):
        if await _exists(context, uri):
            return False
    return True


async def _exists(context: LogContext, uri: str) -> bool:
    store, name = await context.find_object(uri)
    try:
        await store.head(name)
    except ObjectNotFound:
        return False
    return True


def planned_adoption(
    segment: FoundSegment, covered: Sequence[Entry], kind: CompactionKind, now_ms: int
) -> CompactionRun:
    extension, last = segment.extension, covered[-1]
    newest = segment.footer.entries["max_timestamp_ms"]
    entry = IndexEntry(
        type="COMPACTED",
        level=extension.level,
        msg_count=segment.end_offset - segment.start_offset + 1,
        record_count=segment.record_count,
        data_key=segment.uri,
        encoding="kafka-v2",
        byte_offset=0,
        byte_length=segment.byte_length,
        footer_length=segment.footer.footer_length,
        incarnation=extension.incarnation,
        epoch=last.value.epoch,
        max_timestamp_ms=int(newest.max()) if len(newest) else -1,
        created_at_ms=extension.created_at_ms,
    )
    return CompactionRun(
        compaction_id=segment.segment_id,
        kind=kind,
        state="WRITING_COMPACTED_INDEX",
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        last_start_offset=last.start_offset,
        end_version=last.version,
        msg_count=entry.msg_count,
        data_key=segment.uri,
        encoding="kafka-v2",
        created_at_ms=now_ms,
        sources=tuple(entry.value.data_key for entry in covered if entry.value.type == "COMPACTED"),
        epochs=extension.epochs,
        entry=entry,
    )


async def _register(
    context: LogContext, log: Log, segment: FoundSegment, covered: Sequence[Entry], now_ms: int
) -> None:
    """Register the segment as its compactor did. A second recovery then knows which objects the log had."""
    record = SegmentRecord(
        segment_id=segment.segment_id,
        incarnation=segment.extension.incarnation,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.byte_length,
        sources=segment.extension.sources,
        adopted_over=tuple(sorted({entry.value.data_key for entry in covered})),
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=now_ms,
        data_key=segment.uri,
    )
    try:
        await catalogue.register(context, log, record)
    except VersionConflict:
        return  # its compactor registered it before the backup
