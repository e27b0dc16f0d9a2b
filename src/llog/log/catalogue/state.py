"""The catalogue of one log in memory: its segments, and per epoch which segment holds which offset. No I/O.

The state depends on the set of records alone, never on the order in which they were applied (a property test shows it),
so a rebuilt catalogue answers as one that saw every change. A record counts by its version: a late one does not undo a
newer one. DELETE_SEGMENT_FINISHED means gone, whether or not the record was removed.

Segments overlap: a merged segment exists beside its sources until they are retired, and a rewritten one beside the
segment it replaces. The rule that decides is one about sets:

    a finished segment is referenced unless another finished one holds all of its offsets of this epoch
    (of two that hold the same offsets, the one with the higher id, the younger, is referenced)

The referenced segments have rising starts and rising ends, so only the last one that begins at or below an offset can
hold it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from llog.formats.values import SegmentRecord
from llog.log.rewrite.segments import KnownSegment


class EpochRange(NamedTuple):
    """The offsets of one epoch inside a segment, both ends included."""

    start_offset: int
    end_offset: int

    def holds(self, other: EpochRange) -> bool:
        return self.start_offset <= other.start_offset and other.end_offset <= self.end_offset


def epoch_ranges(record: SegmentRecord) -> dict[int, EpochRange]:
    """The offsets of each epoch: it ends where the next epoch begins, the last one at the end of the segment. A segment
    that is being copied has no epochs yet."""
    starts = sorted(record.epochs.items())
    ends = [*(start - 1 for _, start in starts[1:]), record.end_offset]
    ranges = ((epoch, EpochRange(start, end)) for (epoch, start), end in zip(starts, ends, strict=False))
    return {epoch: held for epoch, held in ranges if held.start_offset <= held.end_offset}


class EpochState:
    """The segments of one epoch. Not thread-safe."""

    def __init__(self) -> None:
        self._finished: dict[str, EpochRange] = {}
        self._unfinished: set[str] = set()
        self._starts: list[int] = []
        self._ids: list[str] = []
        """The referenced segments, ordered by start, which is also the order of their ends."""

    def __bool__(self) -> bool:
        return bool(self._finished or self._unfinished)

    @property
    def offset_to_id(self) -> dict[int, str]:
        return dict(zip(self._starts, self._ids, strict=True))

    @property
    def unreferenced_segment_ids(self) -> frozenset[str]:
        """Segments being copied or deleted, and those that another segment replaced."""
        return frozenset(self._unfinished | (self._finished.keys() - set(self._ids)))

    @property
    def highest_log_offset(self) -> int | None:
        """The highest offset in segments that are COPY_SEGMENT_FINISHED."""
        return self._finished[self._ids[-1]].end_offset if self._ids else None

    def find(self, offset: int) -> str | None:
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or self._finished[self._ids[at]].end_offset < offset:
            return None
        return self._ids[at]

    def first_from(self, offset: int) -> int:
        """The index in `referenced` of the first segment that holds `offset` or lies behind it."""
        at = bisect_right(self._starts, offset) - 1
        return at if at >= 0 and self._finished[self._ids[at]].end_offset >= offset else at + 1

    @property
    def referenced(self) -> list[str]:
        return self._ids

    def all_ids(self) -> set[str]:
        return self._unfinished | self._finished.keys()

    # -- changes ------------------------------------------------------------------------------------------------------
    def put_unfinished(self, segment_id: str) -> None:
        self.remove(segment_id)
        self._unfinished.add(segment_id)

    def put_finished(self, segment_id: str, held: EpochRange) -> None:
        self.remove(segment_id)
        self._finished[segment_id] = held
        self._refer(segment_id, held)

    def remove(self, segment_id: str) -> None:
        self._unfinished.discard(segment_id)
        held = self._finished.pop(segment_id, None)
        if held is None:
            return
        at = bisect_left(self._starts, held.start_offset)
        if at == len(self._ids) or self._ids[at] != segment_id:
            return
        del self._starts[at], self._ids[at]
        # Segments that it replaced may be referenced again.
        if len(self._finished) > len(self._ids):
            for other, its in self._finished.items():
                if held.holds(its):
                    self._refer(other, its)

    def _refer(self, segment_id: str, held: EpochRange) -> None:
        """Reference the segment unless a referenced one holds all of it; drop those that it holds."""
        at = bisect_right(self._starts, held.start_offset) - 1
        if at >= 0:
            its = self._finished[self._ids[at]]
            if its.holds(held) and (its != held or self._ids[at] > segment_id):
                return
        first = bisect_left(self._starts, held.start_offset)
        stop = first
        while stop < len(self._ids) and self._finished[self._ids[stop]].end_offset <= held.end_offset:
            stop += 1
        self._starts[first:stop], self._ids[first:stop] = [held.start_offset], [segment_id]


class CatalogueState:
    def __init__(self, known: Iterable[KnownSegment] = ()) -> None:
        self._segments: dict[str, KnownSegment] = {}
        self._epochs: dict[int, EpochState] = {}
        for segment in known:
            self.apply(segment)

    # -- changes ------------------------------------------------------------------------------------------------------
    def apply(self, known: KnownSegment) -> None:
        record = known.record
        before = self._segments.get(record.segment_id)
        if before is not None and known.version < before.version:
            return
        self._forget(before)
        if record.state == "DELETE_SEGMENT_FINISHED":
            self._segments.pop(record.segment_id, None)
            return
        self._segments[record.segment_id] = known
        for epoch, held in epoch_ranges(record).items():
            state = self._epochs.setdefault(epoch, EpochState())
            if record.state == "COPY_SEGMENT_FINISHED":
                state.put_finished(record.segment_id, held)
            else:
                state.put_unfinished(record.segment_id)

    def drop(self, segment_id: str) -> None:
        """Forget a segment whose record is gone."""
        self._forget(self._segments.pop(segment_id, None))

    def _forget(self, known: KnownSegment | None) -> None:
        if known is None:
            return
        for epoch in epoch_ranges(known.record):
            state = self._epochs[epoch]
            state.remove(known.record.segment_id)
            if not state:
                del self._epochs[epoch]

    # -- answers ------------------------------------------------------------------------------------------------------
    @property
    def epochs(self) -> dict[int, EpochState]:
        return self._epochs

    def get(self, segment_id: str) -> SegmentRecord | None:
        known = self._segments.get(segment_id)
        return None if known is None else known.record

    def find(self, epoch: int, offset: int) -> SegmentRecord | None:
        """The finished segment that holds this offset of this epoch."""
        state = self._epochs.get(epoch)
        found = None if state is None else state.find(offset)
        return None if found is None else self._segments[found].record

    def highest_offset(self, epoch: int) -> int | None:
        """The highest offset of this epoch that a finished segment holds."""
        state = self._epochs.get(epoch)
        return None if state is None else state.highest_log_offset

    def segments(self, epoch: int | None = None) -> list[SegmentRecord]:
        """All segments in every state, by start offset; with `epoch`, those with offsets of it."""
        ids: Iterable[str] = self._segments
        if epoch is not None:
            ids = self._epochs[epoch].all_ids() if epoch in self._epochs else ()
        records = [self._segments[segment_id].record for segment_id in ids]
        return sorted(records, key=lambda record: (record.start_offset, record.end_offset, record.segment_id))

    def log_size_bytes(self, epoch: int | None = None) -> int:
        """The bytes of every object that may exist, including replaced segments and those being deleted. A segment of
        several epochs counts fully in each."""
        return sum(record.size_bytes for record in self.segments(epoch))

    def next_segment_with_transactions(self, epoch: int, offset: int) -> SegmentRecord | None:
        """The first segment with transactions, from `offset` on, in this epoch and before a gap."""
        state = self._epochs.get(epoch)
        if state is None or state.find(offset) is None:
            return None
        reached = offset
        for segment_id in state.referenced[state.first_from(offset) :]:
            record = self._segments[segment_id].record
            held = epoch_ranges(record)[epoch]
            if held.start_offset > reached:
                return None
            if has_transactions(record):
                return record
            reached = held.end_offset + 1
        return None


# -- transactions ----------------------------------------------------------------------------------------------------


class _TransactionMark(msgspec.Struct):
    transactions: bool = False


_MARK_DECODER: Final = msgspec.json.Decoder(_TransactionMark)


def has_transactions(record: SegmentRecord) -> bool:
    """The segment's custom metadata is a JSON object with `"transactions": true`. Other custom metadata means no.

    No front end accepts transactions in this release, so compaction writes no such mark.
    """
    if not record.custom_metadata.startswith("{"):
        return False
    try:
        return _MARK_DECODER.decode(record.custom_metadata).transactions
    except msgspec.DecodeError:
        return False
