"""Multi-pass merge: neighbouring segments of one level become one segment of the next, up to a target size.

The same record and the same steps as compaction (`runs`, `publish`); the cursor does not move, since everything merged
lies below it. The segments replaced are retired when their entries are gone; their objects go a grace later.
"""

from __future__ import annotations

from collections.abc import Iterable

from llog.errors import InvalidArgument
from llog.formats.values import ControlRecord
from llog.limits import LOG_COMPACT_ENTRIES_MAX, LOG_MERGE_BYTES_DEFAULT
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log, offset_name
from llog.log.rewrite.publish import KnownCompaction
from llog.log.rewrite.runs import Choice, Compacted, run_once
from llog.log.rewrite.select import Run

INPUTS_MIN = 2


async def merge_once(
    context: LogContext, log: Log, *, target_bytes: int = LOG_MERGE_BYTES_DEFAULT, min_inputs: int = INPUTS_MIN
) -> Compacted | None:
    """Finish what is in flight, or merge the first neighbours that fit; None when there are none."""
    if min_inputs < INPUTS_MIN:
        raise InvalidArgument("min_inputs", f"{min_inputs}: a merge takes at least {INPUTS_MIN} segments")

    async def choose(control: ControlRecord, record: KnownCompaction) -> Choice | None:
        entries = await _segment_entries(context, log, control, record)
        run = select_merge(entries, target_bytes=target_bytes, min_inputs=min_inputs)
        return None if run is None else Choice("MERGE", run.entries[0].value.level + 1, run)

    return await run_once(context, log, choose)


def select_merge(entries: Iterable[Entry], *, target_bytes: int, min_inputs: int) -> Run | None:
    """The first neighbours of one level that together stay within `target_bytes`: at least `min_inputs`, as many as
    fit. `entries` are valid COMPACTED ones in offset order."""
    chosen: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        length = entry.value.byte_length or 0
        follows = (
            bool(chosen)
            and entry.start_offset == chosen[-1].end_offset + 1
            and entry.value.level == chosen[-1].value.level
            and size_bytes + length <= target_bytes
            and len(chosen) < LOG_COMPACT_ENTRIES_MAX
        )
        if not follows:
            if len(chosen) >= min_inputs:
                break
            chosen, size_bytes = [], 0
        chosen.append(entry)
        size_bytes += length
    return Run(tuple(chosen)) if len(chosen) >= min_inputs else None


async def _segment_entries(
    context: LogContext, log: Log, control: ControlRecord, record: KnownCompaction
) -> list[Entry]:
    """Valid COMPACTED entries below the cursor. The swap at the end key's version proves that they were not stale."""
    found = []
    start, stop = offset_name(control.log_start_offset), offset_name(record.value.offset)
    async for item in context.metadata.scan_all(context.keys.index(log), start=start, stop=stop):
        entry = entry_of(item)
        verdict = judge(
            entry,
            incarnation=control.incarnation,
            cursor=record.value.offset,
            log_start_offset=control.log_start_offset,
        )
        if verdict is EntryVerdict.FROM_THE_FUTURE:
            break
        if verdict is EntryVerdict.VALID and entry.value.type == "COMPACTED":
            found.append(entry)
    return found
