"""Batches without the records that key compaction removes, and the segments they are read from.

    a batch that keeps all its records is copied unchanged
    a batch that keeps none is left out (the producer snapshot remembers its producer)
    any other batch is encoded again: its offsets and the range it covers stay, and so do producer, epoch and codec

It removes records with a key at an offset that does not survive, and surviving tombstones after their retention time.
That time counts from the first pass that kept the tombstone, as in Kafka: the batch then gets a delete horizon (its
base timestamp, with a flag), so a reader that began before the older values went still meets the tombstone. Records
without a key (nothing supersedes them) and control batches always stay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from llog.errors import ValueTooLarge
from llog.formats.arrow import from_arrow, to_arrow
from llog.formats.buffers import Buffer, crc32c
from llog.formats.records.compression import compress
from llog.formats.records.decode import decode_in_chunks
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import (
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchColumns,
    BatchHeader,
    BatchRule,
    Codec,
)
from llog.formats.records.record_columns import BinaryColumn, HeaderColumn, RecordColumns, frozen
from llog.formats.segment import SegmentFooter
from llog.limits import MIB, RECORD_BATCH_BYTES_MAX, RECORD_BATCH_DECODED_BYTES_MAX
from llog.log.context import FindObject
from llog.log.index import Entry
from llog.log.inspect.check_objects import read_footer
from llog.log.read.fetch import data_length
from llog.log.read.segment_read import BatchStitcher, plan_ranges
from llog.log.read.slices import SegmentCheck

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Rule(NamedTuple):
    """Decides which records stay."""

    survivors: Longs
    """Offsets of the last record of each key, rising."""
    now_ms: int
    delete_retention_ms: int


@dataclass(slots=True)
class Removed:
    """Counts over all buffers of a segment."""

    superseded: int = 0
    tombstones: int = 0
    marked_batches: int = 0
    """Batches that got a delete horizon."""
    survivors_seen: int = 0
    records_kept: int = 0


def cleaned(batches: Batches, rule: Rule, source: str, removed: Removed) -> bytes:
    """The remaining batches, concatenated."""
    data, columns = batches
    kept = np.where(columns.is_control, columns.record_count, 0)
    encoded: dict[int, memoryview] = {}
    for rows in decode_in_chunks(data, columns, source, rule=BatchRule.COMPACTED):
        _clean_chunk(rows, columns, rule, removed, kept, encoded)
    removed.records_kept += int(kept.sum())
    whole = (kept == columns.record_count) & (columns.record_count > 0)
    whole[list(encoded)] = False
    return _joined(memoryview(data).cast("B"), columns, whole, encoded)


def _clean_chunk(
    rows: RecordColumns,
    columns: BatchColumns,
    rule: Rule,
    removed: Removed,
    kept_counts: Longs,
    encoded: dict[int, memoryview],
) -> None:
    """Counts the kept records of each batch, and encodes batches that change."""
    batch = np.searchsorted(columns.base_offset, rows.offsets, side="right") - 1
    keyed = ~rows.keys.null_flags()
    latest = keyed & _is_in(rows.offsets, rule.survivors)
    tombstone = latest & rows.values.null_flags()
    due = tombstone & _is_due(columns, rule)[batch]
    keep = (latest | ~keyed) & ~due
    removed.superseded += int((keyed & ~latest).sum())
    removed.tombstones += int(due.sum())
    removed.survivors_seen += int(latest.sum())
    count = len(columns)
    kept = np.bincount(batch[keep], minlength=count)
    seen = np.bincount(batch, minlength=count)
    kept_counts += kept
    to_mark = np.bincount(batch[tombstone & keep], minlength=count).astype(np.bool_) & ~columns.has_delete_horizon
    removed.marked_batches += int(to_mark.sum())
    changed = (kept > 0) & ((kept < seen) | to_mark)
    if bool(changed.any()):
        _encode_changed(rows, columns, keep & changed[batch], batch, to_mark, rule, encoded)


def _is_in(offsets: Longs, survivors: Longs) -> Flags:
    if len(survivors) == 0:
        return np.zeros(len(offsets), np.bool_)
    place = np.searchsorted(survivors, offsets)
    found: Flags = survivors[np.minimum(place, len(survivors) - 1)] == offsets
    return found


def _is_due(columns: BatchColumns, rule: Rule) -> Flags:
    """Per batch: may its tombstones be removed? Without a horizon, only if the topic sets no retention for them."""
    marked: Flags = columns.has_delete_horizon & (columns.base_timestamp <= rule.now_ms)
    return marked | (~columns.has_delete_horizon & (rule.delete_retention_ms == 0))


def _encode_changed(
    rows: RecordColumns,
    columns: BatchColumns,
    keep: Flags,
    batch: Longs,
    to_mark: Flags,
    rule: Rule,
    encoded: dict[int, memoryview],
) -> None:
    left, of_batch = _filtered(rows, keep), batch[keep]
    numbers, begins = np.unique(of_batch, return_index=True)
    ends = [*begins[1:].tolist(), len(of_batch)]
    for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
        header, records = columns.header(number), _rows(left, begin, end)
        if to_mark[number]:
            encoded[number] = _encoded(records, header, rule.now_ms + rule.delete_retention_ms)
        else:
            encoded[number] = _encoded(records, header, header.base_timestamp if header.has_delete_horizon else None)


def _filtered(rows: RecordColumns, keep: Flags) -> RecordColumns:
    """Only the rows to keep. Timestamps bypass Arrow, which cannot represent the extreme ones."""
    table = to_arrow(rows).select(["key", "value", "headers"])
    left = from_arrow(table.filter(keep), timestamp_ms=0)
    return msgspec.structs.replace(
        left, offsets=frozen(rows.offsets[keep]), timestamps_ms=frozen(rows.timestamps_ms[keep])
    )


def _rows(columns: RecordColumns, begin: int, end: int) -> RecordColumns:
    headers = columns.headers
    return RecordColumns(
        offsets=columns.offsets[begin:end],
        timestamps_ms=columns.timestamps_ms[begin:end],
        timestamp_types=columns.timestamp_types[begin:end],
        keys=_part(columns.keys, begin, end),
        values=_part(columns.values, begin, end),
        headers=HeaderColumn(headers.offsets[begin : end + 1], headers.keys, headers.values),
    )


def _part(column: BinaryColumn, begin: int, end: int) -> BinaryColumn:
    rest = column.from_row(begin)
    return BinaryColumn(rest.offsets[: end - begin + 1], rest.data, rest.validity, rest.first_bit)


def _encoded(records: RecordColumns, header: BatchHeader, horizon_ms: int | None) -> memoryview:
    if horizon_ms is not None:
        return encode_with_horizon(records, header, horizon_ms)
    return encode_columns(
        records,
        codec=header.codec,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        partition_leader_epoch=header.partition_leader_epoch,
        timestamp_type=header.timestamp_type,
        transactional=header.is_transactional,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def encode_with_horizon(records: RecordColumns, header: BatchHeader, horizon_ms: int) -> memoryview:
    """Encode a batch with its delete horizon as base timestamp; record timestamps are relative to it."""
    from llog.formats.records import encode_kernels as kernels

    columns = (
        np.arange(len(records), dtype=np.int64),
        records.timestamps_ms,
        horizon_ms,
        records.offsets - header.base_offset,
        *_input(records.keys),
        *_input(records.values),
        records.headers.offsets,
        *_input(records.headers.keys)[:2],
        *_input(records.headers.values),
        np.empty(len(records), np.int32),
    )
    total, _, _ = kernels.measure_records(*columns)
    if not 0 < total <= RECORD_BATCH_DECODED_BYTES_MAX:
        raise ValueTooLarge("records", total, RECORD_BATCH_DECODED_BYTES_MAX)
    section = np.empty(total, np.uint8)
    kernels.write_records(section, 0, *columns)
    packed = (
        np.frombuffer(compress(header.codec, section.data), np.uint8) if header.codec is not Codec.NONE else section
    )
    output = np.empty(HEADER_BYTES + len(packed), np.uint8)
    if len(output) > RECORD_BATCH_BYTES_MAX:
        raise ValueTooLarge("records", len(output), RECORD_BATCH_BYTES_MAX)
    output[HEADER_BYTES:] = packed
    fields = header._replace(
        batch_length=len(output) - PREFIX_BYTES,
        magic=MAGIC,
        crc=0,
        attributes=header.attributes | DELETE_HORIZON,
        base_timestamp=horizon_ms,
        max_timestamp=int(records.timestamps_ms.max()),
        record_count=len(records),
    )
    HEADER.pack_into(output.data, 0, *fields)
    HEADER.pack_into(output.data, 0, *fields._replace(crc=crc32c(output.data[CRC_START:])))
    return output.data


def _input(column: BinaryColumn) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint8], int]:
    return column.offsets, column.data, column.validity, column.first_bit


def _joined(view: memoryview, columns: BatchColumns, whole: Flags, encoded: dict[int, memoryview]) -> bytes:
    """In order; adjoining unchanged batches are copied as one buffer."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], whole, [False])).astype(np.int8)))
    buffers: list[tuple[int, memoryview]] = list(encoded.items())
    for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        begin, last = int(columns.position[first]), stop - 1
        buffers.append((first, view[begin : int(columns.position[last] + columns.length[last])]))
    return b"".join(buffer for _, buffer in sorted(buffers, key=lambda numbered: numbered[0]))


# -- segments ----------------------------------------------------------------------------------------------------------

# Bytes that one request of a task reads.
KEY_COMPACT_READ_BYTES: Final = 8 * MIB


class SegmentSource(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a COMPACTED entry that a task needs."""

    uri: str
    start_offset: int
    end_offset: int
    data_length: int | None
    """None: only the footer has the length."""
    footer_length: int | None
    record_count: int | None
    epoch: int

    @classmethod
    def of(cls, entry: Entry) -> SegmentSource:
        value = entry.value
        return cls(
            uri=value.data_key,
            start_offset=entry.start_offset,
            end_offset=entry.end_offset,
            data_length=data_length(entry),
            footer_length=value.footer_length,
            record_count=value.record_count,
            epoch=value.epoch,
        )


class Batches(NamedTuple):
    """Whole batches of one buffer."""

    data: Buffer
    columns: BatchColumns


class ReadPace:
    """Limits bytes per second without bursts: unused time does not add to later reads."""

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        now_seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._rate, self._now, self._sleep = bytes_per_second, now_seconds, sleep
        self._free_at = 0.0

    async def before(self, byte_length: int) -> None:
        """Wait until this many bytes may be read."""
        if not self._rate:
            return
        now = self._now()
        wait = self._free_at - now
        self._free_at = max(self._free_at, now) + byte_length / self._rate
        if wait > 0:
            await self._sleep(wait)


async def footer_of(find_object: FindObject, source: SegmentSource) -> SegmentFooter:
    store, name = await find_object(source.uri)
    footer, _ = await read_footer(store, name, source.footer_length, source.uri)
    return footer


async def read_batches(find_object: FindObject, source: SegmentSource, pace: ReadPace) -> AsyncGenerator[Batches, None]:
    """Raises `FormatError` for bytes that contradict the entry, `ObjectNotFound` for a deleted object."""
    store, name = await find_object(source.uri)
    length = source.data_length
    if length is None:
        length = (await footer_of(find_object, source)).data_length
    stitcher = BatchStitcher(source.uri)
    check = SegmentCheck(source.uri, source.start_offset, source.end_offset)
    for piece in plan_ranges(0, length, KEY_COMPACT_READ_BYTES):
        await pace.before(piece.byte_length)
        for data in stitcher.feed(await store.get_range(name, *piece)):
            yield Batches(data, check.batches(data))
    stitcher.finish()
    check.check_count(source.record_count)
