"""Bytes of index entries: check them against the entry, give batches their offsets, decode records.

Readers, compaction, key compaction and inspection all check bytes here, before any record of them is used: byte
lengths, offset counts, record counts, checksums, the order of offsets. Bytes that do not match raise `FormatError`.

Slices of blobs hold batches without offsets, because offsets are assigned after the upload; the entry gives them.
Segments hold final offsets. Batches are decoded a few MiB at a time, so memory does not grow with what they inflate to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.errors import FormatError, InvalidField, UnsupportedFormat
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.decode import decode_in_chunks
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import (
    BatchColumns,
    BatchRule,
    TimestampType,
    patch_offsets,
    set_leader_epoch,
    verify_crcs,
    walk,
)
from llog.formats.records.record_columns import BinaryColumn, RecordColumns, frozen, no_headers, null_column
from llog.log.index import Entry
from llog.log.read.fetch import EntrySlice, is_fresh, is_segment
from llog.log.read.records import RecordRun

# -- checks ------------------------------------------------------------------------------------------------------------


class CheckedSlices(NamedTuple):
    batches: BatchColumns
    rows: list[int]
    """The row of each slice's first batch, and the number of batches behind them."""


def check_slices(
    data: Buffer, byte_lengths: Sequence[int], offset_counts: Sequence[int], source: str, *, verify: bool = True
) -> CheckedSlices:
    """Walk slices that lie back to back in `data` and compare each with the offset count of its index entry.

    `verify=False` skips the checksums: for bytes that never left this process.
    """
    batches = walk(data, source)
    if verify:
        verify_crcs(data, batches, source)
    begins = np.zeros(len(byte_lengths), np.int64)
    np.cumsum(byte_lengths[:-1], out=begins[1:])
    rows = np.searchsorted(batches.position, begins)
    if len(batches) == 0 or int(rows[-1]) == len(batches) or bool(np.any(batches.position[rows] != begins)):
        raise InvalidField(source, "batches do not begin where their index entry says")
    counts = np.add.reduceat(batches.last_offset_delta + 1, rows).tolist()
    for count, expected in zip(counts, offset_counts, strict=True):
        if count != expected:
            raise InvalidField(source, f"holds {count} offsets, its index entry says {expected}")
    return CheckedSlices(batches, [*rows.tolist(), len(batches)])


def patch_slices(
    data: bytearray,
    byte_lengths: Sequence[int],
    offset_counts: Sequence[int],
    start_offset: int,
    epoch: int,
    source: str,
    *,
    verify: bool = True,
) -> BatchColumns:
    """`check_slices`, then write the offsets from `start_offset` on and the epoch into the batches, in place."""
    checked = check_slices(data, byte_lengths, offset_counts, source, verify=verify)
    return patch_offsets(data, checked.batches, start_offset, epoch)


class SegmentCheck:
    """Compares the batches of a segment, in order, with the offsets and the record count of its index entry."""

    def __init__(self, source: str, start_offset: int, end_offset: int) -> None:
        self._source, self._start_offset, self._end_offset = source, start_offset, end_offset
        self.record_count = 0
        self.next_offset = start_offset
        """The offset behind the last batch."""

    def batches(self, data: Buffer) -> BatchColumns:
        """The whole batches that come next in the segment."""
        batches = walk(data, self._source, rule=BatchRule.COMPACTED)
        if len(batches) == 0:
            return batches
        verify_crcs(data, batches, self._source)
        nexts = np.concatenate(([self.next_offset], batches.last_offset + 1))
        if bool(np.any(batches.base_offset < nexts[:-1])) or int(nexts[-1]) > self._end_offset + 1:
            bounds = f"{self._start_offset} … {self._end_offset}"
            raise InvalidField(self._source, f"batches overlap or leave the offsets {bounds} of its index entry")
        self.next_offset = int(nexts[-1])
        self.record_count += int(batches.record_count.sum())
        return batches

    def decode(self, data: Buffer) -> Iterator[RecordColumns]:
        """The records of the whole batches that come next in the segment."""
        yield from decode_in_chunks(data, self.batches(data), self._source, rule=BatchRule.COMPACTED)

    def check_count(self, expected: int | None) -> None:
        if expected is not None and self.record_count != expected:
            raise InvalidField(self._source, f"holds {self.record_count} records, {expected} are expected")


# -- bare payloads (`bytes-batch-v1`) ----------------------------------------------------------------------------------


def payload_columns(data: Buffer, msg_count: int, start_offset: int, created_at_ms: int, source: str) -> RecordColumns:
    """Bare payloads as records. They have no timestamp of their own; theirs is the creation time of their blob."""
    payloads = decode_bytes_batch(data, source)
    count = payloads.record_count()
    if count != msg_count:
        raise InvalidField(source, f"holds {count} records, its index entry says {msg_count}")
    ends = np.zeros(count + 1, np.int32)
    ends[1:] = payloads.ends
    return RecordColumns(
        offsets=frozen(np.arange(start_offset, start_offset + count, dtype=np.int64)),
        timestamps_ms=frozen(np.full(count, created_at_ms, np.int64)),
        timestamp_types=frozen(np.ones(count, np.int8)),
        keys=null_column(count),
        values=BinaryColumn(frozen(ends), frozen(np.frombuffer(payloads.payloads, np.uint8))),
        headers=no_headers(count),
    )


def encode_payloads(
    data: Buffer, msg_count: int, start_offset: int, epoch: int, created_at_ms: int, source: str
) -> Buffer:
    """Bare payloads as one RecordBatch with its final offsets."""
    columns = payload_columns(data, msg_count, start_offset, created_at_ms, source)
    log_time = TimestampType.LOG_APPEND_TIME
    return encode_columns(columns, base_offset=start_offset, partition_leader_epoch=epoch, timestamp_type=log_time)


# -- batches with their offsets ----------------------------------------------------------------------------------------

LEADER_EPOCH: Final = 0
"""The leader epoch of batches that leave the log, always the same: partitions have no leader. (The epoch of a log
counts fences. Kafka's clients would take it for a leader epoch and refuse metadata that shows a lower one.)"""


class Chunk(NamedTuple):
    """Whole, checked batches of one log with their final offsets.

    Records with the offsets `start_offset` … `end_offset` are in it, or key compaction removed them.
    """

    start_offset: int
    end_offset: int
    data: Buffer
    batches: BatchColumns


def chunks_of(slices: Sequence[EntrySlice], buffers: Sequence[Buffer]) -> list[Chunk]:
    """The batches of slices of one log. Adjacent slices of blobs become one chunk: a log of small appends has many."""
    rows = _rows([one.entry for one in slices])
    return [_chunk(slices[first:stop], buffers[first:stop]) for first, stop in rows]


def _chunk(row: Sequence[EntrySlice], buffers: Sequence[Buffer]) -> Chunk:
    entry, _, _, start_offset, end_offset, record_count = row[0]
    value, source, data = entry.value, entry.value.data_key, buffers[0]
    if is_segment(entry):
        check = SegmentCheck(source, entry.start_offset, end_offset)
        batches = check.batches(data)
        check.check_count(record_count)
        return Chunk(start_offset, end_offset, *_with_leader_epoch(data, batches))
    if is_fresh(entry):
        writable, batches = _patched([one.entry for one in row], buffers)
        return Chunk(start_offset, row[-1].end_offset, memoryview(writable).toreadonly(), batches)
    if value.encoding == BYTES_BATCH:
        return payload_chunk(data, value.msg_count, start_offset, value.created_at_ms, source)
    raise UnsupportedFormat(source, f"encoding {value.encoding!r}")


def _with_leader_epoch(data: Buffer, batches: BatchColumns) -> tuple[memoryview, BatchColumns]:
    """The batches of a segment with LEADER_EPOCH. Only where a fence changed the log's epoch, in a copy."""
    if not bool(np.any(batches.partition_leader_epoch != LEADER_EPOCH)):
        return memoryview(data).toreadonly(), batches
    writable = bytearray(data)
    return memoryview(writable).toreadonly(), set_leader_epoch(writable, batches, LEADER_EPOCH)


def payload_chunk(data: Buffer, msg_count: int, start_offset: int, created_at_ms: int, source: str) -> Chunk:
    """Bare payloads as one RecordBatch."""
    batch = encode_payloads(data, msg_count, start_offset, LEADER_EPOCH, created_at_ms, source)
    return Chunk(start_offset, start_offset + msg_count - 1, batch, walk(batch, source, rule=BatchRule.COMPACTED))


def _patched(entries: Sequence[Entry], buffers: Sequence[Buffer]) -> tuple[bytearray, BatchColumns]:
    """The batches of adjacent slices with their offsets, in a copy: a store may share the bytes it returns."""
    first, data = entries[0], bytearray().join(buffers)
    lengths, counts = [len(buffer) for buffer in buffers], [entry.value.msg_count for entry in entries]
    return data, patch_slices(data, lengths, counts, first.start_offset, LEADER_EPOCH, first.value.data_key)


def _rows(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """First and stop position of entries that are checked in one pass: adjacent slices of blobs."""
    first = 0
    for stop in range(1, len(entries) + 1):
        if stop == len(entries) or not _follows(entries[stop], entries[stop - 1]):
            yield first, stop
            first = stop


def _follows(entry: Entry, before: Entry) -> bool:
    return entry.start_offset == before.end_offset + 1 and is_fresh(entry) and is_fresh(before)


# -- records -----------------------------------------------------------------------------------------------------------

EntryBytes = tuple[Entry, Buffer]
"""An entry and its bytes, fetched whole."""


def decode_slices(slices: Sequence[EntryBytes], offset: int) -> Iterator[RecordRun]:
    """The records of these entries from `offset` on; the last run ends where the last entry does."""
    for first, stop in _rows([entry for entry, _ in slices]):
        row = slices[first:stop]
        # A compacted entry may begin below the offsets already returned (I5), so `offset` advances with each row.
        next_offset = row[-1][0].end_offset + 1
        yield from runs_of(_decode_row(row), offset, next_offset)
        offset = max(offset, next_offset)


def runs_of(chunks: Iterable[RecordColumns], offset: int, next_offset: int) -> Iterator[RecordRun]:
    """Runs of the records from `offset` on. An empty last run covers offsets without a record up to `next_offset`."""
    reached = offset
    for columns in chunks:
        row = columns.row_of(offset)
        rest = columns if row == 0 else columns.from_row(row)
        if len(rest):
            reached = int(rest.offsets[-1]) + 1
            yield RecordRun(rest, reached)
    if reached < next_offset:
        yield RecordRun(_no_records(), next_offset)


def _decode_row(row: Sequence[EntryBytes]) -> Iterator[RecordColumns]:
    entry, data = row[0]
    value, source = entry.value, entry.value.data_key
    if is_segment(entry):
        check = SegmentCheck(source, entry.start_offset, entry.end_offset)
        yield from check.decode(data)
        check.check_count(value.record_count)
    elif is_fresh(entry):
        yield from _decode_fresh(row)
    elif value.encoding == BYTES_BATCH:
        yield payload_columns(data, value.msg_count, entry.start_offset, value.created_at_ms, source)
    else:
        raise UnsupportedFormat(source, f"encoding {value.encoding!r}")


def _decode_fresh(row: Sequence[EntryBytes]) -> Iterator[RecordColumns]:
    try:
        writable, batches = _patched([entry for entry, _ in row], [data for _, data in row])
    except FormatError:
        if len(row) == 1:
            raise
        for item in row:  # one by one, so that the error names the right object
            yield from _decode_fresh([item])
        return
    yield from decode_in_chunks(writable, batches, row[0][0].value.data_key)


def _no_records() -> RecordColumns:
    empty = frozen(np.empty(0, np.int64))
    return RecordColumns(
        offsets=empty,
        timestamps_ms=empty,
        timestamp_types=frozen(np.empty(0, np.int8)),
        keys=null_column(0),
        values=null_column(0),
        headers=no_headers(0),
    )
