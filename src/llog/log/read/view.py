"""A log as one read saw it: control record and compaction cursor.

What must stay true: "there is no such log" and "there is no such offset" are said only after a strict read; a deposed
leader's lower counter would make a consumer reset (h10).
"""

from __future__ import annotations

from typing import NamedTuple

from llog.errors import OffsetOutOfRange, PartitionNotInitialized
from llog.formats.values import CompactionRecord, ControlRecord, decode_value
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.port import Record


class LogView(NamedTuple):
    """A log as one read saw it."""

    control: ControlRecord
    version: int
    cursor: int
    compaction_version: int = 0
    """Of the record that holds the cursor: the same one, the same entries have been rewritten."""

    @property
    def next_offset(self) -> int:
        return self.control.sequence_counter

    @property
    def log_start_offset(self) -> int:
        return self.control.log_start_offset


async def view(context: LogContext, log: Log, *, strict: bool = False) -> LogView:
    """Control and cursor. `PartitionNotInitialized` only after a strict look."""
    keys = [context.keys.control(log), context.keys.compaction(log)]
    control_record, compaction_record = await context.metadata.get_many(keys, strict=strict)
    seen = view_of(control_record, compaction_record)
    if seen is not None:
        return seen
    if strict:
        raise PartitionNotInitialized(*log)
    return await view(context, log, strict=True)


def view_of(control_record: Record | None, compaction_record: Record | None) -> LogView | None:
    """None: no such log, as far as this read tells."""
    if control_record is None:
        return None
    control = decode_value(ControlRecord, control_record.value, control_record.key.path)
    if control.log_state == "DELETED":
        return None
    if compaction_record is None:
        return LogView(control, control_record.version, cursor=0)
    compaction = decode_value(CompactionRecord, compaction_record.value, compaction_record.key.path)
    cursor = compaction.offset if compaction.incarnation == control.incarnation else 0
    return LogView(control, control_record.version, cursor, compaction_record.version)


async def checked_view(context: LogContext, log: Log, offset: int, *, end_is_data: bool) -> LogView:
    """A view in which `offset` is readable; the end counts as readable unless `end_is_data`."""
    for strict in (False, True):
        seen = await view(context, log, strict=strict)
        last_fine = seen.next_offset - (1 if end_is_data else 0)
        if seen.log_start_offset <= offset <= last_fine:
            return seen
    raise OffsetOutOfRange(*log, offset, seen.log_start_offset, seen.next_offset)
