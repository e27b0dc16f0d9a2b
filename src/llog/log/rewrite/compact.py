"""Compaction of one log: the next run of fresh WAL entries becomes one segment of its own (level 1).

Which entries is `select`, how they are rewritten is `rewrite`, in which order the result becomes visible is `publish`.
"""

from __future__ import annotations

from llog.formats.values import ControlRecord
from llog.limits import LOG_COMPACT_BYTES_DEFAULT, LOG_COMPACT_ENTRIES_MAX
from llog.log.context import LogContext
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, offset_name
from llog.log.rewrite.publish import KnownCompaction
from llog.log.rewrite.runs import Choice, Compacted, run_once
from llog.log.rewrite.select import Bounds, select_run

__all__ = ["Compacted", "compact_once"]


async def compact_once(
    context: LogContext,
    log: Log,
    *,
    max_offsets: int = 2**62,
    target_bytes: int = LOG_COMPACT_BYTES_DEFAULT,
    min_age_ms: int = 0,
) -> Compacted | None:
    """Finish what is in flight, or compact the next run; None when nothing is left to do."""

    async def choose(control: ControlRecord, record: KnownCompaction) -> Choice | None:
        bounds = Bounds(
            incarnation=control.incarnation,
            cursor=record.value.offset,
            log_start_offset=control.log_start_offset,
            counter=control.sequence_counter,
            max_offsets=max_offsets,
            target_bytes=target_bytes,
            # No age asked for means none looked at: a writer's clock may be ahead of ours.
            created_before_ms=context.now_ms() - min_age_ms if min_age_ms else 2**63 - 1,
        )
        run = select_run(await _entries(context, log, bounds), bounds)
        return None if run is None else Choice("COMPACT", 1, run)

    return await run_once(context, log, choose)


async def _entries(context: LogContext, log: Log, bounds: Bounds) -> list[Entry]:
    floor = max(bounds.cursor, bounds.log_start_offset)
    entries: list[Entry] = []
    async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(floor)):
        entries.append(entry_of(record))
        if len(entries) == LOG_COMPACT_ENTRIES_MAX:
            break
    return entries
