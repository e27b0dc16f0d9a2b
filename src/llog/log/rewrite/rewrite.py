"""One entry's bytes as they stand in a segment: checked against the entry, with their final offsets.

`llog.pipeline.compact.task` builds segments from them.
"""

from __future__ import annotations

from typing import NamedTuple

from llog.errors import UnsupportedFormat
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.record_batch import BatchColumns, BatchRule, walk
from llog.formats.segment import parse_footer
from llog.log.index import Entry
from llog.log.read.slices import SegmentCheck, encode_payloads, patch_slices


class _Final(NamedTuple):
    """Batches with their final offsets, their columns, and the first offset of each epoch."""

    data: Buffer
    columns: BatchColumns
    epochs: dict[int, int]


def final_batches(data: Buffer, entry: Entry) -> _Final:
    source = entry.value.data_key
    count, start, epoch = entry.value.msg_count, entry.start_offset, entry.value.epoch
    if entry.value.encoding == BYTES_BATCH:
        batch = encode_payloads(data, count, start, epoch, entry.value.created_at_ms, source)
        return _Final(batch, walk(batch, source, rule=BatchRule.COMPACTED), {epoch: start})
    if entry.value.encoding != "kafka-v2":
        raise UnsupportedFormat(source, f"encoding {entry.value.encoding!r}")
    if entry.value.type == "COMPACTED":
        return _batches_of_segment(data, entry)
    writable = bytearray(data)
    return _Final(writable, patch_slices(writable, [len(writable)], [count], start, epoch, source), {epoch: start})


def _batches_of_segment(data: Buffer, entry: Entry) -> _Final:
    """A segment's batches are final already."""
    source, whole = entry.value.data_key, memoryview(data)
    footer = parse_footer(whole, len(whole), source)
    batches = whole[: footer.data_length]
    check = SegmentCheck(source, entry.start_offset, entry.end_offset)
    columns = check.batches(batches)
    check.check_count(entry.value.record_count)
    known = footer.extension.epochs if footer.extension is not None else {}
    return _Final(batches, columns, known or {entry.value.epoch: entry.start_offset})
