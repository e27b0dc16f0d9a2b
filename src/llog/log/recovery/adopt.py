"""Adopt a segment that lies in the store and is newer than the restored metadata: publish it as its compactor did.

Why it exists: between the backup and the loss compaction rewrote slices, and vacuum removed the blobs. The restored
index still names those blobs; the records live on in the segments, which describe themselves. Publishing one is the
ordinary end of a run (steps 6 to 10 of `publish`), so it is safe at any moment and resumed by anyone.

What must stay true
- A segment is published only over whole valid entries that it covers exactly; where some of them are WAL, the cursor
  moves past it.
- Its records are those of the entries. That both are the same offsets of the same life is not enough: whoever appended
  between the restore and the recovery got offsets that others had before the loss. So each entry must have come with
  the backup, or name a segment of the time before the restore at the offsets that this segment gives those bytes.
- A segment that key compaction made has fewer records than the entries it replaces, and what it lacks was superseded by
  records that may be lost. It is taken only where an object of those entries is gone: some records are better than
  none, and fewer are not better than all.
- Only what is gone for good is given up: the log's start is raised to a segment where every object below it is gone.
- It is older than the segment horizon, which is harmless only because vacuum is held: nothing takes the object away
  before it is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from llog.errors import ObjectNotFound, VersionConflict
from llog.formats.values import CompactionKind, CompactionRun, ControlRecord, IndexEntry, SegmentRecord
from llog.log.append.settle import settle_and_clear
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.recovery.recover_find import FoundSegment
from llog.log.rewrite import segments as catalogue
from llog.log.rewrite.publish import KnownCompaction, finish, load_compaction, publish
from llog.stores.metadata.port import after


async def adopt_segments(
    context: LogContext, log: Log, found: Sequence[FoundSegment], *, restored_at_ms: int
) -> list[FoundSegment]:
    """Publish what fits, widest first at every place; those that were."""
    old = [one for one in found if created_at_ms_of(one.segment_id) < restored_at_ms]
    known = {one.uri: one for one in old}

    def is_of_before(entry: Entry) -> bool:
        return entry.value.created_at_ms < restored_at_ms or is_in_place(entry, known.get(entry.value.data_key))

    # Merges lie over segments of lower levels, so those come first. But each adoption may make another fit: what
    # follows a merge is passed over until the cursor has come there.
    waiting = sorted(old, key=lambda one: (one.extension.level, one.start_offset, -one.end_offset))
    adopted: list[FoundSegment] = []
    while True:
        while fitting := [segment for segment in waiting if await _adopt(context, log, segment, is_of_before)]:
            adopted += fitting
            taken = {segment.segment_id for segment in fitting}
            waiting = [segment for segment in waiting if segment.segment_id not in taken]
        if not await _pass_what_is_gone(context, log, waiting, is_of_before):
            return adopted


def is_in_place(entry: Entry, segment: FoundSegment | None) -> bool:
    """Does the entry give the segment's bytes the offsets that the segment gives them?"""
    if segment is None:
        return False
    batches = segment.footer.entries
    starts = batches["base_offset"][batches["byte_position"] == (entry.value.byte_offset or 0)]
    return entry.start_offset in starts


async def _adopt(context: LogContext, log: Log, segment: FoundSegment, is_of_before: Callable[[Entry], bool]) -> bool:
    control = await settle_and_clear(context, log)
    record = await load_compaction(context, log, control.incarnation)
    if record.value.in_flight is not None:
        await finish(context, log, control, record.value.in_flight)
        record = await load_compaction(context, log, control.incarnation)
    covered = await _covered(context, log, control, record, segment)
    kind = plan_kind(covered, segment, control, cursor=record.value.offset)
    if kind is None or not all(map(is_of_before, covered)):
        return False
    if not is_worth_as_much(segment, covered) and not await _some_are_gone(context, covered):
        return False
    now_ms = context.now_ms()
    await _register(context, log, segment, covered, now_ms)
    run = planned_adoption(segment, covered, kind, now_ms)
    if not await publish(context, log, record, run):
        return False
    return (await finish(context, log, control, run)).done


async def _pass_what_is_gone(
    context: LogContext, log: Log, waiting: Sequence[FoundSegment], is_of_before: Callable[[Entry], bool]
) -> bool:
    """Let the log begin at the first segment that would fit there. True: it does now.

    Retention raised the log's start since the backup, and the restored one is lower. The segment is a witness that
    compaction had come by: what was below it was in segments, too, and where no object of those entries is left,
    nothing of them is.
    """
    control = await settle_and_clear(context, log)
    record = await load_compaction(context, log, control.incarnation)
    for segment in sorted(waiting, key=lambda one: one.start_offset):
        if segment.start_offset <= control.log_start_offset:
            continue
        covered = await _covered(context, log, control, record, segment)
        begun_there = replace(control, log_start_offset=segment.start_offset)
        if plan_kind(covered, segment, begun_there, cursor=record.value.offset) is None:
            continue
        below = await _between(context, log, control, record, control.log_start_offset, segment.start_offset - 1)
        known = all(map(is_of_before, (*below, *covered)))
        if known and await _some_are_gone(context, covered) and await _all_are_gone(context, below):
            await delete_records(context, log, segment.start_offset)
            return True
    return False


async def _covered(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction, segment: FoundSegment
) -> list[Entry]:
    """The valid entries from the segment's first offset to its last."""
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
    """How the segment can be published over these entries; None when it does not fit them."""
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
    """Levels rise with every merge, but not with every pass of key compaction: there the instants tell."""
    extension = segment.extension
    return entry.value.level > extension.level and entry.value.created_at_ms >= extension.created_at_ms


def is_worth_as_much(segment: FoundSegment, covered: Sequence[Entry]) -> bool:
    """All the records of the entries, in fewer segments than before."""
    records = sum(
        entry.value.msg_count if entry.value.record_count is None else entry.value.record_count for entry in covered
    )
    return segment.record_count >= records and all(one.value.level < segment.extension.level for one in covered)


async def _some_are_gone(context: LogContext, covered: Sequence[Entry]) -> bool:
    for uri in dict.fromkeys(entry.value.data_key for entry in covered):
        if not await _is_there(context, uri):
            return True
    return False


async def _all_are_gone(context: LogContext, entries: Sequence[Entry]) -> bool:
    for uri in dict.fromkeys(entry.value.data_key for entry in entries):
        if await _is_there(context, uri):
            return False
    return True


async def _is_there(context: LogContext, uri: str) -> bool:
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
    """As its compactor did; and so that a second recovery still knows what the log had of those objects."""
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
        return  # its compactor registered it before the backup was taken
