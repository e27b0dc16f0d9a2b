"""From bytes to records, whatever their encoding: one view for every front end.

Slices hold batches whose offsets were unknown when they were uploaded: they are patched here, from the entry. Segments
hold final offsets; they may be read piece by piece, without their footer, because batches tell their own length
(`BatchStitcher`). What must stay true: checksums, offsets and counts are compared with the entry before a record of
the batch is handed on; batches are decoded a few MiB at a time, so memory does not follow what they inflate to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from llog.errors import FormatError, InvalidField, TruncatedInput, UnsupportedFormat
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.crc import Buffer
from llog.formats.records.record_batch import (
    HEADER_BYTES,
    PREFIX_BYTES,
    BatchColumns,
    BatchRule,
    parse_header,
    patch_offsets,
    verify_crcs,
    walk,
)
from llog.formats.records.record_columns import BinaryColumn, RecordColumns, frozen, no_headers, null_column
from llog.formats.records.records import decode_in_chunks
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX
from llog.log.index import Entry
from llog.log.read.fetch import is_segment
from llog.log.read.records import RecordRun

Slice = tuple[Entry, Buffer]


def decode_slices(slices: Sequence[Slice], offset: int) -> Iterator[RecordRun]:
    """The records of entries that were fetched whole, from `offset` on; the last run ends where the last entry does."""
    for group in _groups(slices):
        # A compacted entry may begin below what was already handed out (I5), so `offset` moves along.
        behind = group[-1][0].end_offset + 1
        yield from runs_of(_decode_group(group), offset, behind)
        offset = max(offset, behind)


def runs_of(chunks: Iterable[RecordColumns], offset: int, next_offset: int) -> Iterator[RecordRun]:
    """Runs of the records from `offset` on. Offsets without a record, up to `next_offset`, are in a last, empty run."""
    reached = offset
    for columns in chunks:
        rest = _from(columns, offset)
        if len(rest):
            reached = int(rest.offsets[-1]) + 1
            yield RecordRun(rest, reached)
    if reached < next_offset:
        yield RecordRun(_nothing(), next_offset)


def _groups(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Neighbours that one pass can decode: fresh batches of one epoch. A log of many small appends has many."""
    group: list[Slice] = []
    for piece in slices:
        if group and not (_is_fresh(piece[0]) and _is_fresh(group[-1][0]) and _follows(piece[0], group[-1][0])):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _is_fresh(entry: Entry) -> bool:
    return entry.value.encoding == "kafka-v2" and not is_segment(entry)


def _follows(entry: Entry, before: Entry) -> bool:
    return entry.start_offset == before.end_offset + 1 and entry.value.epoch == before.value.epoch


def _decode_group(group: Sequence[Slice]) -> Iterator[RecordColumns]:
    entry, data = group[0]
    source = entry.value.data_key
    if is_segment(entry):
        reading = SegmentReading(entry)
        yield from reading.decode(data)
        reading.check_count(entry.value.record_count)
    elif entry.value.encoding == "kafka-v2":
        yield from _decode_fresh(group)
    elif entry.value.encoding == BYTES_BATCH:
        yield _decode_bytes(data, entry, source)
    else:
        raise UnsupportedFormat(source, f"encoding {entry.value.encoding!r}")


def _decode_fresh(group: Sequence[Slice]) -> Iterator[RecordColumns]:
    try:
        writable, batches = _patched(group)
    except FormatError:
        if len(group) == 1:
            raise
        for piece in group:  # one by one, so that the error names the object it is about
            yield from _decode_fresh([piece])
        return
    yield from decode_in_chunks(writable, batches, group[0][0].value.data_key)


def _patched(group: Sequence[Slice]) -> tuple[bytearray, BatchColumns]:
    """The batches with their offsets, checked. A copy: what a store returns may be shared."""
    first = group[0][0]
    source = first.value.data_key
    writable = bytearray().join([data for _, data in group])
    batches = walk(writable, source)
    verify_crcs(writable, batches, source)
    begins = np.zeros(len(group), np.int64)
    np.cumsum([len(data) for _, data in group[:-1]], out=begins[1:])
    rows = np.searchsorted(batches.position, begins)
    if len(batches) == 0 or int(rows[-1]) == len(batches) or bool(np.any(batches.position[rows] != begins)):
        raise InvalidField(source, "batches do not begin where their index entry says")
    counts = np.add.reduceat(batches.last_offset_delta + 1, rows)
    for (entry, _), count in zip(group, counts.tolist(), strict=True):
        if count != entry.value.msg_count:
            raise InvalidField(source, f"holds {count} offsets, its index entry says {entry.value.msg_count}")
    return writable, patch_offsets(writable, batches, first.start_offset, first.value.epoch)


def _decode_bytes(data: Buffer, entry: Entry, source: str) -> RecordColumns:
    batch = decode_bytes_batch(data, source)
    count = batch.record_count()
    if count != entry.value.msg_count:
        raise InvalidField(source, f"holds {count} records, its index entry says {entry.value.msg_count}")
    ends = np.zeros(count + 1, np.int32)
    ends[1:] = batch.ends
    return RecordColumns(
        offsets=frozen(np.arange(entry.start_offset, entry.end_offset + 1, dtype=np.int64)),
        # Nobody said when these records were made; this is when they were appended.
        timestamps_ms=frozen(np.full(count, entry.value.created_at_ms, np.int64)),
        timestamp_types=frozen(np.ones(count, np.int8)),
        keys=null_column(count),
        values=BinaryColumn(frozen(ends), frozen(np.frombuffer(batch.payloads, np.uint8))),
        headers=no_headers(count),
    )


class BatchStitcher:
    """Whole batches from pieces that were cut anywhere. Keeps no more than one batch that is not whole yet."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._cut = bytearray()

    def feed(self, piece: Buffer) -> list[Buffer]:
        """The batches that are whole now, as buffers of some each; only a batch that was cut is copied."""
        view = memoryview(piece).cast("B")
        ready: list[Buffer] = []
        while self._cut and len(view):
            taken = self._missing_bytes(len(view))
            self._cut += view[:taken]
            view = view[taken:]
            if len(self._cut) == self._cut_length():
                ready.append(self._cut)
                self._cut = bytearray()
        whole = _whole_bytes(view, self._source)
        if whole:
            ready.append(view[:whole])
        self._cut += view[whole:]
        return ready

    def finish(self) -> None:
        if self._cut:
            raise TruncatedInput(self._source, f"ends within a batch, {len(self._cut)} bytes behind its beginning")

    def _cut_length(self) -> int:
        """How long the cut batch is; -1 while not even that is known."""
        if len(self._cut) < PREFIX_BYTES:
            return -1
        return _batch_length(self._cut, 0)

    def _missing_bytes(self, available: int) -> int:
        length = self._cut_length()
        if length > RECORD_BATCH_BYTES_MAX or -1 < length < HEADER_BYTES:
            raise InvalidField(self._source, f"a batch of {length} bytes")
        return min(available, (PREFIX_BYTES if length < 0 else length) - len(self._cut))


def _batch_length(view: Buffer, position: int) -> int:
    return PREFIX_BYTES + int.from_bytes(view[position + 8 : position + PREFIX_BYTES], "big", signed=True)


def _whole_bytes(view: memoryview, source: str) -> int:
    """How many leading bytes are whole, sound batches; the rest must be the beginning of one more."""
    from llog.formats.records import batch_kernels

    limits = RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX
    _, stop = batch_kernels.count_batches(np.frombuffer(view.toreadonly(), np.uint8), False, *limits)
    if stop < 0:
        return len(view)
    rest = len(view) - stop
    if rest >= PREFIX_BYTES and not rest < _batch_length(view, stop) <= RECORD_BATCH_BYTES_MAX:
        parse_header(view, stop, source, rule=BatchRule.COMPACTED)  # says what is wrong with it
        raise InvalidField(source, f"batch at byte {stop}: not a RecordBatch")
    return int(stop)


class SegmentReading:
    """Decodes a segment's batches in order and compares them with its entry as it goes."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._source = entry.value.data_key
        self.record_count = 0
        self.next_offset = entry.start_offset
        """Behind the last batch seen."""

    def decode(self, data: Buffer) -> Iterator[RecordColumns]:
        """The records of whole batches that come next in the segment."""
        batches = walk(data, self._source, rule=BatchRule.COMPACTED)
        if len(batches) == 0:
            return
        verify_crcs(data, batches, self._source)
        nexts = np.concatenate(([self.next_offset], batches.last_offset + 1))
        if bool(np.any(batches.base_offset < nexts[:-1])) or int(nexts[-1]) > self._entry.end_offset + 1:
            reason = (
                f"batches overlap or leave {self._entry.start_offset} … {self._entry.end_offset}, as its entry says"
            )
            raise InvalidField(self._source, reason)
        self.next_offset = int(nexts[-1])
        self.record_count += int(batches.record_count.sum())
        yield from decode_in_chunks(data, batches, self._source, rule=BatchRule.COMPACTED)

    def check_count(self, expected: int | None) -> None:
        if expected is not None and self.record_count != expected:
            raise InvalidField(self._source, f"holds {self.record_count} records, {expected} are said to be there")


def _nothing() -> RecordColumns:
    empty = frozen(np.empty(0, np.int64))
    return RecordColumns(
        offsets=empty,
        timestamps_ms=empty,
        timestamp_types=frozen(np.empty(0, np.int8)),
        keys=null_column(0),
        values=null_column(0),
        headers=no_headers(0),
    )


def _from(columns: RecordColumns, offset: int) -> RecordColumns:
    """Without the rows below `offset`."""
    row = columns.row_of(offset)
    return columns if row == 0 else columns.from_row(row)
