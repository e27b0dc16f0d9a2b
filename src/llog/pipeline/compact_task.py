"""The task that rewrites a window: it reads each object of the window once and writes one segment per run.

    Window: objects (which bytes of which blob) · runs (which slices of these objects become which segment)

Why it exists: a WAL blob holds slices of many logs. Whoever compacts log by log reads it once per log; here all runs
of a window share what was read, so a blob costs one GET however many partitions lie in it. Merges are windows too:
their objects are segments, each of one run.

What must stay true
- A segment is byte for byte what `llog.log.rewrite` makes of the same run; the functions are the same.
- Checksums are compared before anything is written.
- A run that fails for a foreseen reason is an outcome of its own: a damaged slice, or a blob that is gone, does not
  take the other logs of the window along.
- Memory: the objects that runs still wait for, plus COMPACT_TASK_SEGMENT_BYTES_MAX of segments; an object is dropped
  with the last run that needs it.
- The event loop never computes: slices are checked and patched in threads, and the kernels leave the interpreter alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from llog.errors import LlogError, ObjectRangeInvalid
from llog.formats.crc import Buffer
from llog.formats.segment import Segment, SegmentBuilder, SegmentExtension
from llog.formats.values import EntryType, IndexEntry
from llog.limits import COMPACT_TASK_READS_MAX, COMPACT_TASK_SEGMENT_BYTES_MAX, COMPACT_TASK_SEGMENTS_MAX
from llog.log.index import Entry
from llog.log.rewrite import _final_batches as final_batches
from llog.pipeline.budget import ByteBudget
from llog.pipeline.work import Task, TaskFailed, TaskTools


class SourceObject(msgspec.Struct, frozen=True, array_like=True):
    """What is read of one object, in one request: from its first slice to the end of its last."""

    uri: str
    byte_offset: int | None = None
    """None: the whole object, where an entry names no range."""
    byte_length: int | None = None


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """One index entry of a run, and where its bytes are."""

    source: int
    """Position in the window's objects."""
    end_offset: int
    msg_count: int
    record_count: int | None
    byte_offset: int | None
    byte_length: int | None
    encoding: str
    epoch: int
    created_at_ms: int
    type: EntryType = "WAL"


class WindowRun(msgspec.Struct, frozen=True, array_like=True):
    """Slices that become one segment of one log, in offset order."""

    topic: str
    partition: int
    incarnation: int
    level: int
    created_at_ms: int
    name: str
    """Of the segment's object."""
    slices: tuple[Slice, ...]

    @property
    def byte_length(self) -> int:
        return sum(piece.byte_length or 0 for piece in self.slices)


class Window(msgspec.Struct, frozen=True):
    store_url: str
    """Where segments go."""
    objects: tuple[SourceObject, ...]
    runs: tuple[WindowRun, ...]

    @property
    def byte_length(self) -> int:
        return sum(source.byte_length or 0 for source in self.objects)


class WrittenSegment(msgspec.Struct, frozen=True):
    """A segment that lies in the store: all that publishing it needs."""

    extension: SegmentExtension
    byte_length: int
    footer_length: int
    record_count: int
    max_timestamp_ms: int

    def as_segment(self) -> Segment:
        """Without its bytes."""
        described = self.extension, self.byte_length, self.footer_length, self.record_count, self.max_timestamp_ms
        return Segment([], *described)


class RunOutcome(msgspec.Struct, frozen=True):
    segment: WrittenSegment | None = None
    failed: TaskFailed | None = None


class Written(msgspec.Struct, frozen=True):
    outcomes: tuple[RunOutcome, ...]
    """One per run of the window, in order."""
    objects_read: int
    bytes_read: int


OnOutcome = Callable[[int, RunOutcome], None]
"""The number of a run in its window, and what became of it."""
REWRITE_WINDOW: Final = Task(f"{__name__}:rewrite_window", Window, Written)


async def rewrite_window(tools: TaskTools, window: Window, on_run: OnOutcome = lambda _, __: None) -> Written:
    """`on_run` is told of each run as soon as its segment is written; only a caller in this process can listen."""
    store = await tools.open_store(window.store_url)
    sources = _Sources(tools, window)
    slots, budget = asyncio.Semaphore(COMPACT_TASK_SEGMENTS_MAX), ByteBudget(COMPACT_TASK_SEGMENT_BYTES_MAX)

    async def attempted(run: WindowRun) -> RunOutcome:
        try:
            segment = await _built(sources, run)
            await store.put(run.name, segment.buffers)
        except LlogError as error:
            retriable = getattr(error, "retriable", False)
            return RunOutcome(failed=TaskFailed(type(error).__name__, str(error), retriable))
        finally:
            sources.done_with(run)
        return RunOutcome(segment=WrittenSegment(*segment[1:]))

    async def one(number: int, run: WindowRun) -> RunOutcome:
        async with slots, budget.take(run.byte_length):
            outcome = await attempted(run)
        on_run(number, outcome)
        return outcome

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, run)) for number, run in enumerate(window.runs)]
    finally:
        await sources.close()
    return Written(tuple(task.result() for task in tasks), sources.objects_read, sources.bytes_read)


async def _built(sources: _Sources, run: WindowRun) -> Segment:
    needed = {piece.source for piece in run.slices}
    reading = {number: sources.reading(number) for number in needed}  # all of them begin now
    buffers = {number: await sources.read(task) for number, task in reading.items()}
    return await asyncio.to_thread(build_segment, sources.window, run, buffers)


class _Sources:
    """The window's objects: each read once, when the first run asks for it, and kept until the last is done."""

    def __init__(self, tools: TaskTools, window: Window) -> None:
        self.window = window
        self.objects_read = self.bytes_read = 0
        self._tools = tools
        self._slots = asyncio.Semaphore(COMPACT_TASK_READS_MAX)
        self._reading: dict[int, asyncio.Task[Buffer]] = {}
        self._waiting = Counter(number for run in window.runs for number in {piece.source for piece in run.slices})

    def reading(self, number: int) -> asyncio.Task[Buffer]:
        task = self._reading.get(number)
        if task is None:
            task = self._reading[number] = asyncio.create_task(self._read(self.window.objects[number]))
        return task

    async def read(self, task: asyncio.Task[Buffer]) -> Buffer:
        # Shielded: a run that is given up must not take the object away from the others.
        return task.result() if task.done() else await asyncio.shield(task)

    def done_with(self, run: WindowRun) -> None:
        for number in {piece.source for piece in run.slices}:
            self._waiting[number] -= 1
            if not self._waiting[number] and (reading := self._reading.get(number)) is not None and reading.done():
                del self._reading[number]  # and its buffer with it

    async def close(self) -> None:
        for reading in self._reading.values():
            reading.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    async def _read(self, source: SourceObject) -> Buffer:
        async with self._slots:
            store, name = await self._tools.find_object(source.uri)
            self.objects_read += 1
            if source.byte_offset is None or source.byte_length is None:
                data = await store.get(name)
            else:
                data = await store.get_range(name, source.byte_offset, source.byte_length)
            self.bytes_read += memoryview(data).nbytes
            return data


# -- in a thread -------------------------------------------------------------------------------------------------------


def build_segment(window: Window, run: WindowRun, buffers: dict[int, Buffer]) -> Segment:
    """The segment of a run, ready to be put. Raises `FormatError` for bytes that are not what their entry says."""
    builder = SegmentBuilder(topic=run.topic, partition=run.partition, incarnation=run.incarnation)
    epochs: dict[int, int] = {}
    for piece in run.slices:
        source = window.objects[piece.source]
        entry = _entry_of(piece, source, run.incarnation)
        final = final_batches(_bytes_of(piece, source, buffers[piece.source]), entry)
        builder.add(final.data, final.columns)
        for epoch, start_offset in final.epochs.items():
            epochs.setdefault(epoch, start_offset)
    first, last = run.slices[0], run.slices[-1]
    return builder.finish(
        start_offset=first.end_offset - first.msg_count + 1,
        end_offset=last.end_offset,
        level=run.level,
        created_at_ms=run.created_at_ms,
        epochs=epochs,
        sources=sorted({window.objects[piece.source].uri for piece in run.slices}),
    )


def _entry_of(piece: Slice, source: SourceObject, incarnation: int) -> Entry:
    value = IndexEntry(
        type=piece.type,
        msg_count=piece.msg_count,
        record_count=piece.record_count,
        data_key=source.uri,
        encoding=piece.encoding,
        byte_offset=piece.byte_offset,
        byte_length=piece.byte_length,
        incarnation=incarnation,
        epoch=piece.epoch,
        created_at_ms=piece.created_at_ms,
    )
    return Entry(piece.end_offset, value, 0)


def _bytes_of(piece: Slice, source: SourceObject, data: Buffer) -> Buffer:
    whole = memoryview(data).cast("B")
    if piece.byte_offset is None or piece.byte_length is None:
        return whole
    begin = piece.byte_offset - (source.byte_offset or 0)
    if begin < 0 or begin + piece.byte_length > len(whole):
        reason = f"bytes {piece.byte_offset} + {piece.byte_length} are not within the {len(whole)} that were read"
        raise ObjectRangeInvalid("rewrite", source.uri, reason)
    return whole[begin : begin + piece.byte_length]
