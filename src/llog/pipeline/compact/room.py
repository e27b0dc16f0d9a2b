"""The room of a window: one block of memory in which the slices of its blobs are ordered by run.

    blobs:  slice of A · slice of B · slice of C │ slice of A · slice of B · …        as they were appended
    room:   A A A A … │ B B B B … │ C C C C …                                         as segments need them

Nearly every run has a slice in nearly every blob, so the whole window is in memory before its first segment is
complete. Copying each slice to its place while its blob is in the cache frees the blob's buffer at once; one call per
run then patches all offsets in place. `borrowed` keeps the memory for the next window.

- Checksums are compared before a slice is copied. A slice that contradicts its entry fails its own run.
- Slices never overlap in the room, and a run is read only after all its slices are placed; so threads that place blobs
  concurrently need no lock.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from llog.errors import FormatError, LlogError, ObjectRangeInvalid
from llog.formats.buffers import Buffer
from llog.formats.records.record_batch import BatchColumns, patch_offsets
from llog.formats.records.record_columns import Bytes, Longs
from llog.formats.segment import Segment, SegmentBuilder
from llog.limits import COMPACT_WINDOW_BYTES_MAX, MIB
from llog.log.read.slices import check_slices
from llog.pipeline.compact.plan import Slice, Window, WindowRun, finished

# Memory that a process keeps for its next window, and for how long after the last one. A window is
# COMPACT_WINDOW_BYTES_MAX and half an object.
COMPACT_ROOM_KEPT_BYTES_MAX: Final = COMPACT_WINDOW_BYTES_MAX + 64 * MIB
COMPACT_ROOM_KEPT_MS: Final = 5_000

_kept: Final[list[tuple[mmap.mmap, object]]] = []
"""At most one mapping, with a mark of when it was kept. Taking it and keeping it are atomic: event loops of several
threads may do so."""


@contextmanager
def borrowed(byte_length: int) -> Iterator[Bytes]:
    """`byte_length` bytes, of any content, for as long as the caller or a view of them exists."""
    if byte_length == 0:
        yield np.empty(0, np.uint8)
        return
    mapping = _taken(byte_length)
    try:
        yield np.frombuffer(mapping, np.uint8, byte_length)
    finally:
        # Later: the caller's frame still holds a view of the array.
        asyncio.get_running_loop().call_soon(_give_back, mapping)


def _taken(byte_length: int) -> mmap.mmap:
    with suppress(IndexError):
        kept, _ = _kept.pop()
        if len(kept) >= byte_length:
            return kept
    mapping = mmap.mmap(-1, byte_length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _give_back(mapping: mmap.mmap) -> None:
    if len(mapping) > COMPACT_ROOM_KEPT_BYTES_MAX or not _is_free(mapping):
        return  # freed with the last view
    mark = object()
    _kept[:] = [(mapping, mark)]
    asyncio.get_running_loop().call_later(COMPACT_ROOM_KEPT_MS / 1_000, _drop, mark)


def _is_free(mapping: mmap.mmap) -> bool:
    """Whether no view of the mapping exists: a mapping with views refuses to be resized."""
    try:
        mapping.resize(len(mapping))
    except (BufferError, OSError, SystemError):
        return False
    return True


def _drop(mark: object) -> None:
    """Drop the kept mapping, unless it was taken and kept again since then."""
    if _kept and _kept[0][1] is mark:
        _kept.clear()


# -- room --------------------------------------------------------------------------------------------------------------


class _RoomPlace(NamedTuple):
    """A slice, from where it lies in what was read of its blob to where it belongs."""

    begin: int
    byte_length: int
    at: int
    msg_count: int
    run: int
    piece: int
    """Which slice of the run it is."""

    @property
    def end(self) -> int:
        return self.begin + self.byte_length


class _Placed(NamedTuple):
    """The columns of a placed slice, with positions relative to where it was walked."""

    fields: Longs
    walked_at: int


def has_room(run: WindowRun) -> bool:
    """Whether all slices of the run are record batches, not empty, of known length."""
    return all(
        piece.type == "WAL" and piece.encoding == "kafka-v2" and piece.byte_offset is not None and piece.byte_length
        for piece in run.slices
    )


class Room:
    """Holds those runs of a window that `has_room` accepts. The caller reads objects and provides the memory."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._begins: dict[int, int] = {}
        self._places: dict[int, list[_RoomPlace]] = {}
        """By object, in the order of its bytes."""
        self._placed: dict[int, list[_Placed | None]] = {}
        self._failed: dict[int, dict[int, LlogError]] = {}
        """Of each run: which of its slices failed, and why."""
        at = 0
        for number, run in enumerate(window.runs):
            if has_room(run):
                self._begins[number] = at
                self._placed[number] = [None] * len(run.slices)
                at = self._plan(number, run, at)
        for places in self._places.values():
            places.sort()
        self.byte_length = at
        self._room: Bytes = np.empty(0, np.uint8)

    def furnish(self, memory: Bytes) -> None:
        """Set the memory, `byte_length` bytes of any content, before anything is placed."""
        assert len(memory) == self.byte_length
        self._room = memory

    def _plan(self, number: int, run: WindowRun, at: int) -> int:
        for position, piece in enumerate(run.slices):
            assert piece.byte_offset is not None
            assert piece.byte_length is not None
            begin = piece.byte_offset - (self._window.objects[piece.source].byte_offset or 0)
            place = _RoomPlace(begin, piece.byte_length, at, piece.msg_count, number, position)
            self._places.setdefault(piece.source, []).append(place)
            at += piece.byte_length
        return at

    @property
    def runs(self) -> Sequence[int]:
        return list(self._begins)

    @property
    def objects(self) -> Sequence[int]:
        """Objects that must be placed, in the order of the window."""
        return sorted(self._places)

    def runs_in(self, source: int) -> set[int]:
        return {place.run for place in self._places[source]}

    def fail(self, source: int, error: LlogError) -> None:
        """Fail every slice of an object that could not be read."""
        for place in self._places[source]:
            self._fail(place, error)

    def _fail(self, place: _RoomPlace, error: LlogError) -> None:
        self._failed.setdefault(place.run, {})[place.piece] = error

    # -- in threads ----------------------------------------------------------------------------------------------------

    def place(self, source: int, data: Buffer) -> None:
        """Check the slices of an object and copy them to their places."""
        view = memoryview(data).cast("B").toreadonly()
        uri = self._window.objects[source].uri
        within: list[_RoomPlace] = []
        for place in self._places[source]:
            if place.begin < 0 or place.end > len(view):
                reason = f"bytes {place.begin} + {place.byte_length} are not within the {len(view)} that were read"
                self._fail(place, ObjectRangeInvalid("rewrite", uri, reason))
            else:
                within.append(place)
        for stretch in _stretches(within):
            try:
                self._copy(stretch, view, uri)
            except FormatError:
                self._copy_one_by_one(stretch, view, uri)

    def _copy_one_by_one(self, stretch: Sequence[_RoomPlace], view: memoryview, uri: str) -> None:
        """After a failed stretch: only the damaged slices fail, each with its own error."""
        for place in stretch:
            try:
                self._copy([place], view, uri)
            except FormatError as error:
                self._fail(place, error)

    def _copy(self, stretch: Sequence[_RoomPlace], view: memoryview, uri: str) -> None:
        begin = stretch[0].begin
        walked = view[begin : stretch[-1].end]
        lengths, counts = [place.byte_length for place in stretch], [place.msg_count for place in stretch]
        batches, rows = check_slices(walked, lengths, counts, uri)
        source = np.frombuffer(walked, np.uint8)
        for place, (first, stop) in zip(stretch, pairwise(rows), strict=True):
            at = place.begin - begin
            self._room[place.at : place.at + place.byte_length] = source[at : at + place.byte_length]
            self._placed[place.run][place.piece] = _Placed(batches.fields[:, first:stop], at)

    def build(self, number: int) -> Segment:
        """The segment of a run, after all its objects were placed. Raises the error of the first one that failed."""
        if failed := self._failed.get(number):
            raise failed[min(failed)]
        run, placed = self._window.runs[number], self._placed.pop(number)
        builder = SegmentBuilder(topic=run.topic, partition=run.partition, incarnation=run.incarnation)
        epochs: dict[int, int] = {}
        at = self._begins[number]
        for group in _groups(run.slices, placed):
            length = sum(piece.byte_length or 0 for piece, _ in group)
            data = self._room[at : at + length].data
            start_offset, epoch = _start_offset(group[0][0]), group[0][0].epoch
            builder.add(data, patch_offsets(data, _columns(group), start_offset, epoch))
            epochs.setdefault(epoch, start_offset)
            at += length
        return finished(builder, self._window, run, epochs)


def _stretches(places: Sequence[_RoomPlace]) -> Iterator[list[_RoomPlace]]:
    """Slices that lie back to back, which are walked at once."""
    stretch: list[_RoomPlace] = []
    for place in places:
        if stretch and place.begin != stretch[-1].end:
            yield stretch
            stretch = []
        stretch.append(place)
    if stretch:
        yield stretch


_Group = list[tuple[Slice, _Placed | None]]


def _groups(slices: Sequence[Slice], placed: Sequence[_Placed | None]) -> Iterator[_Group]:
    """Slices that get their offsets by one call: of one epoch, each beginning where the one before it ends."""
    group: _Group = []
    for pair in zip(slices, placed, strict=True):
        if group and (group[-1][0].epoch, group[-1][0].end_offset + 1) != (pair[0].epoch, _start_offset(pair[0])):
            yield group
            group = []
        group.append(pair)
    yield group


def _start_offset(piece: Slice) -> int:
    return piece.end_offset - piece.msg_count + 1


def _columns(group: _Group) -> BatchColumns:
    """The batches of slices that are neighbours now, counted from the first of them."""
    parts, shifts, counts = list[Longs](), list[int](), list[int]()
    at = 0
    for piece, placed in group:
        assert placed is not None
        parts.append(placed.fields)
        shifts.append(at - placed.walked_at)
        counts.append(placed.fields.shape[1])
        at += piece.byte_length or 0
    columns = BatchColumns(np.concatenate(parts, axis=1))
    columns.position[:] += np.repeat(shifts, counts)
    return columns
