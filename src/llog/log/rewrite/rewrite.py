"""Rewrite a run of entries into one segment: a plain task, from what to read to what was written.

It knows nothing of control records or Spark: it reads byte ranges, checks them, gives batches their final offsets and
writes one object. Run in this process (`compact_once`) or in a task elsewhere, it is the same function.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from llog.concurrency import gather_bounded
from llog.errors import InvalidField, UnsupportedFormat
from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.crc import Buffer
from llog.formats.records.record_batch import BatchColumns, BatchRule, TimestampType, patch_offsets, verify_crcs, walk
from llog.formats.records.record_columns import columns_from_rows
from llog.formats.records.records import encode_columns
from llog.formats.segment import Segment, SegmentBuilder, parse_footer
from llog.log.context import FindObject
from llog.log.index import Entry
from llog.log.keys import Log
from llog.log.rewrite.select import Run

LOG_COMPACT_READS_IN_FLIGHT_MAX: Final = 8


async def rewrite(
    find_object: FindObject, log: Log, incarnation: int, run: Run, *, level: int, created_at_ms: int
) -> Segment:
    """The segment of a run, ready to be put. Raises `FormatError` for bytes that are not what their entry says."""
    builder = SegmentBuilder(topic=log.topic, partition=log.partition, incarnation=incarnation)
    slices = await gather_bounded(
        run.entries, lambda entry: _fetch(find_object, entry), limit=LOG_COMPACT_READS_IN_FLIGHT_MAX
    )
    epochs: dict[int, int] = {}
    for entry, data in zip(run.entries, slices, strict=True):
        final = final_batches(data, entry)
        builder.add(final.data, final.columns)
        for epoch, start_offset in final.epochs.items():
            epochs.setdefault(epoch, start_offset)
    return builder.finish(
        start_offset=run.start_offset,
        end_offset=run.end_offset,
        level=level,
        created_at_ms=created_at_ms,
        epochs=epochs,
        sources=run.sources,
    )


async def _fetch(find_object: FindObject, entry: Entry) -> Buffer:
    store, name = await find_object(entry.value.data_key)
    if entry.value.byte_offset is None or entry.value.byte_length is None:
        return await store.get(name)
    return await store.get_range(name, entry.value.byte_offset, entry.value.byte_length)


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
