"""A look at one log without a claim: when does retention have something to remove, and is a merge worth it?

It reads the whole index and the segment records of the log, so it happens once after the service starts, and then only
after changes. The answer may be stale: it only decides whether a visit is worth it, and the visit reads the log again.
"""

from __future__ import annotations

from typing import NamedTuple

from llog.compactor.plan import Rules
from llog.formats.values import CompactionRecord, ControlRecord
from llog.log.cleanup.retention import configured_limits, plan_retention_ms
from llog.log.context import LogContext
from llog.log.index import EntryVerdict, entry_of, judge_by
from llog.log.keys import Log
from llog.log.rewrite.publish import select_merge
from llog.log.rewrite.segments import list_segments


class Look(NamedTuple):
    retain_at_ms: int | None
    """None: retention has nothing to do as long as the log does not change."""
    is_mergeable: bool


async def look(
    context: LogContext, log: Log, control: ControlRecord, compaction: CompactionRecord, rules: Rules
) -> Look:
    limits = await configured_limits(context, log.topic, strict=False)
    index = [entry_of(record) async for record in context.metadata.scan_all(context.keys.index(log))]
    entries = [entry for entry in index if entry.value.incarnation == control.incarnation]
    segments = await list_segments(context, log, strict=False)
    merge = select_merge(
        (
            entry
            for entry in entries
            if entry.value.type == "COMPACTED"
            and entry.end_offset < compaction.offset
            and judge_by(control, compaction.offset, entry) is EntryVerdict.VALID
        ),
        target_bytes=rules.merge_max_bytes,
        min_inputs=rules.merge_inputs_min,
    )
    retain_at_ms = plan_retention_ms(
        entries,
        [known.record for known in segments],
        control,
        limits,
        in_flight=None if compaction.in_flight is None else compaction.in_flight.data_key,
        now_ms=context.now_ms(),
        grace_ms=context.options.vacuum_grace_ms,
    )
    return Look(retain_at_ms, merge is not None)
