"""Batches to record columns.

The input is untrusted. Checksums are compared first (unless the caller has done so); then one pass checks everything
and a second one allocates and copies. Memory: all compressed batches of a call decompress to at most
`inflated_bytes_max`; columns take the size of keys, values and headers plus 30 bytes per record (at least 7 in the
batch) and 9 per header (at least 2). A column holds at most 2 GiB (32-bit offsets); a larger one is refused as
`DecodedTooLarge` and must be read with `decode_in_chunks`.

A buffer must not change while it is decoded, because the second pass does not check again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from llog.errors import DecodedTooLarge, FormatError, InvalidArgument, InvalidField, TruncatedInput
from llog.formats.buffers import Buffer
from llog.formats.records.compression import decompress
from llog.formats.records.record_batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    BatchColumns,
    BatchRule,
    verify_crcs,
    walk,
)
from llog.formats.records.record_columns import (
    BINARY_COLUMN_BYTES_MAX,
    BinaryColumn,
    Bytes,
    HeaderColumn,
    Ints,
    Longs,
    RecordColumns,
    frozen,
)
from llog.limits import RECORD_BATCH_DECODED_BYTES_MAX, RECORDS_CHUNK_BYTES

_Output = tuple[Ints, Bytes, Bytes]


class _Section(NamedTuple):
    """Batches whose records are contiguous in memory: in the input buffer, or one decompressed batch."""

    data: Bytes
    batches: Longs
    """Numbers of these batches among the walked ones."""
    plain: bool
    byte_length: int


def decode_records(
    buffer: Buffer,
    source: str,
    *,
    rule: BatchRule = BatchRule.PRODUCED,
    verify: bool = True,
    skip_control: bool = True,
    inflated_bytes_max: int = RECORD_BATCH_DECODED_BYTES_MAX,
) -> RecordColumns:
    """All records of a buffer of batches, by default without control batches (transaction markers)."""
    batches = walk(buffer, source, rule=rule)
    if verify:
        verify_crcs(buffer, batches, source)
    return decode_batches(
        buffer, batches, source, rule=rule, skip_control=skip_control, inflated_bytes_max=inflated_bytes_max
    )


def decode_batches(
    buffer: Buffer,
    batches: BatchColumns,
    source: str,
    *,
    rule: BatchRule = BatchRule.PRODUCED,
    skip_control: bool = True,
    inflated_bytes_max: int = RECORD_BATCH_DECODED_BYTES_MAX,
) -> RecordColumns:
    """The records of batches that were walked (and verified) before."""
    sections = list(_sections(buffer, batches, source, skip_control, inflated_bytes_max))
    return _decode(sections, batches, source, rule)


def decode_in_chunks(
    buffer: Buffer,
    batches: BatchColumns,
    source: str,
    *,
    rule: BatchRule = BatchRule.PRODUCED,
    skip_control: bool = True,
    chunk_bytes: int = RECORDS_CHUNK_BYTES,
) -> Iterator[RecordColumns]:
    """The same in steps of whole batches: at most `chunk_bytes` of records, or one larger batch."""
    sections: list[_Section] = []
    size = 0
    bytes_max = RECORD_BATCH_DECODED_BYTES_MAX
    for section in _sections(buffer, batches, source, skip_control, bytes_max, chunk_bytes):
        if sections and size + section.byte_length > chunk_bytes:
            yield _decode(sections, batches, source, rule)
            sections, size = [], 0
        sections.append(section)
        size += section.byte_length
    if sections:
        yield _decode(sections, batches, source, rule)


def _sections(
    buffer: Buffer,
    batches: BatchColumns,
    source: str,
    skip_control: bool,
    bytes_max: int,
    run_bytes: int | None = None,
) -> Iterator[_Section]:
    """The sections of a buffer: runs of uncompressed batches, and single compressed batches.

    `bytes_max` limits the decompressed bytes of all batches together, or of each batch if the caller takes runs of
    `run_bytes` one at a time.
    """
    view = memoryview(buffer).cast("B").toreadonly()
    if len(batches) and int(batches.position[-1] + batches.length[-1]) > len(view):
        raise InvalidArgument("buffer", "is not the one that was walked")
    data = np.frombuffer(view, np.uint8)
    if not int(np.bitwise_or.reduce(batches.attributes)) & (CODEC_MASK | CONTROL):
        yield from _runs(data, batches, np.arange(len(batches)), run_bytes)
        return
    chosen = np.flatnonzero(~batches.is_control) if skip_control else np.arange(len(batches))
    first, room = 0, bytes_max
    # A run of uncompressed batches ends at the next compressed one.
    for stop in (*np.flatnonzero(batches.codec[chosen]).tolist(), len(chosen)):
        if stop > first:
            yield from _runs(data, batches, chosen[first:stop], run_bytes)
        if stop < len(chosen):
            section = _inflated(view, batches, chosen[stop : stop + 1], source, room)
            room -= section.byte_length if run_bytes is None else 0
            yield section
        first = stop + 1


def _inflated(view: memoryview, batches: BatchColumns, chosen: Longs, source: str, bytes_max: int) -> _Section:
    header, at = batches.header(int(chosen[0])), int(batches.position[chosen[0]])
    packed = view[at + HEADER_BYTES : at + header.length]
    try:
        inflated = decompress(header.codec, packed, source, bytes_max=bytes_max)
    except FormatError as error:
        raise type(error)(source, f"batch at byte {at}: {error.reason}") from None
    return _Section(np.frombuffer(inflated.toreadonly(), np.uint8), chosen, False, len(inflated))


def _runs(data: Bytes, batches: BatchColumns, chosen: Longs, bytes_max: int | None) -> Iterator[_Section]:
    """Uncompressed batches in one section, or in several of at most `bytes_max` bytes and at least one batch."""
    if bytes_max is None:
        if len(chosen):
            yield _Section(data, chosen, True, len(data))
        return
    ends = batches.length[chosen].cumsum()
    first, before = 0, 0
    while first < len(chosen):
        stop = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        end = int(ends[stop - 1])
        yield _Section(data, chosen[first:stop], True, end - before)
        first, before = stop, end


def _decode(sections: Sequence[_Section], batches: BatchColumns, source: str, rule: BatchRule) -> RecordColumns:
    from llog.formats.records import decode_kernels as kernels

    dense = rule is BatchRule.PRODUCED
    sums = np.zeros(kernels.SUMS, np.int64)
    for data, chosen, plain, _ in sections:
        fault, batch, record = kernels.measure(data, batches.fields, chosen, plain, dense, sums)
        if fault != kernels.SOUND:
            raise _fault(fault, int(batches.position[batch]), record, source)
    rows, header_rows = int(sums[kernels.RECORDS]), int(sums[kernels.HEADERS])
    keys = _output(rows, int(sums[kernels.KEY_BYTES]), int(sums[kernels.KEY_NULLS]), source)
    values = _output(rows, int(sums[kernels.VALUE_BYTES]), int(sums[kernels.VALUE_NULLS]), source)
    header_lists = np.zeros(rows + 1, np.int32)
    header_keys = _output(header_rows, int(sums[kernels.HEADER_KEY_BYTES]), 0, source)
    header_values = _output(
        header_rows, int(sums[kernels.HEADER_VALUE_BYTES]), int(sums[kernels.HEADER_VALUE_NULLS]), source
    )
    offsets, timestamps, timestamp_types = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int8)
    row = header = 0
    for data, chosen, plain, _ in sections:
        row, header = kernels.fill(
            data,
            batches.fields,
            chosen,
            plain,
            row,
            header,
            offsets,
            timestamps,
            timestamp_types,
            *keys,
            *values,
            header_lists,
            header_keys[0],
            header_keys[1],
            *header_values,
        )
    return RecordColumns(
        offsets=frozen(offsets),
        timestamps_ms=frozen(timestamps),
        timestamp_types=frozen(timestamp_types),
        keys=_column(keys),
        values=_column(values),
        headers=HeaderColumn(frozen(header_lists), _column(header_keys), _column(header_values)),
    )


def _output(rows: int, data_bytes: int, nulls: int, source: str) -> _Output:
    if max(rows, data_bytes) > BINARY_COLUMN_BYTES_MAX:
        raise DecodedTooLarge(source, f"a column of {rows} rows and {data_bytes} bytes: read fewer batches at a time")
    validity = np.zeros((rows + 7) // 8 if nulls else 0, np.uint8)
    offsets = np.empty(rows + 1, np.int32)
    offsets[0] = 0
    return offsets, np.empty(data_bytes, np.uint8), validity


def _column(output: _Output) -> BinaryColumn:
    offsets, data, validity = output
    return BinaryColumn(frozen(offsets), frozen(data), frozen(validity))


def _fault(fault: int, position: int, record: int, source: str) -> FormatError:
    from llog.formats.records import decode_kernels as kernels

    messages = {
        kernels.ENDS_EARLY: "ends inside a field",
        kernels.RECORD_LENGTH: "its length is not positive",
        kernels.OFFSET_DELTA: "its offset delta is out of order or beyond the batch's last",
        kernels.KEY_LENGTH: "its key passes its end",
        kernels.VALUE_LENGTH: "its value passes its end",
        kernels.HEADER_COUNT: "more headers than its bytes could hold",
        kernels.HEADER_KEY_LENGTH: "a header's key passes its end",
        kernels.HEADER_KEY_TEXT: "a header's key is not UTF-8",
        kernels.HEADER_VALUE_LENGTH: "a header's value passes its end",
        kernels.RECORD_REST: "longer than its fields",
        kernels.BATCH_REST: "bytes follow the last record",
    }
    kind = TruncatedInput if fault == kernels.ENDS_EARLY else InvalidField
    return kind(source, f"batch at byte {position}, record {record}: {messages[fault]}")
