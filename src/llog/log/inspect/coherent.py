"""All of one log's metadata as it was at one instant, read through a port that has no snapshots.

Why it exists: a backup and a check read many keys while writers, compaction and retention move them. The way out is to
read the two records that guard everything, then the rest, then the two again.

    1. compaction record, then control (strictly, in this order)
    2. everything else
    3. both again: `is_coherent`

Why that is enough, when it is coherent. What is looked at is the log as of the control record of step 1:
- appends meanwhile only add entries at or above that counter: they are left out, and what stood below was settled
  or is `pending` there (R2);
- an unchanged compaction record means that no run was begun, moved on or ended: its end key may have been swapped and
  keys below the cursor may have gone, and each of those is a state that a resumed run goes on from;
- an unchanged log start means that retention removed nothing that this control record shows;
- the producer snapshot, read after the index, has passed every entry that was seen swapped (h06), and it has not
  passed the counter: only a run that the record names moves it, and that run ends below the counter, because the
  record was read first.
"""

from __future__ import annotations

from typing import NamedTuple

from llog.formats.values import CompactionRecord, CompactionRun, ControlRecord, decode_value
from llog.log.context import LogContext
from llog.log.index import Entry
from llog.log.keys import Log
from llog.stores.metadata.port import Record


class LogHead(NamedTuple):
    """The two records that guard everything else of a log."""

    control: ControlRecord
    control_record: Record
    compaction: CompactionRecord | None
    compaction_record: Record | None

    @property
    def compaction_version(self) -> int | None:
        return None if self.compaction_record is None else self.compaction_record.version

    @property
    def cursor(self) -> int:
        """0 while the compaction record is missing or of another life."""
        return cursor_of(self.control, self.compaction)


async def read_head(context: LogContext, log: Log, *, strict: bool = True) -> LogHead | None:
    """None: there is no control record."""
    compaction_record = await context.metadata.get(context.keys.compaction(log), strict=strict)
    control_record = await context.metadata.get(context.keys.control(log), strict=strict)
    if control_record is None:
        return None
    compaction = None
    if compaction_record is not None:
        compaction = decode_value(CompactionRecord, compaction_record.value, compaction_record.key.path)
    control = decode_value(ControlRecord, control_record.value, control_record.key.path)
    return LogHead(control, control_record, compaction, compaction_record)


def is_coherent(before: LogHead, after: LogHead | None) -> bool:
    """May what was read in between be taken together with `before`?"""
    return (
        after is not None
        and before.compaction_version == after.compaction_version
        and before.control.incarnation == after.control.incarnation
        and before.control.log_state == after.control.log_state
        and before.control.log_start_offset == after.control.log_start_offset
    )


def cursor_of(control: ControlRecord, compaction: CompactionRecord | None) -> int:
    same_life = compaction is not None and compaction.incarnation == control.incarnation
    return compaction.offset if compaction is not None and same_life else 0


def run_of(control: ControlRecord, compaction: CompactionRecord | None) -> CompactionRun | None:
    """The run in flight of this life."""
    if compaction is None or compaction.incarnation != control.incarnation:
        return None
    return compaction.in_flight


def is_swapped(run: CompactionRun, end_entry: Entry | None) -> bool:
    """Does the run's end key carry its segment? (A WAL entry may name a segment too, after a recovery.)"""
    return end_entry is not None and end_entry.value.type == "COMPACTED" and end_entry.value.data_key == run.data_key


def shown_state(run: CompactionRun, end_entry: Entry | None) -> str:
    """The run's state by its old names: swapped, but with the cursor not moved yet, it is updating the cursor."""
    if run.state == "WRITING_COMPACTED_INDEX" and is_swapped(run, end_entry):
        return "UPDATING_CURSOR"
    return run.state
