"""The tasks of key compaction: scan the keys of segments, and rewrite segments without superseded records.

A scan reads its segments once and leaves, per segment, a table of key and offset in the scratch prefix; the aggregation
resolves keys that occur in several tables. The scan counts tombstones, and notes the time from which they may be
removed: the driver also rewrites segments without superseded records for them.

Keys are compared as bytes, never by a hash. Records without a key are in no table. No Python runs per record.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llog.errors import InvalidField, LlogError
from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_in_chunks
from llog.formats.records.record_batch import BatchColumns, BatchRule, walk
from llog.formats.records.record_columns import BinaryColumn, RecordColumns
from llog.formats.segment import SegmentBuilder
from llog.limits import KEY_SCAN_PART_BYTES_MAX
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.pipeline.compact.plan import WrittenSegment
from llog.pipeline.key_compact.aggregate import (
    KEYS_SCHEMA,
    ScratchPart,
    ScratchPlace,
    get_survivors,
    last_offsets,
    put_keys,
)
from llog.pipeline.key_compact.batches import (
    Batches,
    Longs,
    ReadPace,
    Removed,
    Rule,
    SegmentSource,
    cleaned,
    footer_of,
    read_batches,
)
from llog.pipeline.runtime.tasks import Task, TaskFailed, TaskTools

NO_HORIZON: Final = -1


class KeyScan(msgspec.Struct, frozen=True):
    segments: tuple[SegmentSource, ...]
    scratch: ScratchPlace
    bytes_per_second: float | None = None
    part_bytes_max: int = KEY_SCAN_PART_BYTES_MAX


class ScannedSegment(msgspec.Struct, frozen=True):
    parts: tuple[ScratchPart, ...]
    records: int
    keyed_records: int
    tombstones_unmarked: int
    """Tombstones in batches without a delete horizon."""
    tombstones_due_ms: int
    """Earliest delete horizon of the others; NO_HORIZON: there are no others."""
    data_bytes: int


class ScanOutcome(msgspec.Struct, frozen=True):
    """Outcome of one segment. A task scans segments of many logs, and one failure leaves the others intact."""

    scanned: ScannedSegment | None = None
    failed: TaskFailed | None = None


class KeyScanned(msgspec.Struct, frozen=True):
    segments: tuple[ScanOutcome, ...]
    """One per segment of the item, in order."""


SCAN_KEYS: Final = Task(f"{__name__}:scan_keys", KeyScan, KeyScanned)


async def scan_keys(tools: TaskTools, item: KeyScan) -> KeyScanned:
    pace = ReadPace(item.bytes_per_second)

    async def one(source: SegmentSource) -> ScanOutcome:
        try:
            return ScanOutcome(await _scan_segment(tools, item, source, pace))
        except LlogError as error:
            retriable = getattr(error, "retriable", False)
            return ScanOutcome(failed=TaskFailed(type(error).__name__, str(error), retriable))

    return KeyScanned(tuple([await one(source) for source in item.segments]))


async def _scan_segment(tools: TaskTools, item: KeyScan, source: SegmentSource, pace: ReadPace) -> ScannedSegment:
    keys, parts = _KeyTable(), list[ScratchPart]()
    records = keyed = unmarked = data_bytes = 0
    due_ms = NO_HORIZON
    async for data, batches in read_batches(tools.find_object, source, pace):
        data_bytes += memoryview(data).nbytes
        records += int(batches.record_count[~batches.is_control].sum())
        # In a thread: a compactor, or a whole embedded stack, may share this event loop.
        counts = await asyncio.to_thread(_scan_chunk, keys, data, batches, source.uri)
        keyed, unmarked = keyed + counts.keyed, unmarked + counts.unmarked
        due_ms = _earlier(due_ms, counts.due_ms)
        if keys.byte_length > item.part_bytes_max and await asyncio.to_thread(keys.combine) > item.part_bytes_max:
            parts.append(await put_keys(tools, item.scratch, keys.take()))
    if await asyncio.to_thread(keys.combine):
        parts.append(await put_keys(tools, item.scratch, keys.take()))
    return ScannedSegment(tuple(parts), records, keyed, unmarked, due_ms, data_bytes)


class _Counts(NamedTuple):
    keyed: int
    unmarked: int
    due_ms: int


def _earlier(one_ms: int, other_ms: int) -> int:
    return min({one_ms, other_ms} - {NO_HORIZON}, default=NO_HORIZON)


def _scan_chunk(keys: _KeyTable, data: Buffer, batches: BatchColumns, uri: str) -> _Counts:
    keyed = unmarked = 0
    due_ms = NO_HORIZON
    for columns in decode_in_chunks(data, batches, uri, rule=BatchRule.COMPACTED):
        keyed += keys.add(columns)
        new, soonest_ms = _tombstones(columns, batches)
        unmarked += new
        due_ms = _earlier(due_ms, soonest_ms)
    return _Counts(keyed, unmarked, due_ms)


def _tombstones(columns: RecordColumns, batches: BatchColumns) -> tuple[int, int]:
    """Number of tombstones in batches without a delete horizon, and the earliest horizon of the others."""
    rows = np.flatnonzero(columns.values.null_flags() & ~columns.keys.null_flags())
    if len(rows) == 0:
        return 0, NO_HORIZON
    batch = np.searchsorted(batches.base_offset, columns.offsets[rows], side="right") - 1
    marked = batches.has_delete_horizon[batch]
    horizons = batches.base_timestamp[batch][marked]
    return int((~marked).sum()), int(horizons.min()) if len(horizons) else NO_HORIZON


class _KeyTable:
    """The last offset of each key so far; a key occurs several times until `combine` is called."""

    def __init__(self) -> None:
        self._chunks: list[pa.Table] = []

    @property
    def byte_length(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def add(self, columns: RecordColumns) -> int:
        """Returns the number of records with a key."""
        table = pa.table([_binary(columns.keys), pa.array(columns.offsets)], schema=KEYS_SCHEMA)
        if table["key"].null_count:
            table = table.filter(pc.is_valid(table["key"]))
        if table.num_rows:
            self._chunks.append(last_offsets(table))
        return int(table.num_rows)

    def combine(self) -> int:
        """Keep each key once; returns the size in bytes."""
        if len(self._chunks) > 1:
            self._chunks = [last_offsets(pa.concat_tables(self._chunks))]
        return self.byte_length

    def take(self) -> pa.Table:
        [table], self._chunks = self._chunks, []
        return table


def _binary(column: BinaryColumn) -> pa.Array:
    validity = pa.py_buffer(column.validity) if len(column.validity) else None
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


# -- rewrite_task ------------------------------------------------------------------------------------------------------


class RewriteSource(msgspec.Struct, frozen=True, array_like=True):
    segment: SegmentSource
    survivors: ScratchPart | None
    """None: no record with a key survives."""


class KeyRewrite(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    incarnation: int
    level: int
    root: str
    """Prefix of all keys and names (`LLOG_ROOT_PREFIX`)."""
    sources: tuple[RewriteSource, ...]
    """Adjoining segments, in offset order."""
    scratch: ScratchPlace
    now_ms: int
    delete_retention_ms: int
    bytes_per_second: float | None = None
    dry_run: bool = False
    """Count only; write no segment."""


class KeyRewritten(msgspec.Struct, frozen=True):
    segment_id: str
    uri: str
    created_at_ms: int
    segment: WrittenSegment
    superseded: int
    tombstones: int


REWRITE_KEYS: Final = Task(f"{__name__}:rewrite_keys", KeyRewrite, KeyRewritten)


async def rewrite_keys(tools: TaskTools, item: KeyRewrite) -> KeyRewritten:
    created_at_ms = tools.now_ms()
    segment_id = new_object_id(created_at_ms, secrets.randbits)
    builder = SegmentBuilder(topic=item.topic, partition=item.partition, incarnation=item.incarnation)
    removed, epochs, pace = Removed(), dict[int, int](), ReadPace(item.bytes_per_second)
    for source in item.sources:
        epochs = epochs | await _epochs_of(tools, source.segment) | epochs  # in order; the first start counts
        await _add_survivors(tools, item, source, builder, removed, pace)
    segment = builder.finish(
        start_offset=item.sources[0].segment.start_offset,
        end_offset=item.sources[-1].segment.end_offset,
        level=item.level,
        created_at_ms=created_at_ms,
        epochs=epochs,
        sources=sorted({source.segment.uri for source in item.sources}),
    )
    store = await tools.open_store(item.scratch.store_url)
    name = Keys(item.root).segment_object(Log(item.topic, item.partition), segment_id)
    if not item.dry_run:
        await store.put(name, segment.buffers)
    written = WrittenSegment(*segment[1:])
    return KeyRewritten(segment_id, store.uri(name), created_at_ms, written, removed.superseded, removed.tombstones)


async def _epochs_of(tools: TaskTools, source: SegmentSource) -> dict[int, int]:
    """From the footer, because the first batch of an epoch may be removed."""
    extension = (await footer_of(tools.find_object, source)).extension
    known = extension.epochs if extension is not None else {}
    return known or {source.epoch: source.start_offset}


async def _add_survivors(
    tools: TaskTools, item: KeyRewrite, source: RewriteSource, builder: SegmentBuilder, removed: Removed, pace: ReadPace
) -> None:
    survivors: Longs = np.empty(0, np.int64)
    if source.survivors is not None:
        survivors = await get_survivors(tools, item.scratch, source.survivors)
    rule = Rule(survivors, item.now_ms, item.delete_retention_ms)
    seen_before = removed.survivors_seen
    uri = source.segment.uri
    async for batches in read_batches(tools.find_object, source.segment, pace):
        # In a thread: a compactor, or a whole embedded stack, may share this event loop.
        await asyncio.to_thread(_add_cleaned, batches, rule, uri, builder, removed)
    seen = removed.survivors_seen - seen_before
    if seen != len(survivors):
        raise InvalidField(uri, f"{len(survivors)} offsets are to survive, {seen} of them hold a record with a key")


def _add_cleaned(batches: Batches, rule: Rule, uri: str, builder: SegmentBuilder, removed: Removed) -> None:
    left = cleaned(batches, rule, uri, removed)
    if left:
        builder.add(left, walk(left, uri, rule=BatchRule.COMPACTED))
