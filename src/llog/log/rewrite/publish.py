"""Publishing a rewritten run: the order that safety hangs on, for compaction and merge alike.

    6. compare-and-set the compaction record: the run is in flight, with everything needed to finish it
    7. move the producer snapshot past the run, then swap the end key to one COMPACTED entry
    8. move the cursor                                  (before any delete: h07)
    9. delete the lower keys by version, top down       (only with the cursor seen there)
   10. finish the segment, retire the sources of a merge, clear the run

Why the order is safe:
- One record guards all rewriting of a log, so a compactor that slept fails at step 6, 7, 8 or 10 (R12).
- Each step is idempotent and checks the run's id, so any process can resume at any step.
- Until step 8 the old lower keys still answer reads; after step 8 they are phantoms. Deletes before step 8 would leave
  offsets that no entry covers (h07).
- A run is abandoned for one reason only: a strict read shows that its end key changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import LogBusy, MetadataStoreError, MetadataUncertain, PartitionNotInitialized, VersionConflict
from llog.formats.segment import Segment
from llog.formats.values import (
    CompactionKind,
    CompactionRecord,
    CompactionRun,
    ControlRecord,
    IndexEntry,
    decode_value,
    encode_value,
)
from llog.limits import LOG_COMPACT_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, last_segment_id, offset_name
from llog.log.rewrite import segments
from llog.log.rewrite.select import Choice
from llog.log.rewrite.snapshot import move_snapshot
from llog.stores.metadata.port import Delete, Record

# Index entries that a segment replaced, deleted together where the store can: a group is one write of the store.
LOG_DELETES_PER_GROUP_MAX: Final = 256


class Compacted(NamedTuple):
    """One published run."""

    log: Log
    start_offset: int
    end_offset: int
    entry_count: int
    byte_length: int
    data_key: str
    resumed: bool = False
    kind: CompactionKind = "COMPACT"
    level: int = 1


class KnownCompaction(NamedTuple):
    """A log's compaction record at a version."""

    value: CompactionRecord
    version: int


class Published(NamedTuple):
    """How a run ended, and the compaction record after it: the next planned run of this log is published there."""

    done: bool
    """False: the run was abandoned, or its entry is not in the index."""
    record: KnownCompaction


def planned_run(
    incarnation: int, chosen: Choice, segment_id: str, segment: Segment, uri: str, now_ms: int
) -> CompactionRun:
    """The run as it is recorded: everything that any process needs to finish it."""
    taken, last = chosen.run, chosen.run.entries[-1]
    entry = IndexEntry(
        type="COMPACTED",
        level=chosen.level,
        msg_count=taken.msg_count,
        record_count=segment.record_count,
        data_key=uri,
        encoding="kafka-v2",
        byte_offset=0,
        byte_length=segment.byte_length,
        footer_length=segment.footer_length,
        incarnation=incarnation,
        epoch=last.value.epoch,
        max_timestamp_ms=segment.max_timestamp_ms,
        created_at_ms=now_ms,
    )
    return CompactionRun(
        compaction_id=segment_id,
        kind=chosen.kind,
        state="WRITING_COMPACTED_INDEX",
        start_offset=taken.start_offset,
        end_offset=taken.end_offset,
        last_start_offset=last.start_offset,
        end_version=last.version,
        msg_count=taken.msg_count,
        data_key=uri,
        encoding="kafka-v2",
        created_at_ms=now_ms,
        sources=() if chosen.kind == "COMPACT" else taken.sources,
        epochs=segment.extension.epochs,
        entry=entry,
    )


async def load_compaction(context: LogContext, log: Log, incarnation: int) -> KnownCompaction:
    key = context.keys.compaction(log)
    found = await context.metadata.get(key, strict=True)
    if found is None:
        raise PartitionNotInitialized(*log)
    value = decode_value(CompactionRecord, found.value, key.path)
    if value.incarnation != incarnation:
        raise LogBusy(*log, "the topic is being deleted or created again; try again")
    return KnownCompaction(value, found.version)


async def publish(context: LogContext, log: Log, record: KnownCompaction, run: CompactionRun) -> bool:
    """Step 6, at the version that was read before entries were selected. False: another run came first."""
    if run.created_at_ms < record.value.segment_horizon_ms:
        return False  # vacuum may have deleted the segment already (h02)
    key = context.keys.compaction(log)
    published = encode_value(replace(record.value, in_flight=run), key.path)
    try:
        await context.metadata.put(key, published, expected=record.version)
        return True
    except VersionConflict:
        return False
    except MetadataUncertain:
        found = await load_compaction(context, log, record.value.incarnation)
        return found.value.in_flight is not None and found.value.in_flight.compaction_id == run.compaction_id


async def finish(context: LogContext, log: Log, control: ControlRecord, planned: CompactionRun) -> Published:
    """Steps 7 to 10, from the step that the run has reached."""
    for round_number in range(LOG_COMPACT_ROUNDS_MAX):
        record = await load_compaction(context, log, control.incarnation)
        run = record.value.in_flight
        if run is None or run.compaction_id != planned.compaction_id:
            return Published(await _is_published(context, log, planned), record)  # ended, here or by another process
        try:
            if run.state == "WRITING_COMPACTED_INDEX":
                await move_snapshot(context, log, control, run.end_offset + 1)
                if await _swap_end_key(context, log, run):
                    await _move(context, log, record, run.end_offset + 1, replace(run, state="DELETING_OLD"))
                else:
                    await _move(context, log, record, record.value.offset, None)
                    await segments.mark_uri(context, log, run.data_key, "DELETE_SEGMENT_STARTED")
            else:
                await _delete_lower_keys(context, log, run)
                await _finish_segments(context, log, run)
                await _move(context, log, record, record.value.offset, None)
        except (VersionConflict, MetadataUncertain):
            await context.back_off(round_number)
    raise LogBusy(*log, "other processes kept changing its compaction record; try again")


async def _is_published(context: LogContext, log: Log, run: CompactionRun) -> bool:
    found = await context.metadata.get(context.keys.index_entry(log, run.end_offset), strict=True)
    return found is not None and _is_of(run, entry_of(found))


def _is_of(run: CompactionRun, entry: Entry) -> bool:
    """The type counts: a WAL entry names a segment too, after recovery appended slices of it."""
    return entry.value.type == "COMPACTED" and entry.value.data_key == run.data_key


async def _move(context: LogContext, log: Log, record: KnownCompaction, cursor: int, run: CompactionRun | None) -> None:
    """Steps 8 and 10, at the version read: only a process that saw this very run moves it on (h08b)."""
    key = context.keys.compaction(log)
    moved = replace(record.value, offset=max(cursor, record.value.offset), in_flight=run)
    await context.metadata.put(key, encode_value(moved, key.path), expected=record.version)


async def _swap_end_key(context: LogContext, log: Log, run: CompactionRun) -> bool:
    """Step 7. False: a strict read shows an end key other than the one the run was planned on; abandon the run."""
    key = context.keys.index_entry(log, run.end_offset)
    try:
        await context.metadata.put(key, encode_value(run.entry), expected=run.end_version)
        return True
    except VersionConflict:
        pass
    found = await context.metadata.get(key, strict=True)
    if found is None:
        return False
    if _is_of(run, entry_of(found)):
        return True
    if found.version == run.end_version:
        raise MetadataUncertain(
            "swap", key.path, "the store refused the write, yet the key is at the expected version; try again"
        )
    return False


async def _delete_lower_keys(context: LogContext, log: Log, run: CompactionRun) -> None:
    """Step 9: delete the entries that the segment replaces, by version, top down. A reader that scans from below meets
    either an old entry that covers its offset, or the new one."""
    entries = [
        (record, entry_of(record))
        async for record in context.metadata.scan_all(
            context.keys.index(log),
            start=offset_name(run.start_offset),
            stop=offset_name(run.end_offset),
            strict=True,
        )
    ]
    replaced = [
        record
        for record, entry in reversed(entries)
        if entry.value.incarnation <= run.entry.incarnation and entry.start_offset >= run.start_offset
    ]
    for first in range(0, len(replaced), LOG_DELETES_PER_GROUP_MAX):
        await _delete_top_down(context, replaced[first : first + LOG_DELETES_PER_GROUP_MAX])


async def _delete_top_down(context: LogContext, records: Sequence[Record]) -> None:
    """On an atomic store the deletes are one group: the same sequence, with nothing in between."""
    if context.metadata.capabilities.atomic_groups and len(records) > 1:
        [outcome] = await context.metadata.write([[Delete(record.key, record.version) for record in records]])
        if not isinstance(outcome, MetadataStoreError):
            return
        if not isinstance(outcome, VersionConflict):
            raise outcome
        # One of them changed: delete those above it one by one, as on any store.
    for record in records:
        await context.metadata.delete(record.key, expected=record.version)


async def _finish_segments(context: LogContext, log: Log, run: CompactionRun) -> None:
    """Step 10: mark the segment finished, and retire the segments that a merge replaced. Their entries are deleted by
    now; their objects follow a grace later, so that a reader that holds an old entry still finds its object."""
    entry = run.entry
    await segments.mark(
        context,
        log,
        last_segment_id(run.data_key),
        "COPY_SEGMENT_FINISHED",
        size_bytes=entry.byte_length or 0,
        max_timestamp_ms=entry.max_timestamp_ms,
        epochs=run.epochs or {entry.epoch: run.start_offset},
    )
    if run.kind != "COMPACT":
        for source in run.sources:
            await segments.mark_uri(context, log, source, "DELETE_SEGMENT_STARTED")
