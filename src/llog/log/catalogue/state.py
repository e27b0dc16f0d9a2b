"""The catalogue of one log in memory: its segments, and per epoch what is derived from them.

Pure: values in, answers out. What must stay true: applying the same records in any order gives the same state (a
property test), so a catalogue that was rebuilt answers as the one that lived through every change. A record counts by
its version: one that comes late does not undo a newer one. DELETE_SEGMENT_FINISHED means gone, whether or not its
record was removed yet.
"""

from __future__ import annotations

from collections.abc import Iterable

from llog.formats.values import SegmentRecord
from llog.log.catalogue.epoch_state import EpochState, epoch_ranges
from llog.log.catalogue.transactions import has_transactions
from llog.log.rewrite.segments import KnownSegment


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
        """Its record is gone."""
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
        """The finished segment with this offset of this epoch."""
        state = self._epochs.get(epoch)
        found = None if state is None else state.find(offset)
        return None if found is None else self._segments[found].record

    def highest_offset(self, epoch: int) -> int | None:
        """The highest offset of this epoch that a finished segment holds."""
        state = self._epochs.get(epoch)
        return None if state is None else state.highest_log_offset

    def segments(self, epoch: int | None = None) -> list[SegmentRecord]:
        """All of them, in every state, by start offset; with `epoch`, those with offsets of it."""
        ids: Iterable[str] = self._segments
        if epoch is not None:
            ids = self._epochs[epoch].all_ids() if epoch in self._epochs else ()
        records = [self._segments[segment_id].record for segment_id in ids]
        return sorted(records, key=lambda record: (record.start_offset, record.end_offset, record.segment_id))

    def log_size_bytes(self, epoch: int | None = None) -> int:
        """Of every object that may be there, replaced and dying ones too: what the log takes up, not what it holds. A
        segment of several epochs counts whole in each."""
        return sum(record.size_bytes for record in self.segments(epoch))

    def next_segment_with_transactions(self, epoch: int, offset: int) -> SegmentRecord | None:
        """The first segment from the one with `offset` on, in this epoch and without a gap, that holds transactions."""
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
