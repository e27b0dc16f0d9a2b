"""Find blobs and segments newer than a restored backup, and which of their records a log already has.

Object names begin with their time, so "newer" shows in the name. An object is unknown to a log unless an entry, the
pending append, the run in flight or a segment of the log references it. The sources of a segment that the log has count
as referenced, because their records are in the segment. A catalogue record alone is not enough: a compactor may have
registered a segment over later appends and died.

A merged segment names its source segments, and those name the blobs. When the source segments are gone, a blob that
other logs still need looks unknown to this log, and its records would be appended twice. Rewriting changes only the
offsets of a batch, which its checksum does not cover, so `KnownBatches` recognises the same batch again. Each copy
counts once. Batches that key compaction rewrote or dropped cannot be recognised: blobs older than such a segment are
left and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from llog.concurrency import gather_bounded
from llog.errors import FormatError, ObjectNotFound
from llog.formats.backup import VacuumHold
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import BatchRule, TimestampType, verify_crcs, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.formats.segment import SegmentExtension, SegmentFooter
from llog.formats.values import IndexEntry, SegmentRecord, decode_value
from llog.limits import LOG_CHECK_READ_BYTES
from llog.log.append.pieces import PlacedPiece
from llog.log.context import LogContext
from llog.log.control import index_entry_of
from llog.log.ids import created_at_ms_of, is_object_id
from llog.log.index import Entry, entry_of
from llog.log.inspect.check_objects import read_footer
from llog.log.inspect.coherent import read_guards, run_of
from llog.log.keys import Log
from llog.log.producers import SEQUENCE_MODULUS, ProducerClaim
from llog.stores.objects.port import ObjectStore

# Logs whose segments are described at the same time, one footer each.
RECOVER_LOGS_AT_ONCE: Final = 64

DOUBTFUL: Final = "key compaction removed the segments made from it, so its records cannot be recognised"

BatchPrint = tuple[int, int, int]
"""What identifies a batch: checksum, length in bytes, last offset delta."""


# -- objects ---------------------------------------------------------------------------------------------------------


class FoundBlob(NamedTuple):
    blob_id: str
    name: str
    uri: str
    byte_length: int


class FoundSegment(NamedTuple):
    """A segment with the footer and extension that describe it."""

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
        """It has a record for every offset: key compaction removed none."""
        return self.record_count == self.end_offset - self.start_offset + 1

    def records_from(self, offset: int) -> int:
        return int(self.footer.entries["record_count"][self.footer.batches_from(offset) :].sum(dtype="int64"))


async def newer_blobs(context: LogContext, wal: ObjectStore, since_ms: int) -> AsyncIterator[FoundBlob]:
    """Blobs created since, in order of time."""
    first = f"{context.keys.blobs()}{since_ms:012x}"
    async for found in wal.list(context.keys.blobs(), start_after=first):
        parsed = context.keys.parse_object(found.name)
        if parsed is not None and parsed.kind == "blob":
            yield FoundBlob(parsed.object_id, found.name, wal.uri(found.name), found.byte_length)


class LogSegments(NamedTuple):
    log: Log
    segments: tuple[FoundSegment, ...]
    unreadable: tuple[str, ...]


async def newer_segments(
    context: LogContext, store: ObjectStore, since_ms: int
) -> AsyncIterator[Sequence[LogSegments]]:
    """Segments created since, log by log, some logs at a time; logs without any are omitted."""
    names: dict[Log, list[str]] = {}

    async def described() -> list[LogSegments]:
        found = list(names.items())
        names.clear()
        return await gather_bounded(found, lambda one: _described(store, *one), limit=RECOVER_LOGS_AT_ONCE)

    async for found in store.list(f"{context.keys.root}/"):
        parsed = context.keys.parse_object(found.name)
        if parsed is None or parsed.log is None or parsed.kind != "segment_object":
            continue
        if created_at_ms_of(parsed.object_id) < since_ms:
            continue
        if parsed.log not in names and len(names) == RECOVER_LOGS_AT_ONCE:
            yield await described()
        names.setdefault(parsed.log, []).append(found.name)
    if names:
        yield await described()


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


# -- what a log references -------------------------------------------------------------------------------------------


class ReferencedRanges:
    """The byte ranges of newer objects that the metadata of one log references."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        self._whole: set[str] = set()
        self.restored_counter: int | None = 0
        """Where the log ended when it was restored; None when later compaction hides it."""

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
        """The log references at least a part of the object."""
        return uri in self._whole or uri in self._ranges

    def holds(self, uri: str, byte_offset: int, byte_length: int) -> bool:
        if uri in self._whole:
            return True
        end = byte_offset + byte_length
        return any(first <= byte_offset and end <= last for first, last in self._ranges.get(uri, ()))


async def read_ranges(context: LogContext, log: Log, hold: VacuumHold) -> ReferencedRanges:
    """What the log references of objects newer than the backup. Older objects are not kept."""
    ranges = ReferencedRanges()

    def is_new(uri: str) -> bool:
        object_id = uri.rpartition("/")[2]
        return is_object_id(object_id) and created_at_ms_of(object_id) >= hold.recover_since_ms

    head = await read_guards(context, log)
    if head is None:
        return ranges
    control, end = head.control, _RestoredEnd(hold.held_at_ms)
    run = run_of(control, head.compaction)
    if run is not None:
        ranges.add_whole(run.data_key)
    async for record in context.metadata.scan_all(context.keys.index(log), strict=True):
        entry = entry_of(record)
        if entry.value.incarnation == control.incarnation and entry.end_offset < control.sequence_counter:
            end.pass_by(entry)
            if is_new(entry.value.data_key):
                ranges.add_entry(entry.value)
    if control.pending is not None:
        pending = Entry(control.pending.end_offset, index_entry_of(control.pending), 0)
        end.pass_by(pending)
        if is_new(pending.value.data_key):
            ranges.add_entry(pending.value)
    ranges.restored_counter = end.offset(control.sequence_counter)
    async for record in context.metadata.scan_all(context.keys.segments(log), strict=True):
        segment = decode_value(SegmentRecord, record.value, record.key.path)
        if segment.incarnation == control.incarnation and segment.end_offset < control.sequence_counter:
            adopted_over = segment.adopted_over or ()
            for source in filter(is_new, (*segment.sources, *adopted_over)):
                ranges.add_whole(source)
    return ranges


class _RestoredEnd:
    """Finds where a log ended when it was restored: at the first entry that was appended since. Entries that recovery
    appends carry the time of the restore, all others a later one."""

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
                self._offset = None  # the end is inside this segment
            elif self._offset is None:
                self._offset = entry.start_offset

    def offset(self, counter: int) -> int | None:
        return self._offset if self._is_passed else counter


# -- batches ---------------------------------------------------------------------------------------------------------


class KnownBatches:
    """The batches that the segments of one log hold."""

    def __init__(self) -> None:
        self._counts: Counter[BatchPrint] = Counter()
        self.doubtful_before_ms = 0
        """Blobs older than this may be in a segment whose batches cannot be recognised."""

    async def add(self, store: ObjectStore, segment: FoundSegment) -> None:
        if not segment.is_dense():
            self.doubtful_before_ms = max(self.doubtful_before_ms, segment.extension.created_at_ms)
        for first, byte_length in reads_of(segment, 0):
            data = await store.get_range(segment.name, first, byte_length)
            self._counts.update(_prints_of(data, segment.uri, BatchRule.COMPACTED))

    def is_empty(self) -> bool:
        return not self._counts and not self.doubtful_before_ms

    def take(self, body: Buffer, encoding: str, created_at_ms: int, source: str) -> bool:
        """True, and counted as used, when the log already has all batches of this piece."""
        if encoding == "kafka-v2":
            prints = _prints_of(body, source, BatchRule.PRODUCED)
        else:
            # Encode the payloads as compaction does.
            columns = columns_from_rows(decode_bytes_batch(body, source).to_list(), timestamps_ms=created_at_ms)
            encoded = encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME)
            prints = _prints_of(encoded, source, BatchRule.PRODUCED)
        wanted = Counter(prints)
        if not wanted <= self._counts:
            return False
        self._counts -= wanted
        return True


def reads_of(segment: FoundSegment, first: int) -> Iterable[tuple[int, int]]:
    """Byte ranges of whole batches, each small enough to hold in memory, from batch `first` on."""
    entries, stop = segment.footer.entries, len(segment.footer.entries)
    ends = entries["byte_position"].astype("int64") + entries["batch_length"]
    while first < stop:
        begin, last = int(entries["byte_position"][first]), first + 1
        while last < stop and int(ends[last]) - begin <= LOG_CHECK_READ_BYTES:
            last += 1
        yield begin, int(ends[last - 1]) - begin
        first = last


def is_opaque(context: LogContext, segment: FoundSegment, existing: Sequence[FoundSegment], since_ms: int) -> bool:
    """The segment was made from a segment that is gone, and the blobs of that one may still exist."""
    uris = {one.uri for one in existing}
    return any(_is_segment(context, uri, since_ms) for uri in segment.extension.sources if uri not in uris)


def _is_segment(context: LogContext, uri: str, since_ms: int) -> bool:
    object_id = uri.rpartition("/")[2]
    if not is_object_id(object_id) or created_at_ms_of(object_id) < since_ms:
        return False  # its blobs are older, too
    return f"/{context.keys.blobs()}" not in uri


def _prints_of(data: Buffer, source: str, rule: BatchRule) -> list[BatchPrint]:
    batches = walk(data, source, rule=rule)
    counts = batches.last_offset_delta.tolist()
    return list(zip(batches.crc.tolist(), batches.length.tolist(), counts, strict=True))


def pieces_of(data: Buffer, encoding: str, byte_offset: int, msg_count: int, source: str) -> tuple[PlacedPiece, ...]:
    """The pieces of a slice: one per batch, so that repeats of an idempotent producer are recognised.

    `byte_offset` is the position of `data` in its object. Checksums of the batches are verified.
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
