"""Compaction of one log: settle, select, rewrite, publish. The order that safety hangs on is `_publish` and `_finish`.

    6. compare-and-set the compaction record: the run is in flight, with everything needed to finish it
    7. move the producer snapshot past the run, then swap the end key to one COMPACTED entry
    8. move the cursor                                  (before any delete: h07)
    9. delete the lower keys by version, top down       (only with the cursor seen there)
   10. finish the segment, clear the run

Why it is safe: one record guards all rewriting of a log, so a zombie fails at 6, 7, 8 or 10 (R12); each step is
idempotent and checks the run's id, so anyone resumes at any step; until 8 the old lower keys still answer reads, and
after 8 they are phantoms. A run is abandoned for one reason only: its end key changed under it, seen strictly.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import (
    InvalidArgument,
    LogBusy,
    MetadataUncertain,
    ObjectNotFound,
    PartitionNotInitialized,
    VersionConflict,
)
from llog.formats.values import (
    CompactionRecord,
    CompactionRun,
    ControlRecord,
    IndexEntry,
    SegmentRecord,
    SegmentState,
    decode_value,
    encode_value,
)
from llog.limits import (
    LOG_COMPACT_BYTES_DEFAULT,
    LOG_COMPACT_ENTRIES_MAX,
    LOG_COMPACT_RACES_MAX,
    LOG_COMPACT_ROUNDS_MAX,
)
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, last_segment_id, offset_name
from llog.log.rewrite import rewrite
from llog.log.select import Bounds, Run, select_run
from llog.log.settle import settle_and_clear
from llog.log.snapshot import move_snapshot
from llog.stores.metadata.port import ABSENT


class Compacted(NamedTuple):
    """What one run did."""

    log: Log
    start_offset: int
    end_offset: int
    entry_count: int
    byte_length: int
    data_key: str
    resumed: bool = False


class _Record(NamedTuple):
    value: CompactionRecord
    version: int


async def compact_once(
    context: LogContext,
    log: Log,
    *,
    max_offsets: int = 2**62,
    target_bytes: int = LOG_COMPACT_BYTES_DEFAULT,
    min_age_ms: int = 0,
) -> Compacted | None:
    """Finish what is in flight, or compact the next run; None when nothing is left to do.

    A run that another compactor came before, or that had to be abandoned, is tried again a few times; then `LogBusy`.
    """
    if context.segments is None:
        raise InvalidArgument("context", "has no store to put segments into")
    for round_number in range(LOG_COMPACT_RACES_MAX):
        control = await settle_and_clear(context, log)
        record = await _load_record(context, log, control.incarnation)
        run = record.value.in_flight
        if run is not None:
            if await _finish(context, log, control, run):
                size = run.entry.byte_length or 0
                return Compacted(log, run.start_offset, run.end_offset, 0, size, run.data_key, True)
        else:
            chosen = await _select(context, log, control, record, max_offsets, target_bytes, min_age_ms)
            if chosen is None:
                return None
            done = await _rewrite_and_publish(context, log, control, record, chosen)
            if done is not None:
                return done
        await context.back_off(round_number)
    raise LogBusy(*log, f"other compactors were faster {LOG_COMPACT_RACES_MAX} times; try again")


async def _select(
    context: LogContext,
    log: Log,
    control: ControlRecord,
    record: _Record,
    max_offsets: int,
    target_bytes: int,
    min_age_ms: int,
) -> Run | None:
    bounds = Bounds(
        incarnation=control.incarnation,
        cursor=record.value.offset,
        log_start_offset=control.log_start_offset,
        counter=control.sequence_counter,
        max_offsets=max_offsets,
        target_bytes=target_bytes,
        # No age asked for means none looked at: a writer's clock may be ahead of ours.
        created_before_ms=context.now_ms() - min_age_ms if min_age_ms else 2**63 - 1,
    )
    return select_run(await _entries(context, log, bounds), bounds)


async def _load_record(context: LogContext, log: Log, incarnation: int) -> _Record:
    key = context.keys.compaction(log)
    found = await context.metadata.get(key, strict=True)
    if found is None:
        raise PartitionNotInitialized(*log)
    value = decode_value(CompactionRecord, found.value, key.path)
    if value.incarnation != incarnation:
        raise LogBusy(*log, "the topic is being deleted or created again; try again")
    return _Record(value, found.version)


async def _entries(context: LogContext, log: Log, bounds: Bounds) -> list[Entry]:
    floor = max(bounds.cursor, bounds.log_start_offset)
    entries: list[Entry] = []
    async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(floor)):
        entries.append(entry_of(record))
        if len(entries) == LOG_COMPACT_ENTRIES_MAX:
            break
    return entries


async def _rewrite_and_publish(
    context: LogContext, log: Log, control: ControlRecord, record: _Record, chosen: Run
) -> Compacted | None:
    assert context.segments is not None
    now_ms = context.now_ms()
    segment_id = new_object_id(now_ms, context.random_bits)
    name = context.keys.segment_object(log, segment_id)
    uri = context.segments.uri(name)
    await _register(context, log, control.incarnation, segment_id, chosen, uri)
    try:
        segment = await rewrite(context.find_object, log, control.incarnation, chosen, created_at_ms=now_ms)
    except ObjectNotFound:
        return None  # an entry changed under us (R10); the next round selects again
    await context.segments.put(name, segment.buffers)
    entry = IndexEntry(
        type="COMPACTED",
        level=1,
        msg_count=chosen.msg_count,
        record_count=segment.record_count,
        data_key=uri,
        encoding="kafka-v2",
        byte_offset=0,
        byte_length=segment.byte_length,
        footer_length=segment.footer_length,
        incarnation=control.incarnation,
        epoch=chosen.entries[-1].value.epoch,
        max_timestamp_ms=segment.max_timestamp_ms,
        created_at_ms=now_ms,
    )
    run = CompactionRun(
        compaction_id=segment_id,
        kind="COMPACT",
        state="WRITING_COMPACTED_INDEX",
        start_offset=chosen.start_offset,
        end_offset=chosen.end_offset,
        last_start_offset=chosen.entries[-1].start_offset,
        end_version=chosen.entries[-1].version,
        msg_count=chosen.msg_count,
        data_key=uri,
        encoding="kafka-v2",
        created_at_ms=now_ms,
        sources=segment.extension.sources,
        entry=entry,
    )
    if not await _publish(context, log, record, run, now_ms):
        return None
    if not await _finish(context, log, control, run):
        return None
    return Compacted(log, chosen.start_offset, chosen.end_offset, len(chosen.entries), segment.byte_length, uri)


async def _publish(context: LogContext, log: Log, record: _Record, run: CompactionRun, segment_ms: int) -> bool:
    """Step 6, at the version that was read before anything was selected. False: another run came first."""
    if segment_ms < record.value.segment_horizon_ms:
        return False  # vacuum may have taken the segment already (h02)
    key = context.keys.compaction(log)
    published = encode_value(replace(record.value, in_flight=run), key.path)
    try:
        await context.metadata.put(key, published, expected=record.version)
        return True
    except VersionConflict:
        return False
    except MetadataUncertain:
        found = await _load_record(context, log, record.value.incarnation)
        return found.value.in_flight is not None and found.value.in_flight.compaction_id == run.compaction_id


async def _finish(context: LogContext, log: Log, control: ControlRecord, planned: CompactionRun) -> bool:
    """Steps 7 to 10, from wherever the run stands. True when it is done, False when it was abandoned."""
    for round_number in range(LOG_COMPACT_ROUNDS_MAX):
        record = await _load_record(context, log, control.incarnation)
        run = record.value.in_flight
        if run is None or run.compaction_id != planned.compaction_id:
            return await _is_published(context, log, planned)  # we are done with it, or somebody else is
        try:
            if run.state == "WRITING_COMPACTED_INDEX":
                await move_snapshot(context, log, control, run.end_offset + 1)
                if await _swap_end_key(context, log, run):
                    moved = replace(run, state="DELETING_OLD")
                    await _move(context, log, record, run.end_offset + 1, moved)
                else:
                    await _mark(context, log, run, "DELETE_SEGMENT_STARTED")
                    await _move(context, log, record, record.value.offset, None)
            else:
                await _delete_lower_keys(context, log, run)
                await _mark(context, log, run, "COPY_SEGMENT_FINISHED")
                await _move(context, log, record, record.value.offset, None)
        except (VersionConflict, MetadataUncertain):
            await context.back_off(round_number)
    raise LogBusy(*log, "its compaction record kept changing; try again")


async def _is_published(context: LogContext, log: Log, run: CompactionRun) -> bool:
    found = await context.metadata.get(context.keys.index_entry(log, run.end_offset), strict=True)
    return found is not None and entry_of(found).value.data_key == run.data_key


async def _move(context: LogContext, log: Log, record: _Record, cursor: int, run: CompactionRun | None) -> None:
    key = context.keys.compaction(log)
    moved = replace(record.value, offset=max(cursor, record.value.offset), in_flight=run)
    await context.metadata.put(key, encode_value(moved, key.path), expected=record.version)


async def _swap_end_key(context: LogContext, log: Log, run: CompactionRun) -> bool:
    """Step 7. False: the end key is not what the run was planned on, seen strictly: abandon."""
    key = context.keys.index_entry(log, run.end_offset)
    try:
        await context.metadata.put(key, encode_value(run.entry), expected=run.end_version)
        return True
    except VersionConflict:
        pass
    found = await context.metadata.get(key, strict=True)
    if found is None:
        return False
    if entry_of(found).value.data_key == run.data_key:
        return True
    if found.version == run.end_version:
        raise MetadataUncertain("swap", key.path, "refused, and yet at the expected version")
    return False


async def _delete_lower_keys(context: LogContext, log: Log, run: CompactionRun) -> None:
    """Step 9: the entries that the segment replaces, by version, top down."""
    entries = [
        (record, entry_of(record))
        async for record in context.metadata.scan_all(
            context.keys.index(log),
            start=offset_name(run.start_offset),
            stop=offset_name(run.end_offset),
            strict=True,
        )
    ]
    for record, entry in reversed(entries):
        if entry.value.incarnation <= run.entry.incarnation and entry.start_offset >= run.start_offset:
            await context.metadata.delete(record.key, expected=record.version)


async def _register(context: LogContext, log: Log, incarnation: int, segment_id: str, chosen: Run, uri: str) -> None:
    """Step 5: the segment is in the catalogue before its object is written."""
    record = SegmentRecord(
        segment_id=segment_id,
        incarnation=incarnation,
        start_offset=chosen.start_offset,
        end_offset=chosen.end_offset,
        size_bytes=0,
        sources=tuple(sorted({entry.value.data_key for entry in chosen.entries})),
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=context.now_ms(),
        data_key=uri,
    )
    await context.metadata.put(context.keys.segment(log, segment_id), encode_value(record), expected=ABSENT)


async def _mark(context: LogContext, log: Log, run: CompactionRun, state: SegmentState) -> None:
    """Bring the segment's record to `state`; the catalogue is not a reference, so nothing depends on its timing."""
    key = context.keys.segment(log, last_segment_id(run.data_key))
    found = await context.metadata.get(key, strict=True)
    if found is None:
        return
    record = decode_value(SegmentRecord, found.value, key.path)
    if record.state == state:
        return
    marked = replace(
        record,
        state=state,
        state_changed_at_ms=context.now_ms(),
        size_bytes=run.entry.byte_length or 0,
        max_timestamp_ms=run.entry.max_timestamp_ms,
        epochs={run.entry.epoch: run.start_offset},
    )
    await context.metadata.put(key, encode_value(marked, key.path), expected=found.version)
