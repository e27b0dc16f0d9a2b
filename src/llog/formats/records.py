"""Records in and out of RecordBatches, a whole batch at a time.

`decode_records` turns a buffer of batches into columns; `encode_records` and `encode_columns` turn rows or columns
into ONE batch. Per record nothing runs in Python: the kernels do it, at about the speed of copying. They compile on
first use; a server calls `warm_up` before it serves.

Decoding is for hostile bytes. Checksums are compared first (unless the caller has done so), then everything is
checked in one pass before the second allocates. Memory: compressed batches inflate to `inflated_bytes_max` at most,
all of one call together; the columns take what the keys, values and headers take, 30 bytes per record (which has at
least 7 on the wire) and 9 per header (at least 2). A column holds at most 2 GiB (32-bit offsets): more is refused
as `DecodedTooLarge`, and `decode_in_chunks` is the way to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from llog.errors import DecodedTooLarge, FormatError, InvalidArgument, InvalidField, TruncatedInput, ValueTooLarge
from llog.formats.compression import compress, decompress
from llog.formats.crc import Buffer, crc32c
from llog.formats.record_batch import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OFFSET_MAX,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchColumns,
    BatchRule,
    Codec,
    TimestampType,
    verify_crcs,
    walk,
)
from llog.formats.record_columns import (
    BINARY_COLUMN_BYTES_MAX,
    BinaryColumn,
    Bytes,
    Header,
    HeaderColumn,
    Ints,
    Longs,
    RecordColumns,
    frozen,
)
from llog.limits import RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX, RECORDS_CHUNK_BYTES

_Output = tuple[Ints, Bytes, Bytes]

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


class _Section(NamedTuple):
    """Batches whose records lie in one piece of memory: in the buffer as it came, or (one batch) inflated."""

    data: Bytes
    batches: Longs
    """Which of the walked batches these are."""
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
    """All records of a buffer of batches. Control batches (transaction markers) are left out unless asked for."""
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
    sections: list[_Section] = []
    room = inflated_bytes_max
    for section in _sections(buffer, batches, source, skip_control, inflated_bytes_max):
        room -= 0 if section.plain else section.byte_length
        if room < 0:
            raise DecodedTooLarge(source, f"batches inflate to more than {inflated_bytes_max} bytes together")
        sections.append(section)
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
    """The same, whole batches of at most `chunk_bytes` (or one larger batch) at a time, inflated as they are reached."""
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
    """Where the records lie: runs of uncompressed batches (cut at `run_bytes`), compressed batches one by one."""
    view = memoryview(buffer).cast("B").toreadonly()
    if len(batches) and int(batches.position[-1] + batches.length[-1]) > len(view):
        raise InvalidArgument("buffer", "is not the one that was walked")
    chosen = np.flatnonzero(~batches.is_control) if skip_control else np.arange(len(batches))
    data = np.frombuffer(view, np.uint8)
    first = 0
    # A run of uncompressed batches reaches to the next compressed one.
    for stop in (*np.flatnonzero(batches.codec[chosen]).tolist(), len(chosen)):
        if stop > first:
            yield from _runs(data, batches, chosen[first:stop], run_bytes)
        if stop < len(chosen):
            yield _inflated(view, batches, chosen[stop : stop + 1], source, bytes_max)
        first = stop + 1


def _inflated(view: memoryview, batches: BatchColumns, chosen: Longs, source: str, bytes_max: int) -> _Section:
    header, at = batches.header(int(chosen[0])), int(batches.position[chosen[0]])
    packed = view[at + HEADER_BYTES : at + header.length]
    inflated = decompress(header.codec, packed, f"{source}: batch at byte {at}", bytes_max=bytes_max)
    return _Section(np.frombuffer(inflated.toreadonly(), np.uint8), chosen, False, len(inflated))


def _runs(data: Bytes, batches: BatchColumns, chosen: Longs, bytes_max: int | None) -> Iterator[_Section]:
    """Uncompressed batches in sections of at most `bytes_max` bytes and at least one batch."""
    ends = batches.length[chosen].cumsum()
    first, before = 0, 0
    while first < len(chosen):
        stop = len(chosen)
        if bytes_max is not None:
            stop = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        end = int(ends[stop - 1])
        yield _Section(data, chosen[first:stop], True, end - before)
        first, before = stop, end


def _decode(sections: Sequence[_Section], batches: BatchColumns, source: str, rule: BatchRule) -> RecordColumns:
    from llog.formats import record_kernels as kernels

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
            keys,
            values,
            header_lists,
            header_keys,
            header_values,
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
    if data_bytes > BINARY_COLUMN_BYTES_MAX:
        raise DecodedTooLarge(source, f"a column of {data_bytes} bytes: read fewer batches at a time")
    validity = np.zeros((rows + 7) // 8 if nulls else 0, np.uint8)
    offsets = np.empty(rows + 1, np.int32)
    offsets[0] = 0
    return offsets, np.empty(data_bytes, np.uint8), validity


def _column(output: _Output) -> BinaryColumn:
    offsets, data, validity = output
    return BinaryColumn(frozen(offsets), frozen(data), frozen(validity))


def _fault(fault: int, position: int, record: int, source: str) -> FormatError:
    from llog.formats import record_kernels as kernels

    words = {
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
    return kind(source, f"batch at byte {position}, record {record}: {words[fault]}")


def encode_records(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[Header] | None] | None = None,
    timestamps_ms: int | Sequence[int] | Longs,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> memoryview:
    """One batch of these records, base offset 0. `timestamps_ms` is one for all or one per record."""
    from llog.formats.arrow import columns_from_rows

    return encode_columns(
        columns_from_rows(values, keys=keys, headers=headers, timestamps_ms=timestamps_ms),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def encode_columns(
    columns: RecordColumns,
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> memoryview:
    """One batch of all rows, checksum filled in.

    Without `last_offset_delta` the rows get the offsets from `base_offset` on, one each, whatever their own are. With
    it (a batch that lost records keeps its range) their own offsets stay, and must lie within that range.
    """
    if len(columns) == 0:
        raise InvalidArgument("records", "a batch needs at least one")
    deltas, last_delta = _deltas(columns, base_offset, last_offset_delta)
    base_timestamp = int(columns.timestamps_ms[0])
    section_at = HEADER_BYTES if codec is Codec.NONE else 0
    output = _write_records(columns, deltas, base_timestamp, section_at)
    if codec is not Codec.NONE:
        packed = np.frombuffer(compress(codec, memoryview(output)), np.uint8)
        output = np.empty(HEADER_BYTES + len(packed), np.uint8)
        output[HEADER_BYTES:] = packed
    if len(output) > RECORD_BATCH_BYTES_MAX:
        raise ValueTooLarge("records", len(output), RECORD_BATCH_BYTES_MAX)
    attributes = int(codec)
    attributes |= LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    fields = [
        base_offset, len(output) - PREFIX_BYTES, partition_leader_epoch, MAGIC, 0, attributes, last_delta, base_timestamp,
        int(columns.timestamps_ms.max()), producer_id, producer_epoch, base_sequence, len(columns),
    ]  # fmt: skip
    view = memoryview(output)
    HEADER.pack_into(view, 0, *fields)
    fields[4] = crc32c(view[CRC_START:])
    HEADER.pack_into(view, 0, *fields)
    return view


def _deltas(columns: RecordColumns, base_offset: int, last_offset_delta: int | None) -> tuple[Longs, int]:
    rows = len(columns)
    if last_offset_delta is None:
        last_offset_delta = rows - 1
        deltas = np.arange(rows, dtype=np.int64)
    else:
        deltas = columns.offsets - base_offset
        rising = bool(np.all(columns.offsets[1:] > columns.offsets[:-1]))
        if not rising or int(deltas[0]) < 0 or int(deltas[-1]) > last_offset_delta:
            raise InvalidArgument("offsets", f"must rise within {base_offset} … {base_offset + last_offset_delta}")
    if not 0 <= base_offset < OFFSET_MAX - last_offset_delta or not 0 <= last_offset_delta < 2**31:
        raise InvalidArgument("base_offset", f"{base_offset} … {base_offset + last_offset_delta} are not offsets")
    return deltas, last_offset_delta


def _write_records(columns: RecordColumns, deltas: Longs, base_timestamp: int, at: int) -> Bytes:
    """The records section behind `at` free bytes, in a buffer of exactly that size."""
    from llog.formats import record_encode_kernels as kernels

    if int(columns.timestamps_ms.max()) - int(columns.timestamps_ms.min()) > OFFSET_MAX:
        raise InvalidArgument("timestamps_ms", "lie more than 64 bits apart")
    rows = (
        columns.timestamps_ms,
        base_timestamp,
        deltas,
        _input(columns.keys),
        _input(columns.values),
        columns.headers.offsets,
        _input(columns.headers.keys),
        _input(columns.headers.values),
        np.empty(len(columns), np.int32),
    )
    total = kernels.measure_records(*rows)
    if total < 0:
        raise InvalidArgument("records", f"row {-1 - total}: the columns' offsets contradict each other")
    limit = RECORD_BATCH_BYTES_MAX if at else RECORD_BATCH_DECODED_BYTES_MAX
    if at + total > limit:
        raise ValueTooLarge("records", at + total, limit)
    output = np.empty(at + total, np.uint8)
    kernels.write_records(output, at, *rows)
    return output


def _input(column: BinaryColumn) -> tuple[Ints, Bytes, Bytes, int]:
    return column.offsets, column.data, column.validity, column.first_bit


def warm_up() -> None:
    """Compile or load every kernel, in a thread if the process serves already: the first time takes some seconds."""
    one = encode_records([b"v", None], keys=[b"k", None], headers=[[("h", b"")], None], timestamps_ms=0)
    decode_records(one, "warm-up")
    from llog.formats.record_batch import patch_offsets

    patch_offsets(one, walk(one, "warm-up"), 0, 0)
