"""Removes what is left under a deleted log: found by listing, judged by incarnation, deleted by version.

Topic deletion runs this after it wrote the tombstone; vacuum runs it again, because a settle, an initialization or a
compactor that slept through the deletion may still add a value of the dead incarnation. Such values are phantoms to
every later incarnation: they only take space.

Rules
- The compaction record goes first: without it no run is published and no cursor moves (R12), so a compactor can only
  add a segment that nothing names.
- An object goes before the last value that names it, and the segment's record goes last, so that a crash leaves a name
  to resume from. Segments are deleted by name, never by listing a prefix; blobs stay, because other logs share them.
- A value of a HIGHER incarnation means that the topic was created again: stop, and touch nothing (I11).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from llog.errors import MetadataStoreError, VersionConflict
from llog.formats.values import (
    CompactionRecord,
    CompactorClaim,
    ControlRecord,
    ProducerPage,
    ProducerSnapshot,
    SegmentRecord,
    decode_value,
    encode_value,
)
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.log.append.settle import StaleSelf
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.keys import Log
from llog.stores.metadata.port import Delete, Key, Put, Record, Write, after, last_segment
from llog.stores.objects.port import ObjectStore

V = TypeVar("V", CompactionRecord, CompactorClaim, ProducerPage, ProducerSnapshot, SegmentRecord)


class LeftoversRemoved(NamedTuple):
    """`found` counts every value that the pass met; a pass with `found` 0 is the last."""

    found: int = 0
    entries: int = 0
    segments: int = 0

    def plus(self, other: LeftoversRemoved) -> LeftoversRemoved:
        return LeftoversRemoved(self.found + other.found, self.entries + other.entries, self.segments + other.segments)


async def remove_leftovers(context: LogContext, log: Log) -> LeftoversRemoved:
    """One pass over a deleted log; does nothing for any other log. Safe at any time, beside any other process."""
    found = await context.metadata.get(context.keys.control(log), strict=True)
    if found is None:
        return LeftoversRemoved()
    control = decode_value(ControlRecord, found.value, found.key.path)
    if control.log_state != "DELETED":
        return LeftoversRemoved()
    try:
        return await remove_dead(context, log, control.incarnation)
    except StaleSelf:
        return LeftoversRemoved()


async def remove_dead(context: LogContext, log: Log, incarnation: int) -> LeftoversRemoved:
    """One pass. The log must have a tombstone of `incarnation` or a later one. Raises `StaleSelf`."""
    # From here on no compactor can publish.
    found = await _remove_compaction(context, log, incarnation)
    segments = await _mark_segments(context, log, incarnation)
    entries = await _remove_entries(context, log, incarnation, {record.data_key for record in segments})
    await _remove_segments(context, log, incarnation)
    found += await _remove_producers(context, log, incarnation)
    found += await _remove_one(context, context.keys.claim(log), CompactorClaim, incarnation)
    return LeftoversRemoved(found + len(segments) + entries, entries, len(segments))


# -- the parts -------------------------------------------------------------------------------------------------------


async def _remove_compaction(context: LogContext, log: Log, incarnation: int) -> int:
    key = context.keys.compaction(log)
    found = await context.metadata.get(key, strict=True)
    if found is None:
        return 0
    run = _judged(CompactionRecord, found, incarnation).in_flight
    if run is not None:
        await _remove_pages(context, log, incarnation, {run.end_offset + 1})
        # A registered segment goes with its record; this deletes one without a record.
        await _remove_objects(context, log, [run.data_key])
    await _delete(context, [found])
    return 1


async def _mark_segments(context: LogContext, log: Log, incarnation: int) -> list[SegmentRecord]:
    """Mark every segment's record DELETE_SEGMENT_STARTED, so that the catalogue shows the deletion."""
    segments = []
    async for page in _pages(context, context.keys.segments(log)):
        puts, as_ofs = list[Write](), set[int]()
        for record in page:
            segment = _judged(SegmentRecord, record, incarnation)
            segments.append(segment)
            as_ofs |= {segment.start_offset, segment.end_offset + 1}
            if segment.state in ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"):
                marked = replace(segment, state="DELETE_SEGMENT_STARTED", state_changed_at_ms=context.now_ms())
                puts.append(Put(record.key, encode_value(marked, record.key.path), record.version))
        await _remove_pages(context, log, incarnation, as_ofs)
        await _write(context, puts)
    return segments


async def _remove_entries(context: LogContext, log: Log, incarnation: int, registered: set[str]) -> int:
    count = 0
    async for page in _pages(context, context.keys.index(log)):
        entries = [entry_of(record) for record in page]
        for entry in entries:
            _check_dead(entry.value.incarnation, incarnation)
        await _remove_pages(context, log, incarnation, {entry.end_offset + 1 for entry in entries})
        # Registered segments go with their records, after everything that names them.
        compacted = {entry.value.data_key for entry in entries if entry.value.type == "COMPACTED"}
        await _remove_objects(context, log, sorted(compacted - registered))
        await _delete(context, page)
        count += len(page)
    return count


async def _remove_segments(context: LogContext, log: Log, incarnation: int) -> None:
    async for page in _pages(context, context.keys.segments(log)):
        segments = [_judged(SegmentRecord, record, incarnation) for record in page]
        await _remove_objects(context, log, [segment.data_key for segment in segments if segment.data_key])
        await _delete(context, page)


async def _remove_producers(context: LogContext, log: Log, incarnation: int) -> int:
    """Pages go before the head that leads to them."""
    key = context.keys.producers(log)
    found = await context.metadata.get(key, strict=True)
    if found is None:
        return 0
    await _remove_pages(context, log, incarnation, {_judged(ProducerSnapshot, found, incarnation).as_of})
    await _delete(context, [found])
    return 1


async def _remove_pages(context: LogContext, log: Log, incarnation: int, as_ofs: set[int]) -> None:
    """Remove snapshot pages as of these offsets. A page cannot be listed without its offset; a snapshot moves to the
    end of an entry or of a run, so pages that no head names are found at these offsets."""
    keys = [context.keys.producer_page(log, as_of, 0) for as_of in sorted(as_ofs)]
    first_pages = await context.metadata.get_many(keys, strict=True)
    for as_of, first in zip(sorted(as_ofs), first_pages, strict=True):
        if first is None:
            continue
        async for page in _pages(context, context.keys.producer_pages(log, as_of)):
            for record in page:
                _judged(ProducerPage, record, incarnation)
            # The first page last: the others are found by it.
            await _delete(context, page[::-1])


async def _remove_one(context: LogContext, key: Key, kind: type[V], incarnation: int) -> int:
    found = await context.metadata.get(key, strict=True)
    if found is None:
        return 0
    _judged(kind, found, incarnation)
    await _delete(context, [found])
    return 1


async def _remove_objects(context: LogContext, log: Log, uris: Iterable[str]) -> None:
    """Delete segments of this log by name; skip any other object."""
    own = context.keys.segment_objects(log)
    by_store: dict[int, tuple[ObjectStore, list[str]]] = {}
    for uri in uris:
        store, name = await context.find_object(uri)
        if name.startswith(own):
            by_store.setdefault(id(store), (store, []))[1].append(name)
    for store, names in by_store.values():
        await store.delete_many(names)


# -- judged and by version -------------------------------------------------------------------------------------------


def _judged(kind: type[V], record: Record, incarnation: int) -> V:
    value = decode_value(kind, record.value, record.key.path)
    _check_dead(value.incarnation, incarnation)
    return value


def _check_dead(found: int, incarnation: int) -> None:
    if found > incarnation:
        raise StaleSelf


async def _pages(context: LogContext, parent: Key) -> AsyncIterator[list[Record]]:
    """The children of a key by strict reads, page by page. The caller may delete a page before it takes the next."""
    start = ""
    while True:
        page = await context.metadata.scan(parent, start=start, strict=True)
        if page:
            yield page
        if len(page) < METADATA_SCAN_PAGE_RECORDS_MAX:
            return
        start = after(last_segment(page[-1].key.path))


async def _delete(context: LogContext, records: Sequence[Record]) -> None:
    await _write(context, [Delete(record.key, record.version) for record in records])


async def _write(context: LogContext, writes: Sequence[Write]) -> None:
    """Each write on its own. A refused write means that the value changed since it was judged, and a write without an
    answer may not have happened: the next pass meets both again."""
    if not writes:
        return
    for outcome in await context.metadata.write([[write] for write in writes]):
        if isinstance(outcome, MetadataStoreError) and not (outcome.retriable or isinstance(outcome, VersionConflict)):
            raise outcome
