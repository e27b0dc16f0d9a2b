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
from llog.formats.buffers import Buffer, crc32c
from llog.formats.records.compression import decompress
from llog.formats.records.record_batch import CODEC_MASK, CRC_START, HEADER, HEADER_BYTES, PREFIX_BYTES, BatchColumns
from llog.formats.records.record_columns import Bytes
from llog.limits import RECORD_BATCH_DECODED_BYTES_MAX

_NO_LIMIT: Final = 2**62


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


def sum_records(buffer: Buffer, batches: BatchColumns) -> RecordSum | None:
    """The records of a buffer of batches; None when a batch is compressed or not sound."""
    from llog.formats.records import decode_kernels as kernels

    result = np.empty(kernels.CUT_FIELDS, np.int64)
    reason = kernels.cut(_array(buffer), batches.fields, 0, len(batches), True, 0, _NO_LIMIT, _NO_LIMIT, False, result)
    if reason != kernels.ALL_TAKEN:
        return None
    return RecordSum(int(result[kernels.CUT_RECORDS]), int(result[kernels.CUT_RECORD_BYTES]))


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
) -> Cut:
    """The records from `from_offset` on: as many as have `record_bytes_max` bytes together, in batches of about
    `batch_bytes_max` bytes; with `at_least_one`, the first record in any case.

    Batches must have been walked and their checksums compared.
    """
    limits = record_bytes_max, batch_bytes_max, inflated_bytes_max
    return _Cutting(buffer, batches, from_offset, source, *limits, at_least_one=at_least_one).run()


class _Cutting:
    def __init__(
        self,
        buffer: Buffer,
        batches: BatchColumns,
        from_offset: int,
        source: str,
        record_bytes_max: int,
        batch_bytes_max: int,
        inflated_bytes_max: int,
        *,
        at_least_one: bool,
    ) -> None:
        from llog.formats.records import decode_kernels as kernels

        self._kernels, self._result = kernels, np.empty(kernels.CUT_FIELDS, np.int64)
        self._ends = {
            kernels.RECORD_TOO_MANY: CutEnd.LIMIT,
            kernels.BATCHES_TOO_LONG: CutEnd.TOO_LONG,
            kernels.AT_UNSOUND: CutEnd.UNSOUND,
        }
        self._view, self._data, self._batches = memoryview(buffer).cast("B"), _array(buffer), batches
        self._from_offset, self._source, self._at_least_one = from_offset, source, at_least_one
        self._record_bytes_left, self._batch_bytes_left = record_bytes_max, batch_bytes_max
        self._inflated_bytes_max = inflated_bytes_max
        self._pieces: list[Buffer] = []
        self._count = self._record_bytes = 0
        self._next_offset = from_offset

    def run(self) -> Cut:
        kernels, stop = self._kernels, len(self._batches)
        batch = int(np.searchsorted(self._batches.last_offset, self._from_offset))
        while batch < stop:
            reason = self._count_records(self._data, batch, stop, plain=True)
            self._take_plain(batch, reason)
            batch = int(self._result[kernels.CUT_LAST_BATCH])
            if reason == kernels.AT_COMPRESSED:
                try:
                    reason = self._take_compressed(batch)
                except FormatError:
                    reason = kernels.AT_UNSOUND
                batch += 1 if reason == kernels.ALL_TAKEN else 0
            if reason == kernels.AT_UNSOUND and not self._count:
                return self._unsound(batch)
            if reason != kernels.ALL_TAKEN:
                return self._cut(self._ends[reason])
        return self._cut(CutEnd.ALL)

    def _cut(self, end: CutEnd) -> Cut:
        pieces = self._pieces if self._count else []  # batches whose records were all removed are of no use
        return Cut(pieces, RecordSum(self._count, self._record_bytes), end, self._next_offset)

    def _unsound(self, batch: int) -> Cut:
        position, length = int(self._batches.position[batch]), int(self._batches.length[batch])
        next_offset = int(self._batches.last_offset[batch]) + 1
        return Cut([self._view[position : position + length]], RecordSum(0, 0), CutEnd.UNSOUND, next_offset)

    def _count_records(self, data: Bytes, first: int, stop: int, *, plain: bool) -> int:
        """Why the count stopped, with its result added to the sums."""
        kernels, result = self._kernels, self._result
        reason = kernels.cut(
            data,
            self._batches.fields,
            first,
            stop,
            plain,
            self._from_offset,
            self._record_bytes_left,
            self._batch_bytes_left,
            self._at_least_one and not self._count,
            result,
        )
        records, record_bytes = int(result[kernels.CUT_RECORDS]), int(result[kernels.CUT_RECORD_BYTES])
        self._count += records
        self._record_bytes += record_bytes
        self._record_bytes_left -= record_bytes
        if records:
            self._next_offset = int(result[kernels.CUT_LAST_OFFSET]) + 1
        return int(reason)

    def _take_plain(self, first: int, reason: int) -> None:
        """The counted records: what is taken of the first batch, whole batches, what is taken of the last one."""
        kernels, result, batches = self._kernels, self._result, self._batches
        last, begin = int(result[kernels.CUT_LAST_BATCH]), int(result[kernels.CUT_FIRST_BEGIN])
        whole = first
        if last > first and result[kernels.CUT_FIRST_SKIPPED]:
            whole, end = first + 1, int(batches.position[first] + batches.length[first])
            if records := int(result[kernels.CUT_FIRST_RECORDS]):
                self._add(self._divided(self._data, first, begin, end, records, None))
        if last > whole:
            end = int(batches.position[last - 1] + batches.length[last - 1])
            self._add(self._view[int(batches.position[whole]) : end])
        if reason in (kernels.RECORD_TOO_MANY, kernels.BATCHES_TOO_LONG):
            self._take_last(self._data, last, begin if last == first else None)

    def _take_last(self, data: Bytes, batch: int, begin: int | None) -> None:
        kernels, result = self._kernels, self._result
        if records := int(result[kernels.CUT_LAST_RECORDS]):
            if begin is None:
                begin = int(self._batches.position[batch]) + HEADER_BYTES
            end, delta = int(result[kernels.CUT_LAST_END]), int(result[kernels.CUT_LAST_DELTA])
            self._add(self._divided(data, batch, begin, end, records, delta))

    def _take_compressed(self, batch: int) -> int:
        kernels, batches = self._kernels, self._batches
        position, length = int(batches.position[batch]), int(batches.length[batch])
        packed, codec = self._view[position + HEADER_BYTES : position + length], batches.header(batch).codec
        data = _array(decompress(codec, packed, self._source, bytes_max=self._inflated_bytes_max))
        reason = self._count_records(data, batch, batch + 1, plain=False)
        begin = int(self._result[kernels.CUT_FIRST_BEGIN])
        if reason == kernels.ALL_TAKEN:
            if records := int(self._result[kernels.CUT_FIRST_RECORDS]):
                self._add(self._divided(data, batch, begin, len(data), records, None))
        elif reason != kernels.AT_UNSOUND:
            self._take_last(data, batch, begin)
        return reason

    def _add(self, piece: Buffer) -> None:
        self._pieces.append(piece)
        self._batch_bytes_left -= len(piece)

    def _divided(
        self, data: Bytes, batch: int, begin: int, end: int, records: int, last_delta: int | None
    ) -> bytearray:
        """A batch with the records at `begin` … `end` of `data`; `last_delta` is None if they reach its end."""
        header = self._batches.header(batch)
        divided = bytearray(HEADER_BYTES + end - begin)
        fields = header._replace(
            batch_length=len(divided) - PREFIX_BYTES,
            crc=0,
            attributes=header.attributes & ~CODEC_MASK,
            last_offset_delta=header.last_offset_delta if last_delta is None else last_delta,
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
    return np.frombuffer(memoryview(buffer).cast("B").toreadonly(), np.uint8)
