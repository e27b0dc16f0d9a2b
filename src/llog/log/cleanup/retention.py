"""Retention and DeleteRecords: raise the log's start, then remove what lies below it.

One compare-and-set raises the start. It also clears `pending` (settled first) and checks that the start does not pass
the counter. The rest is clean-up of what lies below the start, so the next call resumes after a crash anywhere.

- The producer snapshot passes entries before they are deleted: else a retry would not be recognised (h06d, h22).
- Every delete is by key and version of a value whose incarnation was judged (R13).
- An entry that straddles the start stays.
- Only segments are deleted here, because one log owns them; blobs are shared and belong to vacuum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from llog.errors import (
    LogBusy,
    MetadataUncertain,
    OffsetOutOfRange,
    PartitionNotInitialized,
    VersionConflict,
)
from llog.formats.values import CompactionRecord, ControlRecord, SegmentRecord, decode_value, encode_value
from llog.limits import LOG_COMPACT_ROUNDS_MAX
from llog.log.append.settle import StaleSelf, settle, settle_and_clear
from llog.log.context import LogChange, LogContext
from llog.log.index import Entry, entry_of
from llog.log.keys import Log
from llog.log.producer_state import move_snapshot
from llog.log.rewrite import segments
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import load_topic
from llog.stores.metadata.port import Record


class Retained(NamedTuple):
    log: Log
    log_start_offset: int
    entries_removed: int
    segments_removed: int


def plan_log_start(
    entries: Iterable[Entry],
    *,
    log_start_offset: int,
    next_offset: int,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> int:
    """The offset at which the log should start, given its entries and limits. Whole entries go, oldest first.

    By time, an entry goes when its newest record is too old; the last entry too, so an idle log empties. By size, an
    entry goes while at least `retention_bytes` remain without it, as in Kafka: a segment larger than the limit must not
    take the newest records along. An entry that key compaction left without records has no timestamps of its own; it
    goes together with the next entry that goes.
    """
    kept = _uncovered([entry for entry in entries if entry.end_offset >= log_start_offset])
    start = log_start_offset
    size_bytes = sum(entry.value.byte_length or 0 for entry in kept)
    for entry in kept:
        too_old = retention_ms is not None and _newest_ms(entry) < now_ms - retention_ms
        size_bytes -= entry.value.byte_length or 0
        too_much = retention_bytes is not None and size_bytes >= retention_bytes
        if too_old or too_much:
            start = entry.end_offset + 1
        elif entry.value.record_count != 0:
            break
    return min(start, next_offset)


def plan_retention_ms(
    entries: Sequence[Entry],
    segments_known: Iterable[SegmentRecord],
    control: ControlRecord,
    limits: Limits,
    *,
    in_flight: str | None,
    now_ms: int,
    grace_ms: int,
) -> int | None:
    """When `retain` has something to do for a log that does not change; an instant up to `now_ms` means now, and None
    never. The arguments are the log's entries and segment records, and the object of its run in flight."""
    start = control.log_start_offset
    planned = plan_log_start(
        entries,
        log_start_offset=start,
        next_offset=control.sequence_counter,
        now_ms=now_ms,
        retention_ms=limits.retention_ms,
        retention_bytes=limits.retention_bytes,
    )
    if planned > start or any(entry.end_offset < start for entry in entries):
        return now_ms
    named = {in_flight, *(entry.value.data_key for entry in entries)}
    leaving = [
        _leaves_at_ms(control, segment, grace_ms)
        for segment in segments_known
        if segment.incarnation == control.incarnation and segment.data_key not in named
    ]
    instants = [at_ms for at_ms in leaving if at_ms is not None]
    if limits.retention_ms is not None:
        for entry in _uncovered(entries):
            instants.append(_newest_ms(entry) + limits.retention_ms + 1)
            if entry.value.record_count != 0:
                break
    return min(instants, default=None)


def _newest_ms(entry: Entry) -> int:
    return entry.value.max_timestamp_ms if entry.value.max_timestamp_ms >= 0 else entry.value.created_at_ms


def _uncovered(entries: Sequence[Entry]) -> list[Entry]:
    """Entries that no later entry covers. A run in flight is about to delete the covered ones; counting them as well
    would overstate the log's size."""
    kept: list[Entry] = []
    for entry in reversed(entries):
        if not kept or entry.end_offset < kept[-1].start_offset:
            kept.append(entry)
    return kept[::-1]


class Limits(NamedTuple):
    """Retention limits of a log; None means no limit."""

    retention_ms: int | None = None
    retention_bytes: int | None = None
    incarnation: int | None = None
    """The topic's incarnation that these limits belong to; None: any."""


async def configured_limits(context: LogContext, topic: str, *, strict: bool = True) -> Limits:
    """The limits in the topic's config."""
    found = await load_topic(context, topic, strict=strict)
    if found is None:
        return Limits()
    record = found[0]
    config = TopicConfig.of(record.config)
    if not config.delete:
        return Limits(incarnation=record.incarnation)
    return Limits(config.retention_ms, config.retention_bytes, record.incarnation)


async def delete_records(context: LogContext, log: Log, before_offset: int) -> Retained:
    """Make `before_offset` the first readable offset (-1: the end of the log), and remove what lies below it."""
    control, _ = await _load(context, log)
    control = await _raise_log_start(context, log, before_offset, control.incarnation, "records.delete")
    return await _remove_below_start(context, log, control)


async def retain(context: LogContext, log: Log, limits: Limits = Limits()) -> Retained:  # noqa: B008 (immutable)
    """Apply time and size limits, and finish the clean-up of interrupted calls."""
    control = await settle_and_clear(context, log, limits.incarnation)
    entries = [entry for _, entry in await _entries(context, log, control.incarnation)]
    start = await planned_log_start(context, control, entries, limits)
    if start > control.log_start_offset:
        control = await _raise_log_start(context, log, start, control.incarnation, "records.retain")
    return await _remove_below_start(context, log, control)


async def planned_log_start(
    context: LogContext, control: ControlRecord, entries: Sequence[Entry], limits: Limits
) -> int:
    """Plans by this machine's clock first, which costs no request and suffices for most logs. Entries that would go
    must be too old by the stores' clocks as well."""

    def start_at(now_ms: int) -> int:
        return plan_log_start(
            entries,
            log_start_offset=control.log_start_offset,
            next_offset=control.sequence_counter,
            now_ms=now_ms,
            retention_ms=limits.retention_ms,
            retention_bytes=limits.retention_bytes,
        )

    start = start_at(context.now_ms())
    if start == control.log_start_offset or limits.retention_ms is None:
        return start
    return start_at(await context.earliest_now_ms())


async def _load(context: LogContext, log: Log) -> tuple[ControlRecord, int]:
    found = await context.metadata.get(context.keys.control(log), strict=True)
    if found is None:
        raise PartitionNotInitialized(*log)
    control = decode_value(ControlRecord, found.value, found.key.path)
    if control.log_state == "DELETED":
        raise PartitionNotInitialized(*log)
    return control, found.version


async def _raise_log_start(context: LogContext, log: Log, offset: int, incarnation: int, action: str) -> ControlRecord:
    """Of this incarnation only: a call that slept through a re-creation must not empty the new log (h01d)."""
    key = context.keys.control(log)
    start_before: int | None = None
    """Before our own write, or one of ours without an answer."""
    async for _ in context.rounds(LOG_COMPACT_ROUNDS_MAX):
        control, version = await _load(context, log)
        if control.incarnation != incarnation:
            raise LogBusy(*log, "the topic was deleted and created again during this call; nothing was deleted")
        start = control.sequence_counter if offset == -1 else offset
        if not 0 <= start <= control.sequence_counter:
            raise OffsetOutOfRange(*log, offset, control.log_start_offset, control.sequence_counter + 1)
        raised = replace(control, log_start_offset=max(start, control.log_start_offset), pending=None)
        if raised == control:
            break
        try:
            if control.pending is not None:
                await settle(context, log, control.pending)
            await context.metadata.put(key, encode_value(raised, key.path), expected=version)
            start_before = control.log_start_offset
            break
        except MetadataUncertain:
            start_before = control.log_start_offset
        except (VersionConflict, StaleSelf):
            continue
    else:
        raise LogBusy(*log, "other processes kept changing its control record; try again")
    if start_before is not None and raised.log_start_offset > start_before:
        before, after = {"log_start_offset": start_before}, {"log_start_offset": raised.log_start_offset}
        context.on_change(LogChange(action, str(log), before, after))
    return raised


async def _entries(context: LogContext, log: Log, incarnation: int) -> list[tuple[Record, Entry]]:
    """Every entry of this incarnation, in order."""
    found = []
    async for record in context.metadata.scan_all(context.keys.index(log), strict=True):
        entry = entry_of(record)
        if entry.value.incarnation == incarnation:
            found.append((record, entry))
    return found


async def _remove_below_start(context: LogContext, log: Log, control: ControlRecord) -> Retained:
    """Move the snapshot, then delete entries by version, then segment objects, then their records."""
    below = [
        (record, entry)
        for record, entry in await _entries(context, log, control.incarnation)
        if entry.end_offset < control.log_start_offset
    ]
    if below:
        await move_snapshot(context, log, control, below[-1][1].end_offset + 1)
        for _, entry in below:
            if entry.value.type == "COMPACTED":
                await segments.mark_uri(context, log, entry.value.data_key, "DELETE_SEGMENT_STARTED")
        for record, _ in below:
            try:
                await context.metadata.delete(record.key, expected=record.version)
            except (VersionConflict, MetadataUncertain):
                continue  # changed, or deleted already: the next call reads it again
    left = await _segments_to_remove(context, log, control)
    removed: list[segments.KnownSegment] = []
    try:
        for known in left:
            await segments.remove(context, log, known)
            removed.append(known)
    finally:
        if removed:
            sizes = {"segments": len(removed), "bytes": sum(known.record.size_bytes for known in removed)}
            context.on_change(LogChange("segments.delete", str(log), after=sizes))
    return Retained(log, control.log_start_offset, len(below), len(left))


async def _segments_to_remove(context: LogContext, log: Log, control: ControlRecord) -> list[segments.KnownSegment]:
    """Segments marked for deletion that neither an entry nor a run in flight names, also those of interrupted calls.

    A segment below the log's start goes at once. A segment that a merge retired stays for a grace, for readers that
    still hold its entry.
    """
    leaving = [
        known
        for known in await segments.list_segments(context, log)
        if known.record.incarnation == control.incarnation and _is_leaving(context, control, known.record)
    ]
    if not leaving:
        return []
    named = {entry.value.data_key for _, entry in await _entries(context, log, control.incarnation)}
    compaction = await context.metadata.get(context.keys.compaction(log), strict=True)
    if compaction is not None:
        in_flight = decode_value(CompactionRecord, compaction.value, compaction.key.path).in_flight
        named |= {in_flight.data_key} if in_flight is not None else set()
    return [known for known in leaving if known.record.data_key not in named]


def _is_leaving(context: LogContext, control: ControlRecord, segment: SegmentRecord) -> bool:
    at_ms = _leaves_at_ms(control, segment, context.options.vacuum_grace_ms)
    return at_ms is not None and at_ms <= context.now_ms()


def _leaves_at_ms(control: ControlRecord, segment: SegmentRecord, grace_ms: int) -> int | None:
    """From when on a segment that nothing names may be removed; None: it is not marked for deletion."""
    if segment.state == "DELETE_SEGMENT_FINISHED":
        return 0
    if segment.state != "DELETE_SEGMENT_STARTED":
        return None
    return 0 if segment.end_offset < control.log_start_offset else segment.state_changed_at_ms + grace_ms + 1
