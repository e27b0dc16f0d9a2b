"""Publishing one rewritten group of key compaction, by the steps of `llog.log.rewrite.publish`.

A pass takes long, and compaction of fresh entries moves the log's record meanwhile. So publishing does not insist on
the record's version of the time when the pass began: it reads the record anew, finishes whatever is in flight, looks
strictly whether the very entries that were rewritten still stand, and publishes at the version just read.

Why that is safe: between that read and step 6 nobody else can have swapped those entries without moving the record, and
then step 6 fails. What the pass knew of other entries may be old, but it only removed records of which it had seen a
later one of the same key; a log never loses the last record of a key except to a pass that removed all older ones
before, and those would have changed the entries looked at here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from llog.errors import LogBusy, MetadataUncertain
from llog.formats.values import ControlRecord, SegmentRecord
from llog.limits import KEY_COMPACT_LEVEL
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.rewrite import segments
from llog.log.rewrite.publish import KnownCompaction, finish, load_compaction, planned_run, publish
from llog.log.rewrite.select import Choice, Run
from llog.pipeline.key_compact.rewrite_task import KeyRewritten
from llog.stores.metadata.port import after

KEY_COMPACT_RACES_MAX: Final = 16


Ending = Literal["published", "changed"]


async def publish_group(
    context: LogContext, log: Log, control: ControlRecord, entries: Sequence[Entry], written: KeyRewritten
) -> Ending:
    """`changed`: the entries are not those any more, or vacuum may have the new segment; the log is planned again. A
    segment that was not published is nobody's, and goes with vacuum."""
    taken = Run(tuple(entries))
    await segments.register(context, log, _segment_record(control, taken, written))
    chosen = Choice("KEY_COMPACT", KEY_COMPACT_LEVEL, taken)
    run = planned_run(
        control.incarnation, chosen, written.segment_id, written.as_segment(), written.uri, written.created_at_ms
    )
    for round_number in range(KEY_COMPACT_RACES_MAX):
        record = await settled_compaction(context, log, control)
        stand = await _still_stand(context, log, control, record, taken)
        if not stand:
            # Perhaps by this very run: an attempt that got no answer may have landed late, and others have finished it.
            return "published" if (await finish(context, log, control, run)).done else "changed"
        if run.created_at_ms < record.value.segment_horizon_ms:
            return "changed"
        if await publish(context, log, record, run):
            return "published" if (await finish(context, log, control, run)).done else "changed"
        await context.back_off(round_number)
    raise LogBusy(*log, f"other compactors were faster {KEY_COMPACT_RACES_MAX} times; try again")


async def settled_compaction(context: LogContext, log: Log, control: ControlRecord) -> KnownCompaction:
    """The compaction record with nothing in flight: what is, is finished first, whoever began it."""
    for round_number in range(KEY_COMPACT_RACES_MAX):
        record = await load_compaction(context, log, control.incarnation)
        if record.value.in_flight is None:
            return record
        try:
            await finish(context, log, control, record.value.in_flight)
        except MetadataUncertain:
            await context.back_off(round_number)
    raise LogBusy(*log, "other compactors are at work on it without a pause; try again")


async def _still_stand(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction, taken: Run
) -> bool:
    start, stop = offset_name(taken.start_offset), after(offset_name(taken.end_offset))
    found: list[tuple[int, int]] = []
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=stop, strict=True):
        entry = entry_of(item)
        # Below the log's start too: whether they stand is the question here, not whether anyone can read them.
        verdict = judge(entry, incarnation=control.incarnation, cursor=record.value.offset, log_start_offset=0)
        if verdict is EntryVerdict.VALID:
            found.append((entry.end_offset, entry.version))
    return found == [(entry.end_offset, entry.version) for entry in taken.entries]


def _segment_record(control: ControlRecord, taken: Run, written: KeyRewritten) -> SegmentRecord:
    return SegmentRecord(
        segment_id=written.segment_id,
        incarnation=control.incarnation,
        start_offset=taken.start_offset,
        end_offset=taken.end_offset,
        size_bytes=0,
        sources=taken.sources,
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=written.created_at_ms,
        data_key=written.uri,
    )
