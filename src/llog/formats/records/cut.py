"""Batches cut to a limit of record bytes: as many records as fit, from an offset on.

The bytes of a record are those of its key, its value, and the names and values of its headers: what a client gets, not
what a batch adds or a codec saves. Whole batches stay where they are. Only the first and the last batch may be divided;
the records that are taken of them are copied into a batch of their own, with the same offsets and a sound checksum. A
compressed batch is decompressed, because only then its records can be counted.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from llog.errors import FormatError
from llog.formats.buffers import Buffer, crc32c, total_length
from llog.formats.records.compression import decompress
from llog.formats.records.record_batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    PREFIX_BYTES,
    BatchColumns,
    BatchHeader,
)
from llog.formats.records.record_columns import Bytes, Longs
from llog.limits import RECORD_BATCH_DECODED_BYTES_MAX

_NO_LIMIT: Final = 2**62
_NO_SIZES: Final = np.empty(0, np.int64)


class RecordSum(NamedTuple):
    record_count: int
    byte_length: int


class CutEnd(Enum):
    ALL = "all"
    """No record is left out."""
    LIMIT = "limit"
    """The next record does not fit into `record_bytes_max`."""
    TOO_LONG = "too long"
    """The next record does not fit into `batch_bytes_max`."""
    UNSOUND = "unsound"
    """The next batch is not sound. If no record precedes it, it is returned alone, and decoding it raises the error."""


class Cut(NamedTuple):
    batches: list[Buffer]
    """Whole batches, with exactly the records that fit."""
    records: RecordSum
    end: CutEnd
    next_offset: int = -1
    """Behind the last record that fits; without a meaning for `CutEnd.ALL`."""


class Counted(NamedTuple):
    """What the kernel returns: whole batches between a first and a last one that may be divided, by their bytes."""

    records: int
    record_bytes: int
    next_offset: int
    """Behind the last record that was counted, and behind its batch if that has no more."""
    first_batch: int
    first_begin: int
    first_end: int
    first_records: int
    """0 if the first batch is not divided."""
    whole_begin: int
    whole_end: int
    last_batch: int
    """Where the count stopped."""
    last_begin: int
    last_end: int
    last_records: int
    """0 if the last batch is not divided."""
    last_delta: int
    """Offset delta of the last record."""


class BatchSums(NamedTuple):
    """The records of a buffer of batches."""

    records: RecordSum
    sizes: Longs
    """Bytes of the records of each batch."""


def sum_records(buffer: Buffer, batches: BatchColumns) -> BatchSums | None:
    """None when a batch is compressed or not sound."""
    from llog.formats.records import decode_kernels as kernels

    sizes = np.empty(len(batches), np.int64)
    if kernels.sum_batches(_array(buffer), batches.fields, sizes) != kernels.ALL_TAKEN:
        return None
    counts = batches.record_count
    control = batches.attributes & CONTROL
    count = int(counts.sum() if not control.any() else counts[control == 0].sum())
    return BatchSums(RecordSum(count, int(sizes.sum())), sizes)


def cut(
    buffer: Buffer,
    batches: BatchColumns,
    from_offset: int,
    source: str,
    *,
    record_bytes_max: int,
    batch_bytes_max: int = _NO_LIMIT,
    at_least_one: bool = False,
    inflated_bytes_max: int = RECORD_BATCH_DECODED_BYTES_MAX,
    sums: BatchSums | None = None,
) -> Cut:
    """The records from `from_offset` on: as many as have `record_bytes_max` bytes together, in batches of about
    `batch_bytes_max` bytes; with `at_least_one`, the first record in any case.

    Batches must have been walked and their checksums compared. With the `sums` of the buffer only batches that are
    divided are looked at.
    """
    from llog.formats.records import decode_kernels as kernels

    sizes = _NO_SIZES if sums is None else sums.sizes
    cutting = _Cutting(batches, sizes, from_offset, record_bytes_max, batch_bytes_max, at_least_one)
    data, view, batch, stop = _array(buffer), memoryview(buffer), 0, len(batches)
    while batch < stop:
        reason = cutting.take(data, view, batch, stop)
        batch = cutting.stopped_at
        if reason == kernels.AT_COMPRESSED:
            begin, end = int(batches.position[batch]), int(batches.position[batch] + batches.length[batch])
            packed, codec = view[begin + HEADER_BYTES : end], batches.header(batch).codec
            try:
                inflated = decompress(codec, packed, source, bytes_max=inflated_bytes_max)
            except FormatError:
                reason = kernels.AT_UNSOUND
            else:
                reason = cutting.take(_array(inflated), None, batch, batch + 1)
                batch += 1
        if reason == kernels.AT_UNSOUND:
            return cutting.cut(CutEnd.UNSOUND) if cutting.records else _unsound(view, batches, cutting.stopped_at)
        if reason != kernels.ALL_TAKEN:
            return cutting.cut(CutEnd.LIMIT if reason == kernels.RECORD_TOO_MANY else CutEnd.TOO_LONG)
    return cutting.cut(CutEnd.ALL)


class _Cutting:
    """A cut that is being made."""

    def __init__(
        self,
        batches: BatchColumns,
        sizes: Longs,
        from_offset: int,
        record_bytes_max: int,
        batch_bytes_max: int,
        at_least_one: bool,
    ) -> None:
        self._batches, self._sizes, self._from_offset, self._at_least_one = batches, sizes, from_offset, at_least_one
        self._record_bytes_max, self._batch_bytes_left = record_bytes_max, batch_bytes_max
        self._pieces: list[Buffer] = []
        self.records = self._record_bytes = self.stopped_at = 0
        self._next_offset = from_offset

    def take(self, data: Bytes, view: memoryview | None, first: int, stop: int) -> int:
        """Take what fits of the batches from `first` on; returns why the kernel stopped. Without `view`, `data` is the
        decompressed records of one batch."""
        from llog.formats.records import decode_kernels as kernels

        result = np.empty(kernels.CUT_FIELDS, np.int64)
        reason = kernels.cut(
            data,
            self._batches.fields,
            self._sizes,
            first,
            stop,
            view is not None,
            self._from_offset,
            self._record_bytes_max - self._record_bytes,
            self._batch_bytes_left,
            self._at_least_one and not self.records,
            result,
        )
        counted = Counted._make(result.tolist())
        self.stopped_at = counted.last_batch
        if counted.records:
            self.records += counted.records
            self._record_bytes += counted.record_bytes
            self._next_offset = counted.next_offset
            self._add(data, view, counted)
        return int(reason)

    def _add(self, data: Bytes, view: memoryview | None, counted: Counted) -> None:
        pieces: list[Buffer] = []
        if counted.first_records:
            first = counted.first_begin, counted.first_end
            pieces.append(_divided(self._batches.header(counted.first_batch), data, *first, counted.first_records))
        if view is not None and counted.whole_end > counted.whole_begin:
            pieces.append(view[counted.whole_begin : counted.whole_end])
        if counted.last_records:
            last, header = (counted.last_begin, counted.last_end), self._batches.header(counted.last_batch)
            header = header._replace(last_offset_delta=counted.last_delta)
            pieces.append(_divided(header, data, *last, counted.last_records))
        self._pieces += pieces
        self._batch_bytes_left -= total_length(pieces)

    def cut(self, end: CutEnd) -> Cut:
        return Cut(self._pieces, RecordSum(self.records, self._record_bytes), end, self._next_offset)


def _unsound(view: memoryview, batches: BatchColumns, batch: int) -> Cut:
    begin, end = int(batches.position[batch]), int(batches.position[batch] + batches.length[batch])
    return Cut([view[begin:end]], RecordSum(0, 0), CutEnd.UNSOUND, int(batches.last_offset[batch]) + 1)


def _divided(header: BatchHeader, data: Bytes, begin: int, end: int, records: int) -> bytearray:
    """A batch with the records at `begin` … `end` of `data`, otherwise like the one with this header."""
    divided = bytearray(HEADER_BYTES + end - begin)
    fields = header._replace(
        batch_length=len(divided) - PREFIX_BYTES,
        crc=0,
        attributes=header.attributes & ~CODEC_MASK,
        record_count=records,
    )
    HEADER.pack_into(divided, 0, *fields)
    divided[HEADER_BYTES:] = data[begin:end].data
    with memoryview(divided) as view, view[CRC_START:] as checked:
        checksum = crc32c(checked)
    HEADER.pack_into(divided, 0, *fields._replace(crc=checksum))
    return divided


def _array(buffer: Buffer) -> Bytes:
    """Read-only, or the kernel would be compiled twice."""
    return np.frombuffer(memoryview(buffer).toreadonly(), np.uint8)
