"""What lies in the object stores that restored metadata does not know: blobs and segments newer than the backup.

Object names begin with their instant, so "newer" is read off the name. What must stay true: only what no entry, pending
append, run or segment of a log names counts as unknown to that log; a source of a segment that the log has counts as
named, because its records are in the segment. That its catalogue knows a segment is not enough: a compactor may have
registered one over appends that came after the copy, and died.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from llog.errors import FormatError, ObjectNotFound
from llog.formats.backup import VacuumHold
from llog.formats.records.record_batch import verify_crcs, walk
from llog.formats.segment import SegmentExtension, SegmentFooter
from llog.formats.values import IndexEntry, SegmentRecord, decode_value
from llog.log.append.pieces import PlacedPiece
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.index import Entry, entry_of, index_entry_of
from llog.log.inspect.check_objects import read_footer
from llog.log.inspect.coherent import read_head, run_of
from llog.log.keys import Log
from llog.log.producers.idempotence import SEQUENCE_MODULUS, ProducerClaim
from llog.stores.objects.port import Buffer, ObjectStore


class FoundBlob(NamedTuple):
    blob_id: str
    name: str
    uri: str
    byte_length: int


class FoundSegment(NamedTuple):
    """A segment that describes itself."""

    segment_id: str
    name: str
    uri: str
    byte_length: int
    footer: SegmentFooter
    extension: SegmentExtension

    @property
    def start_offset(self) -> int:
        return self.extension.start_offset

    @property
    def end_offset(self) -> int:
        return self.extension.end_offset

    @property
    def record_count(self) -> int:
        return int(self.footer.entries["record_count"].sum(dtype="int64"))

    def is_dense(self) -> bool:
        """Holds every offset: no key compaction took any."""
        return self.record_count == self.end_offset - self.start_offset + 1

    def records_from(self, offset: int) -> int:
        return int(self.footer.entries["record_count"][self.footer.batches_from(offset) :].sum(dtype="int64"))


async def newer_blobs(context: LogContext, wal: ObjectStore, since_ms: int) -> AsyncIterator[FoundBlob]:
    """In order of their instants."""
    first = f"{context.keys.blobs()}{since_ms:012x}"
    async for found in wal.list(context.keys.blobs(), start_after=first):
        parsed = context.keys.parse_object(found.name)
        if parsed is not None and parsed.kind == "blob":
            yield FoundBlob(parsed.object_id, found.name, wal.uri(found.name), found.byte_length)


class LogSegments(NamedTuple):
    log: Log
    segments: tuple[FoundSegment, ...]
    unreadable: tuple[str, ...]


async def newer_segments(context: LogContext, store: ObjectStore, since_ms: int) -> AsyncIterator[LogSegments]:
    """Log after log; logs without any are left out."""
    log: Log | None = None
    names: list[str] = []
    async for found in store.list(f"{context.keys.root}/"):
        parsed = context.keys.parse_object(found.name)
        if parsed is None or parsed.kind != "segment_object" or created_at_ms_of(parsed.object_id) < since_ms:
            continue
        if parsed.log != log:
            if log is not None:
                yield await _described(store, log, names)
            log, names = parsed.log, []
        names.append(found.name)
    if log is not None:
        yield await _described(store, log, names)


async def _described(store: ObjectStore, log: Log, names: Sequence[str]) -> LogSegments:
    segments: list[FoundSegment] = []
    unreadable: list[str] = []
    for name in names:
        uri = store.uri(name)
        try:
            footer, byte_length = await read_footer(store, name, None, uri)
        except (FormatError, ObjectNotFound):
            unreadable.append(uri)
            continue
        extension = footer.extension
        if extension is None or (extension.topic, extension.partition) != log:
            unreadable.append(uri)
            continue
        segments.append(FoundSegment(name.rpartition("/")[2], name, uri, byte_length, footer, extension))
    return LogSegments(log, tuple(segments), tuple(unreadable))


class Named:
    """The byte ranges of newer objects that one log's metadata names."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        self._whole: set[str] = set()
        self.restored_counter: int | None = 0
        """Where the log ended when it was restored; None when it was compacted since so that nobody can tell."""

    def add_entry(self, value: IndexEntry) -> None:
        if value.byte_offset is None or value.byte_length is None or value.type == "COMPACTED":
            self._whole.add(value.data_key)
        else:
            end = value.byte_offset + value.byte_length
            self._ranges.setdefault(value.data_key, []).append((value.byte_offset, end))

    def add_whole(self, uri: str) -> None:
        self._whole.add(uri)

    def is_whole(self, uri: str) -> bool:
        return uri in self._whole

    def knows(self, uri: str) -> bool:
        """At least some of it."""
        return uri in self._whole or uri in self._ranges

    def holds(self, uri: str, byte_offset: int, byte_length: int) -> bool:
        if uri in self._whole:
            return True
        end = byte_offset + byte_length
        return any(first <= byte_offset and end <= last for first, last in self._ranges.get(uri, ()))


async def named_by(context: LogContext, log: Log, hold: VacuumHold) -> Named:
    """What the log names of objects newer than the backup; older ones are of no interest, and not kept."""
    named = Named()

    def is_new(uri: str) -> bool:
        object_id = uri.rpartition("/")[2]
        return is_object_id(object_id) and created_at_ms_of(object_id) >= hold.recover_since_ms

    head = await read_head(context, log)
    if head is None:
        return named
    control, end = head.control, _RestoredEnd(hold.held_at_ms)
    run = run_of(control, head.compaction)
    if run is not None:
        named.add_whole(run.data_key)
    async for record in context.metadata.scan_all(context.keys.index(log), strict=True):
        entry = entry_of(record)
        if entry.value.incarnation == control.incarnation and entry.end_offset < control.sequence_counter:
            end.pass_by(entry)
            if is_new(entry.value.data_key):
                named.add_entry(entry.value)
    if control.pending is not None:
        pending = Entry(control.pending.end_offset, index_entry_of(control.pending), 0)
        end.pass_by(pending)
        if is_new(pending.value.data_key):
            named.add_entry(pending.value)
    named.restored_counter = end.offset(control.sequence_counter)
    async for record in context.metadata.scan_all(context.keys.segments(log), strict=True):
        segment = decode_value(SegmentRecord, record.value, record.key.path)
        if segment.incarnation == control.incarnation and segment.end_offset < control.sequence_counter:
            adopted_over = segment.adopted_over or ()
            for source in filter(is_new, (*segment.sources, *adopted_over)):
                named.add_whole(source)
    return named


class _RestoredEnd:
    """Where a log ended when it was restored, told by its entries in their order: the first that was appended since
    begins there. What recovery appends is of the instant of the restore, what others append is later."""

    def __init__(self, restored_at_ms: int) -> None:
        self._restored_at_ms = restored_at_ms
        self._offset: int | None = None
        self._is_passed = False

    def pass_by(self, entry: Entry) -> None:
        if self._is_passed:
            return
        if entry.value.created_at_ms < self._restored_at_ms:
            self._offset = entry.end_offset + 1
        else:
            self._is_passed = True
            if entry.value.type == "COMPACTED":
                self._offset = None  # the end is inside
            elif self._offset is None:
                self._offset = entry.start_offset

    def offset(self, counter: int) -> int | None:
        return self._offset if self._is_passed else counter


def pieces_of(data: Buffer, encoding: str, byte_offset: int, msg_count: int, source: str) -> tuple[PlacedPiece, ...]:
    """A slice as it would be appended: each batch of an idempotent producer for itself, so that repeats are known.

    `byte_offset` is where `data` lies in its object. Checksums of the batches are compared.
    """
    if encoding != "kafka-v2":
        return (PlacedPiece(0, byte_offset, len(data), msg_count),)
    batches = walk(data, source)
    verify_crcs(data, batches, source)
    pieces: list[PlacedPiece] = []
    for row in range(len(batches)):
        count = int(batches.last_offset_delta[row]) + 1
        producer_id, sequence = int(batches.producer_id[row]), int(batches.base_sequence[row])
        claim = None
        if producer_id >= 0 and sequence >= 0:
            last_sequence = (sequence + count - 1) % SEQUENCE_MODULUS
            claim = ProducerClaim(producer_id, int(batches.producer_epoch[row]), sequence, last_sequence)
        pieces.append(
            PlacedPiece(
                row,
                byte_offset + int(batches.position[row]),
                int(batches.length[row]),
                count,
                claim,
                int(batches.max_timestamp[row]),
            )
        )
    return tuple(pieces)
