"""Read: from an offset to the entry that covers it, from the entry to bytes, from bytes to records.

What must stay true: an offset beyond the end is refused only after a strict read (a deposed leader's lower counter
would make a consumer reset, h10); a 404 on an object and a gap in the index mean "look again with fresh metadata",
never "the end" (R10, h21); what still does not fit after strict rounds is `InconsistentReadState`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from llog.errors import FormatError, InconsistentReadState, ObjectNotFound, OffsetOutOfRange, PartitionNotInitialized
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.limits import LOG_READ_ROUNDS_MAX, LOG_READ_STRICT_ROUNDS
from llog.log.context import LogContext
from llog.log.decode import decode_segment, decode_slice
from llog.log.index import Entry, Verdict, entry_of, index_entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.records import LogRecord, RecordRun


class LogView(NamedTuple):
    """A log as one read saw it."""

    control: ControlRecord
    version: int
    cursor: int

    @property
    def next_offset(self) -> int:
        return self.control.sequence_counter


async def view(context: LogContext, log: Log, *, strict: bool = False) -> LogView:
    """Control and cursor. `PartitionNotInitialized` only after a strict look."""
    keys = [context.keys.control(log), context.keys.compaction(log)]
    control_record, compaction_record = await context.metadata.get_many(keys, strict=strict)
    if control_record is None:
        if strict:
            raise PartitionNotInitialized(*log)
        return await view(context, log, strict=True)
    control = decode_value(ControlRecord, control_record.value, control_record.key.path)
    if control.log_state == "DELETED":
        raise PartitionNotInitialized(*log)
    cursor = 0
    if compaction_record is not None:
        compaction = decode_value(CompactionRecord, compaction_record.value, compaction_record.key.path)
        cursor = compaction.offset if compaction.incarnation == control.incarnation else 0
    return LogView(control, control_record.version, cursor)


async def checked_view(context: LogContext, log: Log, offset: int, *, end_is_data: bool) -> LogView:
    """The view in which `offset` is readable, or the end when that is not `end_is_data`'s business."""
    for strict in (False, True):
        seen = await view(context, log, strict=strict)
        last_fine = seen.next_offset - (1 if end_is_data else 0)
        if seen.control.log_start_offset <= offset <= last_fine:
            return seen
    raise OffsetOutOfRange(*log, offset, seen.control.log_start_offset, seen.next_offset)


async def find_entry(context: LogContext, log: Log, offset: int, seen: LogView) -> tuple[Entry, LogView]:
    """The valid entry that covers `offset`, with the view it was judged by."""
    for round_number in range(LOG_READ_ROUNDS_MAX):
        strict = round_number >= LOG_READ_ROUNDS_MAX - LOG_READ_STRICT_ROUNDS
        if round_number:
            await context.back_off(round_number)
            seen = await view(context, log, strict=strict)
            if offset < seen.control.log_start_offset:
                raise OffsetOutOfRange(*log, offset, seen.control.log_start_offset, seen.next_offset)
        entry = await _first_valid(context, log, offset, seen, strict=strict)
        if entry is not None and entry.covers(offset):
            return entry, seen
        pending = seen.control.pending
        if pending is not None and pending.start_offset <= offset <= pending.end_offset:
            return Entry(pending.end_offset, index_entry_of(pending), -1), seen
    raise InconsistentReadState(*log, f"no entry covers offset {offset}, and no append is pending there")


async def _first_valid(context: LogContext, log: Log, offset: int, seen: LogView, *, strict: bool) -> Entry | None:
    control = seen.control
    async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(offset), strict=strict):
        entry = entry_of(record)
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=seen.cursor, log_start_offset=control.log_start_offset
        )
        if verdict is Verdict.VALID:
            return entry
        if verdict is Verdict.FROM_THE_FUTURE:
            return None
    return None


async def read_entry(context: LogContext, log: Log, entry: Entry, offset: int) -> RecordRun:
    """The records of one entry from `offset` on."""
    store, name = await context.find_object(entry.value.data_key)
    if entry.value.type == "COMPACTED" and entry.value.encoding == "kafka-v2":
        return await decode_segment(store, name, entry, offset)
    if entry.value.byte_offset is None or entry.value.byte_length is None:
        data = await store.get(name)  # an object of its own, as older writers made them
    else:
        data = await store.get_range(name, entry.value.byte_offset, entry.value.byte_length)
    return decode_slice(data, entry, offset)


async def read_run(context: LogContext, log: Log, offset: int, *, end_is_data: bool) -> RecordRun | None:
    """The records that lie with `offset`, from it on; None at the end of the log (when that is fine)."""
    seen = await checked_view(context, log, offset, end_is_data=end_is_data)
    trouble: Exception | None = None
    for round_number in range(LOG_READ_ROUNDS_MAX):
        if offset == seen.next_offset:
            return None
        entry, seen = await find_entry(context, log, offset, seen)
        try:
            return await read_entry(context, log, entry, offset)
        except ObjectNotFound as error:
            # The entry changed under us: compaction swapped it and vacuum took the blob (R10).
            trouble = error
        await context.back_off(round_number)
        seen = await view(context, log, strict=round_number >= LOG_READ_ROUNDS_MAX - LOG_READ_STRICT_ROUNDS - 1)
    raise InconsistentReadState(*log, f"offset {offset}: {trouble}") from trouble


async def read_offset(context: LogContext, log: Log, offset: int) -> LogRecord:
    """The record at `offset`; for one that key compaction removed, the next that is left."""
    while True:
        try:
            run = await read_run(context, log, offset, end_is_data=True)
        except FormatError as error:
            raise InconsistentReadState(*log, f"offset {offset}: {error}") from error
        assert run is not None
        for record in run.records():
            return record
        offset = run.next_offset


async def iter_runs(context: LogContext, log: Log, offset: int) -> AsyncIterator[RecordRun]:
    """Runs of records from `offset` to the end as it is when it is reached. No gap is ever passed over."""
    while True:
        run = await read_run(context, log, offset, end_is_data=False)
        if run is None:
            return
        yield run
        offset = run.next_offset
