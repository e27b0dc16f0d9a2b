"""The catalogue of one log: segment records in the metadata store, and the state derived from them in memory.

A change is written to the store first, then applied in memory, so a failed write leaves memory unchanged and a crash
loses nothing that a rebuild would not find. Every process may change the records (by version, R12); memory is as of the
last `refresh` and this process's own later changes.

- A segment begins as COPY_SEGMENT_STARTED and moves as `llog.log.rewrite.segments` allows; any other move is refused.
- Records of a lower incarnation are leftovers and do not count. A record of a higher incarnation means that the topic
  was deleted and created again: nothing is touched (R13).
- A record that reaches DELETE_SEGMENT_FINISHED is removed: at once where the store is atomic, otherwise after that
  state was written, by its version. A record that a crash leaves counts as gone, and `sweep` removes it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final, Self

import msgspec
from msgspec.structs import asdict, replace

from llog.errors import (
    IllegalSegmentState,
    InvalidArgument,
    LogBusy,
    LogDeleted,
    MetadataStoreError,
    MetadataUncertain,
    PartitionNotInitialized,
    SegmentNotFound,
    VersionConflict,
)
from llog.formats.values import ControlRecord, SegmentRecord, SegmentState, decode_value, encode_value
from llog.log.catalogue.state import CatalogueState, EpochState
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.segments import KnownSegment, list_segments, load, moved, register

# Attempts at a change that conflicts with other processes or gets no answer.
CATALOGUE_ROUNDS_MAX: Final = 8

CHANGEABLE: Final = frozenset({"size_bytes", "max_timestamp_ms", "epochs", "custom_metadata"})
"""What an update may change besides the state: fields that are known once the object is written."""


class SegmentCatalogue:
    """The catalogue of one log. Not for concurrent tasks."""

    def __init__(self, context: LogContext, log: Log) -> None:
        """An empty catalogue; `load` returns a filled one."""
        self._context, self.log = context, log
        self.incarnation = 0
        self._state = CatalogueState()
        self._finished: list[KnownSegment] = []

    @classmethod
    async def load(cls, context: LogContext, log: Log) -> Self:
        """The catalogue as stored. Raises `PartitionNotInitialized` if the log never existed."""
        catalogue = cls(context, log)
        await catalogue.refresh()
        return catalogue

    async def refresh(self) -> None:
        """Rebuild the state in memory from a strict listing."""
        async for _ in self._context.rounds(CATALOGUE_ROUNDS_MAX):
            incarnation = (await self._control()).incarnation
            known = await list_segments(self._context, self.log)
            if all(segment.record.incarnation <= incarnation for segment in known):
                own = [segment for segment in known if segment.record.incarnation == incarnation]
                self.incarnation, self._state = incarnation, CatalogueState(own)
                self._finished = [one for one in own if one.record.state == "DELETE_SEGMENT_FINISHED"]
                return
            # Otherwise a new incarnation began in between.
        raise LogBusy(*self.log, "its topic was created again each time its segments were listed; try again")

    # -- changes ------------------------------------------------------------------------------------------------------
    async def add(self, record: SegmentRecord) -> None:
        """Add a new segment, before its object is written. Adding the same record again has no effect."""
        if record.state != "COPY_SEGMENT_STARTED":
            raise IllegalSegmentState(record.segment_id, "(new)", record.state)
        check_record(record)
        control = await self._control()
        if control.log_state == "DELETED" or control.incarnation != self.incarnation:
            raise LogDeleted(*self.log, "its topic was deleted, so no segment can be added")
        if record.incarnation != self.incarnation:
            raise InvalidArgument("record", f"has incarnation {record.incarnation}, the log {self.incarnation}")
        retry = ChangeRetry(self._context, "add", record.segment_id)
        while True:
            try:
                stored = await load(self._context, self.log, record.segment_id)
                if stored is not None and stored.record != record:
                    raise InvalidArgument("record", f"segment {record.segment_id} already exists with other values")
                if stored is not None:
                    self._state.apply(stored)
                    return
                await register(self._context, self.log, record)
            except MetadataStoreError as error:
                await retry.after(error)

    async def update(self, segment_id: str, state: SegmentState, **changes: Any) -> SegmentRecord | None:
        """Move a segment to `state` with changed fields; return its record. The state it already has is accepted. None
        means that the segment is gone, which is an error unless `state` is DELETE_SEGMENT_FINISHED. The object must be
        deleted before that state, because no process searches for it afterwards.
        """
        unknown = changes.keys() - CHANGEABLE
        if unknown:
            raise InvalidArgument(sorted(unknown)[0], f"cannot be changed; {', '.join(sorted(CHANGEABLE))} can")
        retry = ChangeRetry(self._context, "update", segment_id)
        while True:
            try:
                known = await self._judged(segment_id)
                if known is not None:
                    return await self._move(known, state, changes)
                self._state.drop(segment_id)
                if state != "DELETE_SEGMENT_FINISHED":
                    raise SegmentNotFound(*self.log, segment_id)
                return None
            except MetadataStoreError as error:
                await retry.after(error)

    async def sweep(self) -> int:
        """Remove records of deleted segments that a crash left; return their number."""
        await self.refresh()
        removed = 0
        for known in self._finished:
            key = self._context.keys.segment(self.log, known.record.segment_id)
            try:
                await self._context.metadata.delete(key, expected=known.version)
                removed += 1
            except (VersionConflict, MetadataUncertain):
                continue  # another process was faster, or the next sweep removes it
        return removed

    # -- queries of the state in memory -------------------------------------------------------------------------------
    def get(self, segment_id: str) -> SegmentRecord:
        record = self._state.get(segment_id)
        if record is None:
            raise SegmentNotFound(*self.log, segment_id)
        return record

    def find(self, epoch: int, offset: int) -> SegmentRecord | None:
        return self._state.find(epoch, offset)

    def highest_offset(self, epoch: int) -> int | None:
        return self._state.highest_offset(epoch)

    def segments(self, epoch: int | None = None) -> list[SegmentRecord]:
        return self._state.segments(epoch)

    def log_size_bytes(self, epoch: int | None = None) -> int:
        return self._state.log_size_bytes(epoch)

    def next_segment_with_transactions(self, epoch: int, offset: int) -> SegmentRecord | None:
        return self._state.next_segment_with_transactions(epoch, offset)

    @property
    def epochs(self) -> dict[int, EpochState]:
        return self._state.epochs

    # -- the store ----------------------------------------------------------------------------------------------------
    async def _control(self) -> ControlRecord:
        key = self._context.keys.control(self.log)
        record = await self._context.metadata.get(key, strict=True)
        if record is None:
            raise PartitionNotInitialized(*self.log)
        return decode_value(ControlRecord, record.value, key.path)

    async def _judged(self, segment_id: str) -> KnownSegment | None:
        known = await load(self._context, self.log, segment_id)
        if known is None or known.record.incarnation < self.incarnation:
            return None
        if known.record.incarnation > self.incarnation:
            raise LogDeleted(*self.log, "its topic was deleted and created again: load the catalogue again")
        return known

    async def _move(self, known: KnownSegment, state: SegmentState, changes: dict[str, Any]) -> SegmentRecord:
        record = moved(replace(known.record, **changes), state, self._context.now_ms())
        check_record(record)
        if state == "DELETE_SEGMENT_FINISHED":
            await self._remove(known, record)
            self._state.drop(record.segment_id)
        else:
            version = known.version if record == known.record else await self._put(record, known.version)
            self._state.apply(KnownSegment(record, version))
        return record

    async def _put(self, record: SegmentRecord, version: int) -> int:
        key = self._context.keys.segment(self.log, record.segment_id)
        return await self._context.metadata.put(key, encode_value(record, key.path), expected=version)

    async def _remove(self, known: KnownSegment, finished: SegmentRecord) -> None:
        version = known.version
        if not self._context.metadata.capabilities.atomic_groups and known.record != finished:
            version = await self._put(finished, version)
        key = self._context.keys.segment(self.log, finished.segment_id)
        await self._context.metadata.delete(key, expected=version)


class ChangeRetry:
    """Decides which errors of one change are worth another attempt, and how many. After a write without an answer, an
    unanswered read is retried too, because only a read shows whether the write happened."""

    def __init__(self, context: LogContext, operation: str, segment_id: str) -> None:
        self._context, self._operation, self._segment_id = context, operation, segment_id
        self._rounds, self._uncertain = 0, False

    async def after(self, error: MetadataStoreError) -> None:
        """Return when another attempt is worthwhile; raise otherwise."""
        self._uncertain = self._uncertain or isinstance(error, MetadataUncertain)
        if not isinstance(error, VersionConflict) and not (self._uncertain and error.retriable):
            raise error
        self._rounds += 1
        if self._rounds == CATALOGUE_ROUNDS_MAX:
            reason = f"no certain outcome after {self._rounds} attempts; try again"
            raise MetadataUncertain(self._operation, self._segment_id, reason) from error
        await self._context.back_off(self._rounds)


def check_record(record: SegmentRecord) -> None:
    """Raise `InvalidArgument` for values that no segment can have. msgspec checks only what it decodes, and one record
    that cannot be read back would break every listing of its log."""
    given = {name: value for name, value in asdict(record).items() if value is not msgspec.UNSET}
    try:
        msgspec.convert(given, SegmentRecord)
    except msgspec.ValidationError as error:
        field = re.search(r"\$\.(\w+)", str(error))
        raise InvalidArgument(field[1] if field else "record", str(error)) from None
    if record.end_offset < record.start_offset:
        raise InvalidArgument("end_offset", f"{record.end_offset} is below start_offset {record.start_offset}")
    starts = [start for _, start in sorted(record.epochs.items())]
    inside = all(record.start_offset <= start <= record.end_offset for start in starts)
    if not inside or min(record.epochs, default=0) < 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        held = f"{record.start_offset} … {record.end_offset}"
        raise InvalidArgument("epochs", f"{record.epochs}: epochs from 0 up must have rising starts inside {held}")
