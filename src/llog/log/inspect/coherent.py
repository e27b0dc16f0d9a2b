"""Read all metadata of one log as of one point in time, from a store without snapshots.

A backup and a check read many keys while appends, compaction and retention change them. So they read the two records
that guard all others, then the rest, then the two again:

    1. compaction record, then control record (strictly, in this order)
    2. everything else
    3. both again, in any order: `is_coherent`

When `is_coherent` holds, step 2 shows the log as of the control record of step 1:
- appends meanwhile only add entries at or above its counter, which are ignored; entries below were settled, or are
  `pending` in it (R2);
- an unchanged compaction record means that no run began, moved on or ended. Its end key may have been swapped, and keys
  below the cursor may be gone: a resumed run continues from each of these states;
- an unchanged log start means that retention removed nothing that the control record shows;
- the producer snapshot, read after the index, has passed every entry that was seen swapped (h06), but not the counter:
  only a run that the compaction record names moves it, and that run ends below the counter, because the record was read
  first.
"""

from __future__ import annotations

from typing import NamedTuple

from llog.formats.values import CompactionRecord, CompactionRun, ControlRecord, decode_value
from llog.log.context import LogContext
from llog.log.index import Entry
from llog.log.keys import Log
from llog.stores.metadata.port import Record


class LogGuards(NamedTuple):
    """The control record and the compaction record, which guard all other records of a log."""

    control: ControlRecord
    control_record: Record
    compaction: CompactionRecord | None
    compaction_record: Record | None

    @property
    def compaction_version(self) -> int | None:
        return None if self.compaction_record is None else self.compaction_record.version

    @property
    def cursor(self) -> int:
        """0 when the compaction record is missing or of another incarnation."""
        return cursor_of(self.control, self.compaction)


async def read_guards(context: LogContext, log: Log, *, strict: bool = True, in_order: bool = True) -> LogGuards | None:
    """None when the log has no control record. `in_order=False`, in one call, is enough for step 3."""
    keys = [context.keys.compaction(log), context.keys.control(log)]
    if in_order:
        compaction_record, control_record = [await context.metadata.get(key, strict=strict) for key in keys]
    else:
        compaction_record, control_record = await context.metadata.get_many(keys, strict=strict)
    if control_record is None:
        return None
    compaction = None
    if compaction_record is not None:
        compaction = decode_value(CompactionRecord, compaction_record.value, compaction_record.key.path)
    control = decode_value(ControlRecord, control_record.value, control_record.key.path)
    return LogGuards(control, control_record, compaction, compaction_record)


def is_coherent(before: LogGuards, after: LogGuards | None) -> bool:
    """True when everything read between `before` and `after` belongs to `before`."""
    return (
        after is not None
        and before.compaction_version == after.compaction_version
        and before.control.incarnation == after.control.incarnation
        and before.control.log_state == after.control.log_state
        and before.control.log_start_offset == after.control.log_start_offset
    )


def cursor_of(control: ControlRecord, compaction: CompactionRecord | None) -> int:
    return 0 if compaction is None or compaction.incarnation != control.incarnation else compaction.offset


def run_of(control: ControlRecord, compaction: CompactionRecord | None) -> CompactionRun | None:
    """The run in flight, if it belongs to this incarnation."""
    if compaction is None or compaction.incarnation != control.incarnation:
        return None
    return compaction.in_flight


def is_swapped(run: CompactionRun, end_entry: Entry | None) -> bool:
    """The end key of the run references its segment. (After a recovery, a WAL entry may reference a segment, too.)"""
    return end_entry is not None and end_entry.value.type == "COMPACTED" and end_entry.value.data_key == run.data_key


def shown_state(run: CompactionRun, end_entry: Entry | None) -> str:
    """The state of the run; UPDATING_CURSOR when its end key is swapped and the cursor has not moved yet."""
    if run.state == "WRITING_COMPACTED_INDEX" and is_swapped(run, end_entry):
        return "UPDATING_CURSOR"
    return run.state
