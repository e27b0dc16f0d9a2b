"""One rewriting of one log, from looking to publishing: what compaction and merge share.

    1. settle what is pending and clear it; note that counter         (R11: no run reaches it)
    2. finish a run in flight, whoever began it
    3. choose entries; register a segment, write it
    4. publish it (steps 6 to 10 are `publish`)

What must stay true: the compaction record is read before anything is chosen, and the run is published at that very
version, so whatever happened to the log's segments in between makes publishing fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from llog.errors import InvalidArgument, LogBusy, ObjectNotFound
from llog.formats.segment import Segment
from llog.formats.values import (
    CompactionKind,
    CompactionRun,
    ControlRecord,
    IndexEntry,
    SegmentRecord,
)
from llog.log.append.settle import settle_and_clear
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.rewrite import segments
from llog.log.rewrite.publish import KnownCompaction, finish, load_compaction, publish
from llog.log.rewrite.rewrite import rewrite
from llog.log.rewrite.select import Run

# Runs begun and lost to another compactor before `compact_once` answers "busy"; each may have written a segment.
LOG_COMPACT_RACES_MAX: Final = 4


class Compacted(NamedTuple):
    """What one run did."""

    log: Log
    start_offset: int
    end_offset: int
    entry_count: int
    byte_length: int
    data_key: str
    resumed: bool = False
    kind: CompactionKind = "COMPACT"
    level: int = 1


class Choice(NamedTuple):
    kind: CompactionKind
    level: int
    """Of the segment to be written."""
    run: Run


Choose = Callable[[ControlRecord, KnownCompaction], Awaitable[Choice | None]]


async def run_once(context: LogContext, log: Log, choose: Choose) -> Compacted | None:
    """Finish what is in flight, or rewrite what is chosen; None when nothing is.

    A run that another process came before, or that had to be abandoned, is tried again a few times; then `LogBusy`.
    """
    if context.segments is None:
        raise InvalidArgument("context", "has no store to put segments into")
    async for _ in context.rounds(LOG_COMPACT_RACES_MAX):
        control = await settle_and_clear(context, log)
        record = await load_compaction(context, log, control.incarnation)
        done: Compacted | None
        if record.value.in_flight is not None:
            done = await _resume(context, log, control, record.value.in_flight)
        else:
            chosen = await choose(control, record)
            if chosen is None:
                return None
            done = await _rewrite_and_publish(context, log, control, record, chosen)
        if done is not None:
            return done
    raise LogBusy(*log, f"other compactors were faster {LOG_COMPACT_RACES_MAX} times; try again")


async def _resume(context: LogContext, log: Log, control: ControlRecord, run: CompactionRun) -> Compacted | None:
    if not (await finish(context, log, control, run)).done:
        return None
    size, level = run.entry.byte_length or 0, run.entry.level
    return Compacted(log, run.start_offset, run.end_offset, 0, size, run.data_key, True, run.kind, level)


async def _rewrite_and_publish(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction, chosen: Choice
) -> Compacted | None:
    assert context.segments is not None
    now_ms, taken = context.now_ms(), chosen.run
    segment_id = new_object_id(now_ms, context.random_bits)
    name = context.keys.segment_object(log, segment_id)
    uri = context.segments.uri(name)
    await segments.register(context, log, _segment_record(control.incarnation, segment_id, taken, uri, now_ms))
    try:
        segment = await rewrite(
            context.find_object, log, control.incarnation, taken, level=chosen.level, created_at_ms=now_ms
        )
    except ObjectNotFound:
        return None  # an entry changed under us (R10); the next round selects again
    await context.segments.put(name, segment.buffers)
    run = planned_run(control.incarnation, chosen, segment_id, segment, uri, now_ms)
    if not await publish(context, log, record, run):
        return None
    if not (await finish(context, log, control, run)).done:
        return None
    size, count = segment.byte_length, len(taken.entries)
    return Compacted(log, taken.start_offset, taken.end_offset, count, size, uri, False, chosen.kind, chosen.level)


def _segment_record(incarnation: int, segment_id: str, taken: Run, uri: str, now_ms: int) -> SegmentRecord:
    return SegmentRecord(
        segment_id=segment_id,
        incarnation=incarnation,
        start_offset=taken.start_offset,
        end_offset=taken.end_offset,
        size_bytes=0,
        sources=taken.sources,
        state="COPY_SEGMENT_STARTED",
        state_changed_at_ms=now_ms,
        data_key=uri,
    )


def planned_run(
    incarnation: int, chosen: Choice, segment_id: str, segment: Segment, uri: str, now_ms: int
) -> CompactionRun:
    """Everything that anyone needs to finish the run."""
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
