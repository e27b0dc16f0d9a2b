"""Reading a split: its bytes to Arrow record batches, with the object store alone.

    fetch    all requests of the split start at once, bounded by the fetcher; neighbours in a blob share a request
    decode   walk, checksums, columns, all in kernels; a few MiB at a time
    shape    trim to the wanted offsets, filter, select columns, join small batches

Every wanted record is yielded exactly once, those of a log in offset order. Memory holds the bytes of one split and a
few MiB of decoded records. A missing object means that the plan is old (R10): the rest is planned again if the caller
can, a bounded number of times; no record is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from llog.errors import FormatError, InconsistentReadState, ObjectNotFound, ObjectRangeInvalid
from llog.formats.buffers import Buffer
from llog.formats.records.record_columns import RecordColumns
from llog.limits import MIB, SPLIT_BATCH_BYTES_MAX
from llog.log.metrics import READ_RECORDS, READ_RESTARTS
from llog.log.read.fetch import EntrySlice, Fetcher, whole_slice
from llog.log.read.records import RecordRun
from llog.log.read.segment_read import BatchStitcher, plan_batches, plan_ranges
from llog.log.read.slices import SegmentCheck, decode_slices, runs_of
from llog.pipeline.scan.record_shape import Shape
from llog.pipeline.scan.splits import ScanRange, Split, SplitPart
from llog.stores.objects.port import ObjectFetch, ObjectRange, plan_object_fetches

# Smaller Arrow batches are joined up to this size, because each batch costs a message of its own.
SPLIT_BATCH_BYTES_MIN: Final = MIB
# Times that a split is planned again because an object is gone (R10).
SPLIT_PLANS_MAX: Final = 5

# Length of the ranges in which a segment is fetched, several at once.
SPLIT_GET_BYTES: Final = 8 * MIB

Replan = Callable[[Sequence[ScanRange]], Awaitable[Sequence[Split]]]
"""Plans the unread ranges of a split again, from the current metadata."""
T = TypeVar("T")


async def split_batches(
    fetcher: Fetcher,
    split: Split,
    *,
    shape: Shape | None = None,
    replan: Replan | None = None,
    decode_in: Executor | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of a split as Arrow record batches. Without `replan`, a missing object raises `ObjectNotFound`.

    `decode_in`: threads that decode, so that the event loop continues to fetch.
    """
    shape = shape or Shape()
    left, plans = [split], 0
    small, size = list[pa.RecordBatch](), 0
    while left:
        reading = _SplitReader(fetcher, left[0], shape, decode_in)
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
    """The small batches as one. A large batch, which can only be the last, stays as it is to avoid a copy."""
    if len(batches) < 2:
        return batches
    if batches[-1].nbytes >= SPLIT_BATCH_BYTES_MIN:
        return [*_joined(batches[:-1]), batches[-1]]
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class _SplitReader:
    """One pass over a split, which knows how far it got."""

    def __init__(self, fetcher: Fetcher, split: Split, shape: Shape, decode_in: Executor | None) -> None:
        self._fetcher, self._shape, self._decode_in = fetcher, shape, decode_in
        self._groups = groups_of(split.parts)
        self._load = SplitLoad(fetcher, self._groups)
        self._at = 0
        """The current group; `_offset` is the next offset in it."""
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

    def rest(self) -> list[ScanRange]:
        """The ranges that were not yielded yet."""
        left: list[ScanRange] = []
        for i, group in enumerate(self._groups[self._at :]):
            start, stop = self._offset if i == 0 else group[0].start_offset, group[-1].stop_offset
            if start < stop:
                left.append(ScanRange(group[0].log, start, stop, group[0].incarnation))
        return left

    async def close(self) -> None:
        await self._load.close()

    async def _aside(self, function: Callable[..., T], *arguments: object) -> T:
        if self._decode_in is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._decode_in, function, *arguments)


class _Step(NamedTuple):
    """The batches of one run of records."""

    batches: list[pa.RecordBatch]
    records: int
    next_offset: int


def _decoded(group: Sequence[SplitPart], loaded: Loaded, shape: Shape) -> Iterator[_Step]:
    stop_offset = group[-1].stop_offset
    for run in decode_group(group, loaded):
        batches = list(shape.batches_of(run.columns, group[0], stop_offset))
        yield _Step(batches, run.columns.row_of(stop_offset), min(run.next_offset, stop_offset))


def groups_of(parts: Sequence[SplitPart]) -> list[list[SplitPart]]:
    """Parts that are decoded in one pass: consecutive whole slices of one log together, any other part alone."""
    groups: list[list[SplitPart]] = []
    size = 0
    for part in parts:
        size += part.byte_length or SPLIT_BATCH_BYTES_MAX
        if groups and size <= SPLIT_BATCH_BYTES_MAX and _follows(part, groups[-1][-1]):
            groups[-1].append(part)
        else:
            groups.append([part])
            size = part.byte_length or SPLIT_BATCH_BYTES_MAX
    return groups


def _follows(part: SplitPart, before: SplitPart) -> bool:
    begins_whole = part.start_offset == part.end_offset - part.msg_count + 1
    return (
        begins_whole
        and part.log == before.log
        and part.start_offset == before.stop_offset == before.end_offset + 1
        and not part.in_segment
        and not before.in_segment
    )


def decode_group(group: Sequence[SplitPart], loaded: Loaded) -> Iterator[RecordRun]:
    """The records of a group from its first wanted offset; the last run may extend past the last wanted offset."""
    first = group[0]
    if loaded.wanted is None:
        slices = [(part.entry, data) for part, data in zip(group, loaded.buffers, strict=True)]
        yield from decode_slices(slices, first.start_offset)
        return
    yield from runs_of(_segment_chunks(first, loaded), first.start_offset, first.stop_offset)


def _segment_chunks(part: SplitPart, loaded: Loaded) -> Iterator[RecordColumns]:
    entry, stitcher = part.entry, BatchStitcher(part.data_key)
    check = SegmentCheck(part.data_key, entry.start_offset, entry.end_offset)
    for data in loaded.buffers:
        for batches in stitcher.feed(data):
            yield from check.decode(batches)
    stitcher.finish()
    assert loaded.wanted is not None
    check.check_count(loaded.wanted.record_count)


# -- bytes -------------------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    buffers: list[Buffer]
    """One per slice of a group; for a segment, its consecutive ranges."""
    wanted: EntrySlice | None
    """For a segment: the batches in these ranges."""


class SplitLoad:
    """The bytes of a split: starts all requests at the first call, and returns the bytes group by group.

    Slices that are close to each other in a blob share a request, across logs. A segment is fetched in ranges of equal
    length; if a part begins or ends inside it, the footer says which batches are wanted, and the fetcher keeps that
    footer for the next part. The fetcher bounds the requests under way. `close` cancels the rest. For one task only.
    """

    def __init__(self, fetcher: Fetcher, groups: Sequence[Sequence[SplitPart]]) -> None:
        self._fetcher, self._groups = fetcher, groups
        self._segments: dict[int, asyncio.Task[Loaded]] = {}
        self._slices: dict[tuple[int, int], tuple[asyncio.Task[Buffer], ObjectFetch, ObjectRange]] = {}
        """By group and index in it: the request, and the range of its response that is the slice."""
        self._started = False

    async def bytes_of(self, number: int) -> Loaded:
        """The bytes of a group, which may be asked for once."""
        if not self._started:
            self._start()
        if number in self._segments:
            return await self._segments.pop(number)
        buffers: list[Buffer] = []
        for index in range(len(self._groups[number])):
            task, fetch, wanted = self._slices.pop((number, index))
            buffers.append(fetch.part(await task, wanted))
        return Loaded(buffers, None)

    async def close(self) -> None:
        tasks = {*self._segments.values(), *(task for task, _, _ in self._slices.values())}
        self._segments, self._slices = {}, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        self._started = True
        keys: list[tuple[int, int]] = []
        wanted: list[ObjectRange] = []
        for number, group in enumerate(self._groups):
            for index, part in enumerate(group):
                if part.in_segment:
                    self._segments[number] = asyncio.create_task(self._segment(part))
                    continue
                keys.append((number, index))
                length = None if part.byte_offset is None else part.byte_length
                wanted.append(ObjectRange(part.data_key, part.byte_offset or 0, length))
        # Gaps are read too, as long as they are not more than the wanted bytes.
        for fetch in plan_object_fetches(wanted, spare_bytes=sum(one.byte_length or 0 for one in wanted)):
            task = asyncio.create_task(self._fetcher.get(fetch.name, fetch.byte_offset, fetch.byte_length))
            for member in fetch.members:
                self._slices[keys[member]] = task, fetch, wanted[member]

    async def _segment(self, part: SplitPart) -> Loaded:
        entry = part.entry
        wanted = whole_slice(entry) if part.wants_all else None
        if wanted is None:
            footer = await self._fetcher.footer(entry)
            wanted = plan_batches(footer, entry, part.start_offset, part.stop_offset - 1)
        ranges = plan_ranges(wanted.byte_offset, wanted.byte_length or 0, SPLIT_GET_BYTES)
        gets = [self._fetcher.get(entry.value.data_key, *byte_range) for byte_range in ranges]
        # Wait for all of them, so that none is still running when one fails.
        answers = await asyncio.gather(*gets, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return Loaded([answer for answer in answers if not isinstance(answer, BaseException)], wanted)
