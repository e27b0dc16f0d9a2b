"""From an entry's bytes to records, whatever their encoding: one view for every front end.

WAL slices hold batches whose offsets were unknown when they were uploaded: they are patched here, from the entry.
Segments hold final offsets; of them only the footer and the batches wanted are fetched: two requests for any offset.
What must stay true: checksums and counts are compared with the entry before anything is handed on.
"""

from __future__ import annotations

import numpy as np

from llog.errors import InvalidField, UnsupportedFormat
from llog.formats.bytes_batch import decode_bytes_batch
from llog.formats.crc import Buffer
from llog.formats.record_batch import BatchRule, patch_offsets, verify_crcs, walk
from llog.formats.record_columns import BinaryColumn, RecordColumns, frozen, no_headers, null_column
from llog.formats.records import decode_batches
from llog.formats.segment import parse_footer
from llog.limits import LOG_READ_COALESCE_BYTES_MAX, SEGMENT_FOOTER_PROBE_BYTES
from llog.log.index import Entry
from llog.log.records import RecordRun
from llog.stores.objects.port import ObjectStore


def decode_slice(data: Buffer, entry: Entry, offset: int) -> RecordRun:
    """The records of a slice from `offset` on."""
    source = entry.value.data_key
    if entry.value.encoding == "kafka-v2":
        columns = _decode_batches(data, entry, source)
    elif entry.value.encoding == "bytes-batch-v1":
        columns = _decode_bytes(data, entry, source)
    else:
        raise UnsupportedFormat(source, f"encoding {entry.value.encoding!r}")
    return RecordRun(_from(columns, offset), entry.end_offset + 1)


def _decode_batches(data: Buffer, entry: Entry, source: str) -> RecordColumns:
    writable = bytearray(data)  # offsets are patched in place, and what a store returns may be shared
    batches = walk(writable, source)
    if batches.offset_count != entry.value.msg_count:
        reason = f"holds {batches.offset_count} offsets, its index entry says {entry.value.msg_count}"
        raise InvalidField(source, reason)
    verify_crcs(writable, batches, source)
    patched = patch_offsets(writable, batches, entry.start_offset, entry.value.epoch)
    return decode_batches(writable, patched, source)


def _decode_bytes(data: Buffer, entry: Entry, source: str) -> RecordColumns:
    batch = decode_bytes_batch(data, source)
    count = batch.record_count()
    if count != entry.value.msg_count:
        raise InvalidField(source, f"holds {count} records, its index entry says {entry.value.msg_count}")
    ends = np.zeros(count + 1, np.int32)
    ends[1:] = batch.ends
    return RecordColumns(
        offsets=frozen(np.arange(entry.start_offset, entry.end_offset + 1, dtype=np.int64)),
        timestamps_ms=frozen(np.full(count, entry.value.created_at_ms, np.int64)),
        timestamp_types=frozen(np.zeros(count, np.int8)),
        keys=null_column(count),
        values=BinaryColumn(frozen(ends), frozen(np.frombuffer(batch.payloads, np.uint8))),
        headers=no_headers(count),
    )


async def decode_segment(store: ObjectStore, name: str, entry: Entry, offset: int) -> RecordRun:
    """The records of a segment from `offset` on, as many whole batches as one request may carry."""
    source = entry.value.data_key
    tail, length = await store.get_tail(name, entry.value.footer_length or SEGMENT_FOOTER_PROBE_BYTES)
    footer = parse_footer(tail, length, source)
    begin, size = footer.byte_range(offset, entry.end_offset, LOG_READ_COALESCE_BYTES_MAX)
    if size == 0:
        return RecordRun(_from(_nothing(), offset), entry.end_offset + 1)
    data = await store.get_range(name, begin, size)
    batches = walk(data, source, rule=BatchRule.COMPACTED)
    verify_crcs(data, batches, source)
    columns = decode_batches(data, batches, source, rule=BatchRule.COMPACTED)
    reached = int(batches.last_offset[-1]) + 1
    whole = begin + size >= footer.data_length
    return RecordRun(_from(columns, offset), entry.end_offset + 1 if whole else reached)


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
