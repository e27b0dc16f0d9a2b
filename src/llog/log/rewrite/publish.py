"""A rewriting run: which index entries it takes (pure functions), and the order in which it is published.

R11: a run takes whole entries, contiguous, starting with the valid entry that covers the floor (the later of cursor and
log start), and ends below the counter noted when `pending` was last cleared. A run that ended inside an entry would
lose the rest of it when the cursor moves; a run past that counter would lose an append that is not settled yet.

Compaction, merge and key compaction publish in the same order:

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

from collections.abc import Iterable, Sequence
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
from llog.limits import LOG_COMPACT_ENTRIES_MAX, LOG_COMPACT_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, last_segment_id, offset_name
from llog.log.producer_state import move_snapshot
from llog.log.rewrite import segments
from llog.stores.metadata.port import Delete, Record

# Index entries that a segment replaced, deleted together where the store can: a group is one write of the store.
LOG_DELETES_PER_GROUP_MAX: Final = 256
# Segments that one merge takes at least.
LOG_MERGE_INPUTS_MIN: Final = 2


class Run(NamedTuple):
    """Entries to be rewritten into one segment, in offset order."""

    entries: tuple[Entry, ...]

    @property
    def start_offset(self) -> int:
        return self.entries[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset

    @property
    def msg_count(self) -> int:
        return self.end_offset - self.start_offset + 1

    @property
    def sources(self) -> tuple[str, ...]:
        """URIs of the objects that hold its bytes."""
        return tuple(sorted({entry.value.data_key for entry in self.entries}))


class Choice(NamedTuple):
    """A run, and which segment it becomes."""

    kind: CompactionKind
    level: int
    """Level of the new segment."""
    run: Run


class Bounds(NamedTuple):
    incarnation: int
    cursor: int
    log_start_offset: int
    counter: int
    """Entries end below it."""
    max_offsets: int
    target_bytes: int
    created_before_ms: int
    """Younger entries are left alone (R4)."""


def select_run(entries: Iterable[Entry], bounds: Bounds) -> Run | None:
    """The next run, from index entries in order from the floor on; None when there is nothing to do."""
    chosen: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        verdict = judge(
            entry,
            incarnation=bounds.incarnation,
            cursor=bounds.cursor,
            log_start_offset=bounds.log_start_offset,
        )
        if verdict in (EntryVerdict.PHANTOM, EntryVerdict.BELOW_START):
            continue
        if verdict is EntryVerdict.FROM_THE_FUTURE or not _fits(entry, chosen, bounds):
            break
        offsets = entry.end_offset - (chosen[0].start_offset if chosen else entry.start_offset) + 1
        length = entry.value.byte_length or 0
        if chosen and (offsets > bounds.max_offsets or size_bytes + length > bounds.target_bytes):
            break
        chosen.append(entry)
        size_bytes += length
    return Run(tuple(chosen)) if chosen else None


def _fits(entry: Entry, chosen: list[Entry], bounds: Bounds) -> bool:
    """Is it the next whole WAL entry, old enough and below the counter?"""
    floor = max(bounds.cursor, bounds.log_start_offset)
    follows = entry.start_offset == chosen[-1].end_offset + 1 if chosen else entry.covers(floor)
    return (
        follows
        and entry.value.type == "WAL"
        and entry.end_offset < bounds.counter
        and entry.value.created_at_ms <= bounds.created_before_ms
    )


def select_merge(entries: Iterable[Entry], *, target_bytes: int, min_inputs: int) -> Run | None:
    """The first neighbours of one level that together stay within `target_bytes`: at least `min_inputs`, and as many as
    fit. `entries` are valid COMPACTED entries in offset order."""
    chosen: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        length = entry.value.byte_length or 0
        follows = (
            bool(chosen)
            and entry.start_offset == chosen[-1].end_offset + 1
            and entry.value.level == chosen[-1].value.level
            and size_bytes + length <= target_bytes
            and len(chosen) < LOG_COMPACT_ENTRIES_MAX
        )
        if not follows:
            if len(chosen) >= min_inputs:
                break
            chosen, size_bytes = [], 0
        chosen.append(entry)
        size_bytes += length
    return Run(tuple(chosen)) if len(chosen) >= min_inputs else None


# -- publishing --------------------------------------------------------------------------------------------------------


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
