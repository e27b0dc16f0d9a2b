"""Segment records: one per segment object, in four states, moved by version and only forward.

    COPY_SEGMENT_STARTED → COPY_SEGMENT_FINISHED → DELETE_SEGMENT_STARTED → DELETE_SEGMENT_FINISHED
                         ↘ DELETE_SEGMENT_STARTED (abandoned, or left behind by a crash)

An object exists before anything names it and after nothing names it any more. Its record is written before the object
and deleted after it, so that a crash anywhere leaves a record to find the object by. A record is not a reference: only
entries, pending and the run in flight keep an object alive (h11a–h11d).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from llog.errors import IllegalSegmentState, MetadataUncertain, VersionConflict
from llog.formats.values import SegmentRecord, SegmentState, decode_value, encode_value
from llog.limits import LOG_COMPACT_ROUNDS_MAX
from llog.log.context import LogContext
from llog.log.ids import is_object_id
from llog.log.keys import Log
from llog.stores.metadata.port import ABSENT

NEXT_STATES: Final[dict[SegmentState, frozenset[SegmentState]]] = {
    "COPY_SEGMENT_STARTED": frozenset({"COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"}),
    "COPY_SEGMENT_FINISHED": frozenset({"DELETE_SEGMENT_STARTED"}),
    "DELETE_SEGMENT_STARTED": frozenset({"DELETE_SEGMENT_FINISHED"}),
    "DELETE_SEGMENT_FINISHED": frozenset(),
}


class KnownSegment(NamedTuple):
    record: SegmentRecord
    version: int


def moved(record: SegmentRecord, state: SegmentState, now_ms: int, **changes: Any) -> SegmentRecord:
    """The record in `state`. The same state again changes nothing; any other move raises `IllegalSegmentState`."""
    if state == record.state:
        return record
    if state not in NEXT_STATES[record.state]:
        raise IllegalSegmentState(record.segment_id, record.state, state)
    return replace(record, state=state, state_changed_at_ms=now_ms, **changes)


async def register(context: LogContext, log: Log, record: SegmentRecord) -> None:
    """Create the record. Call this before the object is written."""
    if record.state != "COPY_SEGMENT_STARTED":
        raise IllegalSegmentState(record.segment_id, "(new)", record.state)
    await context.metadata.put(context.keys.segment(log, record.segment_id), encode_value(record), expected=ABSENT)


async def load(context: LogContext, log: Log, segment_id: str) -> KnownSegment | None:
    found = await context.metadata.get(context.keys.segment(log, segment_id), strict=True)
    return None if found is None else KnownSegment(_decoded(found.value, found.key.path), found.version)


async def list_segments(context: LogContext, log: Log, *, strict: bool = True) -> list[KnownSegment]:
    """In order of creation: ids begin with the time."""
    return [
        KnownSegment(_decoded(found.value, found.key.path), found.version)
        async for found in context.metadata.scan_all(context.keys.segments(log), strict=strict)
    ]


async def mark(context: LogContext, log: Log, segment_id: str, state: SegmentState, **changes: Any) -> None:
    """Move the record to `state`, unless it is gone or already past it."""
    key = context.keys.segment(log, segment_id)
    async for _ in context.rounds(LOG_COMPACT_ROUNDS_MAX):
        known = await load(context, log, segment_id)
        if known is None or state not in NEXT_STATES[known.record.state]:
            return
        marked = moved(known.record, state, context.now_ms(), **changes)
        try:
            await context.metadata.put(key, encode_value(marked, key.path), expected=known.version)
            return
        except (VersionConflict, MetadataUncertain):
            continue
    raise MetadataUncertain("mark", key.path, f"not known to be {state} after {LOG_COMPACT_ROUNDS_MAX} rounds")


async def mark_uri(context: LogContext, log: Log, uri: str, state: SegmentState) -> None:
    """`mark` by the URI in an entry. An object with a name of another form has no record."""
    segment_id = uri.rpartition("/")[2]
    if is_object_id(segment_id):
        await mark(context, log, segment_id, state)


async def remove(context: LogContext, log: Log, known: KnownSegment) -> None:
    """Delete the object, then the record at the version judged. A failure leaves the record for a later run."""
    store, name = await context.find_object(known.record.data_key)
    await store.delete_many([name])
    key = context.keys.segment(log, known.record.segment_id)
    finished = moved(known.record, "DELETE_SEGMENT_FINISHED", context.now_ms())
    try:
        version = await context.metadata.put(key, encode_value(finished, key.path), expected=known.version)
        await context.metadata.delete(key, expected=version)
    except (VersionConflict, MetadataUncertain):
        return


def _decoded(value: bytes, source: str) -> SegmentRecord:
    return decode_value(SegmentRecord, value, source)
