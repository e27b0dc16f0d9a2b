"""The task's part of reading: a split's bytes to Arrow record batches, by object store alone.

    fetched:  all requests of the split are under way at once (a few at a time), neighbours in a blob are one
    decoded:  walk, checksums, columns, all in kernels; a few MiB at a time
    shaped:   trimmed to the wanted offsets, filtered, some of the columns, batches neither huge nor tiny

What must stay true: every wanted record comes exactly once, a log's in offset order; no Python runs per record; the
bytes of one split are in memory, and a few MiB of what they decode to. An object that is gone means that the plan is
old (R10): the rest is planned again where the caller can, a bounded number of times; nothing is passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from llog.errors import (
    FormatError,
    InconsistentReadState,
    ObjectNotFound,
    ObjectRangeInvalid,
)
from llog.formats.records.record_columns import RecordColumns
from llog.limits import MIB, SPLIT_BATCH_BYTES_MAX
from llog.log.metrics import READ_RECORDS, READ_RESTARTS
from llog.log.read.fetch import Fetcher
from llog.log.read.records import RecordRun
from llog.log.read.segment_read import BatchStitcher
from llog.log.read.slices import SegmentCheck, decode_slices, runs_of
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.split_load import Loaded, SplitLoad
from llog.pipeline.scan.splits import LogRange, Piece, Split

# Smaller Arrow batches are put together until they have this much: each costs a message of its own.
SPLIT_BATCH_BYTES_MIN: Final = MIB
# How often a split is planned again because an object was gone (R10), each time further on or not at all.
SPLIT_PLANS_MAX: Final = 5


Replan = Callable[[Sequence[LogRange]], Awaitable[Sequence[Split]]]
"""From what is left of a split to splits of it as the metadata has it now."""
T = TypeVar("T")


async def split_batches(
    fetcher: Fetcher,
    split: Split,
    *,
    shape: Shape | None = None,
    replan: Replan | None = None,
    decode_in: Executor | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of a split as Arrow record batches. Without `replan`, an object that is gone is `ObjectNotFound`.

    `decode_in`: threads that decode, so that the event loop goes on fetching.
    """
    shape = shape or Shape()
    left, plans = [split], 0
    small, size = list[pa.RecordBatch](), 0
    while left:
        reading = _Reading(fetcher, left[0], shape, decode_in)
        try:
            async with aclosing(reading.batches()) as batches:
                async for batch in batches:
                    small.append(batch)
                    size += batch.nbytes
                    if size >= SPLIT_BATCH_BYTES_MIN:
                        for whole in _joined(small):
                            yield whole
                        small, size = [], 0
            del left[0]
        except (ObjectNotFound, ObjectRangeInvalid):
            plans += 1
            if replan is None or plans > SPLIT_PLANS_MAX:
                raise
            fetcher.metrics.count(READ_RESTARTS)
            left[:1] = await replan(reading.rest())
        finally:
            await reading.close()
    for whole in _joined(small):
        yield whole


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Small batches as one; a large one, which was the last to come, stays as it is: it would be copied."""
    if len(batches) < 2:
        return batches
    if batches[-1].nbytes >= SPLIT_BATCH_BYTES_MIN:
        return [*_joined(batches[:-1]), batches[-1]]
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class _Reading:
    """One pass over a split, and how far it came."""

    def __init__(self, fetcher: Fetcher, split: Split, shape: Shape, decode_in: Executor | None) -> None:
        self._fetcher, self._shape, self._decode_in = fetcher, shape, decode_in
        self._groups = groups_of(split.pieces)
        self._load = SplitLoad(fetcher, self._groups)
        self._at = 0
        """The group that is being read, and the next offset in it."""
        self._offset = self._groups[0][0].start_offset if self._groups else 0

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        for number, group in enumerate(self._groups):
            self._at, self._offset = number, group[0].start_offset
            decoded = _decoded(group, await self._load.bytes_of(number), self._shape)
            try:
                while (step := await self._aside(next, decoded, None)) is not None:
                    self._fetcher.metrics.count(READ_RECORDS, step.records)
                    for batch in step.batches:
                        yield batch
                    self._offset = step.next_offset
            except FormatError as error:
                raise InconsistentReadState(*group[0].log, f"offset {self._offset}: {error}") from error
        self._at = len(self._groups)

    def rest(self) -> list[LogRange]:
        """What was not handed out."""
        left: list[LogRange] = []
        for i, group in enumerate(self._groups[self._at :]):
            start, stop = self._offset if i == 0 else group[0].start_offset, group[-1].stop_offset
            if start < stop:
                left.append(LogRange(group[0].log, start, stop, group[0].incarnation))
        return left

    async def close(self) -> None:
        await self._load.close()

    async def _aside(self, function: Callable[..., T], *arguments: object) -> T:
        if self._decode_in is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._decode_in, function, *arguments)


class _Step(NamedTuple):
    """What one run of records became."""

    batches: list[pa.RecordBatch]
    records: int
    next_offset: int


def _decoded(group: Sequence[Piece], loaded: Loaded, shape: Shape) -> Iterator[_Step]:
    stop_offset = group[-1].stop_offset
    for run in decode_group(group, loaded):
        batches = list(shape.batches_of(run.columns, group[0], stop_offset))
        yield _Step(batches, run.columns.row_of(stop_offset), min(run.next_offset, stop_offset))


def groups_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces that are decoded in one pass: whole slices of one log that follow each other; any other one alone."""
    groups: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        size += piece.byte_length or SPLIT_BATCH_BYTES_MAX
        if groups and size <= SPLIT_BATCH_BYTES_MAX and _follows(piece, groups[-1][-1]):
            groups[-1].append(piece)
        else:
            groups.append([piece])
            size = piece.byte_length or SPLIT_BATCH_BYTES_MAX
    return groups


def _follows(piece: Piece, before: Piece) -> bool:
    begins_whole = piece.start_offset == piece.end_offset - piece.msg_count + 1
    return (
        begins_whole
        and piece.log == before.log
        and piece.start_offset == before.stop_offset == before.end_offset + 1
        and not piece.in_segment
        and not before.in_segment
    )


def decode_group(group: Sequence[Piece], loaded: Loaded) -> Iterator[RecordRun]:
    """The records of a group from its first wanted offset on; the last run may reach behind the last wanted one."""
    first = group[0]
    if loaded.wanted is None:
        slices = [(piece.entry, data) for piece, data in zip(group, loaded.buffers, strict=True)]
        yield from decode_slices(slices, first.start_offset)
        return
    yield from runs_of(_segment_chunks(first, loaded), first.start_offset, first.stop_offset)


def _segment_chunks(piece: Piece, loaded: Loaded) -> Iterator[RecordColumns]:
    entry, stitcher = piece.entry, BatchStitcher(piece.data_key)
    check = SegmentCheck(piece.data_key, entry.start_offset, entry.end_offset)
    for data in loaded.buffers:
        for batches in stitcher.feed(data):
            yield from check.decode(batches)
    stitcher.finish()
    assert loaded.wanted is not None
    check.check_count(loaded.wanted.record_count)
