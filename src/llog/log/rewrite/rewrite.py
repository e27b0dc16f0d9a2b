"""One entry's bytes as they stand in a segment: checked against the entry, with their final offsets.

`llog.pipeline.compact.task` builds segments from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llog.errors import InvalidField, UnsupportedFormat
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.crc import Buffer
from llog.formats.records.record_batch import BatchColumns, BatchRule, TimestampType, patch_offsets, verify_crcs, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.formats.records.records import encode_columns
from llog.formats.segment import parse_footer
from llog.log.index import Entry


class _Final(NamedTuple):
    """Batches with their final offsets, what `walk` says of them, and the epochs they were written under."""

    data: Buffer
    columns: BatchColumns
    epochs: dict[int, int]


def final_batches(data: Buffer, entry: Entry) -> _Final:
    source = entry.value.data_key
    if entry.value.encoding == "bytes-batch-v1":
        payloads = decode_bytes_batch(data, source).to_list()
        # As they are read before (`decode`): nobody said when they were made, so theirs is the log's time.
        columns = columns_from_rows(payloads, timestamps_ms=entry.value.created_at_ms)
        data = encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME)
    elif entry.value.encoding != "kafka-v2":
        raise UnsupportedFormat(source, f"encoding {entry.value.encoding!r}")
    elif entry.value.type == "COMPACTED":
        return _batches_of_segment(data, entry)
    writable = bytearray(data)
    batches = walk(writable, source)
    if batches.offset_count != entry.value.msg_count:
        reason = f"holds {batches.offset_count} offsets, its index entry says {entry.value.msg_count}"
        raise InvalidField(source, reason)
    verify_crcs(writable, batches, source)
    patched = patch_offsets(writable, batches, entry.start_offset, entry.value.epoch)
    return _Final(writable, patched, {entry.value.epoch: entry.start_offset})


def _batches_of_segment(data: Buffer, entry: Entry) -> _Final:
    """A segment's batches are final already; they only have to be whole."""
    source, whole = entry.value.data_key, memoryview(data)
    footer = parse_footer(whole, len(whole), source)
    batches = whole[: footer.data_length]
    columns = walk(batches, source, rule=BatchRule.COMPACTED)
    verify_crcs(batches, columns, source)
    records = int(footer.entries["record_count"].sum(dtype=np.int64))
    if entry.value.record_count not in (None, records):
        raise InvalidField(source, f"holds {records} records, its index entry says {entry.value.record_count}")
    known = footer.extension.epochs if footer.extension is not None else {}
    return _Final(batches, columns, known or {entry.value.epoch: entry.start_offset})
