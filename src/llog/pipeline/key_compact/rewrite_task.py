"""Second pass of key compaction: neighbouring segments of one log become one that holds the survivors alone.

What must stay true: the object gets a name of its own each time the task runs (compression need not give the same bytes
twice); the list of survivors must fit the segment it is for, offset by offset, or nothing is written; the new segment
stands for every offset its sources stood for, also where no record is left.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

import msgspec
import numpy as np

from llog.errors import InvalidField
from llog.formats.records.record_batch import BatchRule, walk
from llog.formats.segment import Segment, SegmentBuilder, SegmentExtension
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.pipeline.key_compact.batches import Longs, Removed, Rule, cleaned
from llog.pipeline.key_compact.scratch import ScratchPart, ScratchPlace, get_survivors
from llog.pipeline.key_compact.segments import Batches, Pace, SegmentSource, footer_of, read_batches
from llog.pipeline.runtime.tasks import Task, TaskTools


class RewriteSource(msgspec.Struct, frozen=True, array_like=True):
    segment: SegmentSource
    survivors: ScratchPart | None
    """None: no record with a key survives in it."""


class KeyRewrite(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    incarnation: int
    level: int
    root: str
    """Of all keys and names (`LLOG_ROOT_PREFIX`)."""
    sources: tuple[RewriteSource, ...]
    """Neighbours, in offset order."""
    scratch: ScratchPlace
    now_ms: int
    delete_retention_ms: int
    bytes_per_second: float | None = None
    dry_run: bool = False
    """Count, and put nothing."""


class KeyRewritten(msgspec.Struct, frozen=True):
    segment_id: str
    uri: str
    created_at_ms: int
    extension: SegmentExtension
    byte_length: int
    footer_length: int
    record_count: int
    max_timestamp_ms: int
    superseded: int
    tombstones: int
    tombstones_kept_for: int
    """Batches whose tombstones were given their time."""

    def as_segment(self) -> Segment:
        """Without its bytes: what publishing asks for."""
        return Segment(
            [], self.extension, self.byte_length, self.footer_length, self.record_count, self.max_timestamp_ms
        )


REWRITE_KEYS: Final = Task(f"{__name__}:rewrite_keys", KeyRewrite, KeyRewritten)


async def rewrite_keys(tools: TaskTools, item: KeyRewrite) -> KeyRewritten:
    created_at_ms = tools.now_ms()
    segment_id = new_object_id(created_at_ms, secrets.randbits)
    builder = SegmentBuilder(topic=item.topic, partition=item.partition, incarnation=item.incarnation)
    removed, epochs, pace = Removed(), dict[int, int](), Pace(item.bytes_per_second)
    for source in item.sources:
        known = await _epochs_of(tools, source.segment)
        for epoch, start_offset in known.items():
            epochs.setdefault(epoch, start_offset)
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
    return KeyRewritten(
        segment_id=segment_id,
        uri=store.uri(name),
        created_at_ms=created_at_ms,
        extension=segment.extension,
        byte_length=segment.byte_length,
        footer_length=segment.footer_length,
        record_count=segment.record_count,
        max_timestamp_ms=segment.max_timestamp_ms,
        superseded=removed.superseded,
        tombstones=removed.tombstones,
        tombstones_kept_for=removed.marked_batches,
    )


async def _epochs_of(tools: TaskTools, source: SegmentSource) -> dict[int, int]:
    """Batches that go would take the beginning of an epoch along; the footer knows it."""
    extension = (await footer_of(tools.find_object, source)).extension
    known = extension.epochs if extension is not None else {}
    return known or {source.epoch: source.start_offset}


async def _add_survivors(
    tools: TaskTools, item: KeyRewrite, source: RewriteSource, builder: SegmentBuilder, removed: Removed, pace: Pace
) -> None:
    survivors = await _survivors(tools, item, source)
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


async def _survivors(tools: TaskTools, item: KeyRewrite, source: RewriteSource) -> Longs:
    if source.survivors is None:
        return np.empty(0, np.int64)
    return await get_survivors(tools, item.scratch, source.survivors)
