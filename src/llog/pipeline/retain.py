"""Retention as a job: applies the limits of every log, a few logs at a time. It changes metadata only, without tasks.

A log that fails stops no other; the report holds its error. A dry run writes nothing, not even what settling would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from llog.concurrency import gather_bounded
from llog.errors import LlogError, PartitionNotInitialized
from llog.log.cleanup.retention import Limits, configured_limits, planned_log_start, retain
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge_by
from llog.log.keys import Log
from llog.log.read.view import view

# Logs whose limits are applied at the same time.
RETAIN_LOGS_IN_FLIGHT_MAX: Final = 16


class RetainedLog(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    log_start_before: int = 0
    log_start_offset: int = 0
    entries_removed: int = 0
    segments_removed: int = 0
    """0 in a dry run, which does not count them."""
    bytes_released: int = 0
    """Bytes of the removed entries. The next vacuum deletes their blobs."""
    error: str = ""
    retriable: bool = False


class RetainReport(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool
    logs: tuple[RetainedLog, ...]
    """Logs with a moved start, a removed entry or segment, or an error."""
    logs_looked_at: int
    entries_removed: int
    segments_removed: int
    bytes_released: int
    failed: int


OnRetained = Callable[[RetainedLog], None]


async def retain_logs(
    context: LogContext, logs: Sequence[Log], *, dry_run: bool = False, on_done: OnRetained | None = None
) -> RetainReport:
    """Apply each topic's limits; also finishes interrupted runs."""

    async def retain_one(log: Log) -> RetainedLog:
        retained = await _attempted(context, log, dry_run=dry_run)
        if on_done is not None:
            on_done(retained)
        return retained

    done = await gather_bounded(logs, retain_one, limit=RETAIN_LOGS_IN_FLIGHT_MAX)
    reports = [
        log
        for log in done
        if log.error or log.entries_removed or log.segments_removed or log.log_start_offset > log.log_start_before
    ]
    return RetainReport(
        dry_run=dry_run,
        logs=tuple(reports),
        logs_looked_at=len(done),
        entries_removed=sum(log.entries_removed for log in done),
        segments_removed=sum(log.segments_removed for log in done),
        bytes_released=sum(log.bytes_released for log in done),
        failed=sum(bool(log.error) for log in done),
    )


async def _attempted(context: LogContext, log: Log, *, dry_run: bool) -> RetainedLog:
    try:
        limits = await configured_limits(context, log.topic)
        plan = await _plan(context, log, limits)
        if dry_run:
            return plan
        done = await retain(context, log, limits)
    except PartitionNotInitialized:
        # A partition without any append yet, or a topic that was deleted meanwhile: there is nothing to remove.
        return RetainedLog(topic=log.topic, partition=log.partition)
    except LlogError as error:
        retriable = getattr(error, "retriable", False)
        return RetainedLog(topic=log.topic, partition=log.partition, error=str(error), retriable=retriable)
    return replace(
        plan,
        log_start_offset=done.log_start_offset,
        entries_removed=done.entries_removed,
        segments_removed=done.segments_removed,
        bytes_released=plan.bytes_released if done.entries_removed else 0,
    )


async def _plan(context: LogContext, log: Log, limits: Limits) -> RetainedLog:
    """What retention would do to the log now."""
    seen = await view(context, log, strict=True)
    control = seen.control
    entries: list[Entry] = []
    async for record in context.metadata.scan_all(context.keys.index(log), strict=True):
        entry = entry_of(record)
        if judge_by(control, seen.cursor, entry) in (EntryVerdict.VALID, EntryVerdict.BELOW_START):
            entries.append(entry)
    start = await planned_log_start(context, control, entries, limits)
    gone = [entry for entry in entries if entry.end_offset < start]
    return RetainedLog(
        topic=log.topic,
        partition=log.partition,
        log_start_before=control.log_start_offset,
        log_start_offset=start,
        entries_removed=len(gone),
        bytes_released=sum(entry.value.byte_length or 0 for entry in gone),
    )
