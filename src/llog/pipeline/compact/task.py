"""The task that rewrites a window: it reads each object of the window once and writes one segment per run.

A WAL blob holds slices of many logs. Because all runs of a window share what was read, a blob costs one GET however
many partitions it holds. Merges are windows too: their objects are segments, each of one run.

Runs of fresh batches, nearly all runs, have a place in the window's room (`room`): each blob is copied there as it
arrives. Any other run (a merge, an append in the old encoding, an object of unknown length) is built by itself, within
a budget of bytes.

- Checksums are compared before anything is written.
- An expected error is the outcome of one run: a damaged slice or a missing blob does not fail other logs.
- Memory: the room and COMPACT_TASK_READS_MAX blobs; besides it the objects that other runs wait for, plus
  COMPACT_TASK_SEGMENT_BYTES_MAX of segments (a store may copy its input). An object is dropped after its last use.
- The event loop never computes: threads check, copy and patch slices, and the kernels release the interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from llog.concurrency import ByteBudget
from llog.errors import LlogError, ObjectRangeInvalid, UnsupportedFormat
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.record_batch import BatchColumns, BatchRule, walk
from llog.formats.segment import Segment, SegmentBuilder, parse_footer
from llog.formats.values import IndexEntry
from llog.limits import MIB, OBJECT_FILE_THREADS
from llog.log.index import Entry
from llog.log.read.slices import SegmentCheck, encode_payloads, patch_slices
from llog.pipeline.compact.plan import (
    RunOutcome,
    Slice,
    SourceObject,
    Window,
    WindowRun,
    Written,
    WrittenSegment,
    finished,
)
from llog.pipeline.compact.room import Room, borrowed
from llog.pipeline.runtime.tasks import Task, TaskFailed, TaskTools

# Windows that one process rewrites at a time: the threads of one use all cores, and its bytes are in memory.
COMPACT_TASKS_IN_PROCESS: Final = 1
# Inside one task: objects being read, segments being built or put, and the bytes of these.
COMPACT_TASK_READS_MAX: Final = 8
COMPACT_TASK_SEGMENTS_MAX: Final = 4
COMPACT_TASK_SEGMENT_BYTES_MAX: Final = 128 * MIB
# Segments of a room on their way into the store; their bytes are COMPACT_TASK_SEGMENT_BYTES_MAX at most. A file store
# syncs as many at the same time as it has threads.
COMPACT_ROOM_PUTS_MAX: Final = OBJECT_FILE_THREADS

REWRITE_WINDOW: Final = Task(f"{__name__}:rewrite_window", Window, Written, at_once=COMPACT_TASKS_IN_PROCESS)


async def rewrite_window(tools: TaskTools, window: Window) -> Written:
    """Announces the outcome of each run as a part (`tools.on_part`) as soon as its segment is written."""
    room = Room(window)
    with borrowed(room.byte_length) as memory:
        room.furnish(memory)
        return await _rewritten(tools, window, room)


async def _rewritten(tools: TaskTools, window: Window, room: Room) -> Written:
    store = await tools.open_store(window.store_url)
    sources = _Sources(tools, window, room)
    moving = _MovingIn(sources, room)
    slots, puts = asyncio.Semaphore(COMPACT_TASK_SEGMENTS_MAX), asyncio.Semaphore(COMPACT_ROOM_PUTS_MAX)
    budget = ByteBudget(COMPACT_TASK_SEGMENT_BYTES_MAX)

    async def put(run: WindowRun, segment: Segment) -> RunOutcome:
        await store.put(run.name, segment.buffers)
        return RunOutcome(segment=WrittenSegment(*segment[1:]))

    async def from_room(number: int, run: WindowRun) -> RunOutcome:
        await moving.complete(number)
        async with puts, budget.take(run.byte_length):
            return await put(run, await asyncio.to_thread(room.build, number))

    async def by_itself(run: WindowRun) -> RunOutcome:
        async with slots, budget.take(run.byte_length):
            try:
                return await put(run, await _built(sources, run))
            finally:
                sources.done_with(_objects_of(run))

    async def one(number: int, run: WindowRun) -> RunOutcome:
        try:
            outcome = await (from_room(number, run) if number in moving else by_itself(run))
        except LlogError as error:
            retriable = getattr(error, "retriable", False)
            outcome = RunOutcome(failed=TaskFailed(type(error).__name__, str(error), retriable))
        tools.on_part(number, outcome)
        return outcome

    try:
        async with asyncio.TaskGroup() as group:
            for source in room.objects:
                group.create_task(moving.move_in(source))
            tasks = [group.create_task(one(number, run)) for number, run in enumerate(window.runs)]
    finally:
        await sources.close()
    return Written(tuple(task.result() for task in tasks), sources.objects_read, sources.bytes_read)


def _objects_of(run: WindowRun) -> set[int]:
    return {piece.source for piece in run.slices}


async def _built(sources: _Sources, run: WindowRun) -> Segment:
    reading = {number: sources.reading(number) for number in _objects_of(run)}  # all of them begin now
    buffers = {number: await sources.read(task) for number, task in reading.items()}
    return await asyncio.to_thread(_build, sources.window, run, buffers)


class _MovingIn:
    """Moves blobs into the room, and knows which runs are complete there."""

    def __init__(self, sources: _Sources, room: Room) -> None:
        self._sources, self._room = sources, room
        self._hands = asyncio.Semaphore(COMPACT_TASK_READS_MAX)
        self._missing = Counter(run for source in room.objects for run in room.runs_in(source))
        self._whole = {run: asyncio.Event() for run in room.runs}

    def __contains__(self, run: int) -> bool:
        return run in self._whole

    async def complete(self, run: int) -> None:
        await self._whole[run].wait()

    async def move_in(self, source: int) -> None:
        try:
            async with self._hands:
                data = await self._sources.read(self._sources.reading(source))
                await asyncio.to_thread(self._room.place, source, data)
        except LlogError as error:
            self._room.fail(source, error)
        finally:
            self._sources.done_with([source])
        for run in self._room.runs_in(source):
            self._missing[run] -= 1
            if not self._missing[run]:
                self._whole[run].set()


class _Sources:
    """The window's objects: each is read once, on first use, and kept until its last user is done."""

    def __init__(self, tools: TaskTools, window: Window, room: Room) -> None:
        self.window = window
        self.objects_read = self.bytes_read = 0
        self._tools = tools
        self._slots = asyncio.Semaphore(COMPACT_TASK_READS_MAX)
        self._reading: dict[int, asyncio.Task[Buffer]] = {}
        by_themselves = (run for number, run in enumerate(window.runs) if number not in set(room.runs))
        self._waiting = Counter(number for run in by_themselves for number in _objects_of(run))
        self._waiting.update(room.objects)

    def reading(self, number: int) -> asyncio.Task[Buffer]:
        task = self._reading.get(number)
        if task is None:
            task = self._reading[number] = asyncio.create_task(self._read(self.window.objects[number]))
        return task

    async def read(self, task: asyncio.Task[Buffer]) -> Buffer:
        # Shielded: a cancelled run must not cancel the read for the others.
        return task.result() if task.done() else await asyncio.shield(task)

    def done_with(self, numbers: Iterable[int]) -> None:
        for number in numbers:
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


def _build(window: Window, run: WindowRun, buffers: dict[int, Buffer]) -> Segment:
    """The segment of a run, ready to be put. Raises `FormatError` for bytes that contradict their entry."""
    builder = SegmentBuilder(topic=run.topic, partition=run.partition, incarnation=run.incarnation)
    epochs: dict[int, int] = {}
    for piece in run.slices:
        source = window.objects[piece.source]
        entry = _entry_of(piece, source, run.incarnation)
        final = final_batches(_bytes_of(piece, source, buffers[piece.source]), entry)
        builder.add(final.data, final.columns)
        for epoch, start_offset in final.epochs.items():
            epochs.setdefault(epoch, start_offset)
    return finished(builder, window, run, epochs)


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
