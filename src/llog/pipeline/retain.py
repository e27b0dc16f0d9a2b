"""Retention as a job: applies the limits of every log, a few logs at a time. It changes metadata only, without tasks.

A log that fails stops no other; the report holds its error. A dry run writes nothing, not even what settling would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from llog.errors import LlogError, PartitionNotInitialized
from llog.log.cleanup.retention import Limits, configured_limits, planned_log_start, retain
from llog.log.context import LogContext
from llog.log.index import Entry, EntryVerdict, entry_of, judge
from llog.log.keys import Log
from llog.log.read.view import view

# Logs whose limits are applied at the same time.
RETAIN_LOGS_IN_FLIGHT_MAX: Final = 16


class RetainedLog(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    log_start_before: int
    log_start_offset: int
    entries_removed: int = 0
    segments_removed: int = 0
    """A dry run does not know them."""
    bytes_released: int = 0
    """Of the entries that went. Blobs go with the next vacuum."""
    error: str = ""
    retriable: bool = False


class RetainReport(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool
    logs: tuple[RetainedLog, ...]
    """Logs with a start that moved, something to remove, or a failure."""
    logs_looked_at: int
    entries_removed: int
    segments_removed: int
    bytes_released: int
    failed: int


OnRetained = Callable[[RetainedLog], None]


async def retain_logs(
    context: LogContext, logs: Sequence[Log], *, dry_run: bool = False, on_done: OnRetained | None = None
) -> RetainReport:
    """Apply each topic's limits; also finishes what an interrupted run left."""
    slots = asyncio.Semaphore(RETAIN_LOGS_IN_FLIGHT_MAX)

    async def one(log: Log) -> RetainedLog:
        async with slots:
            done = await _attempted(context, log, dry_run=dry_run)
        if on_done is not None:
            on_done(done)
        return done

    return _report(await asyncio.gather(*(one(log) for log in logs)), dry_run=dry_run)


def _report(done: Sequence[RetainedLog], *, dry_run: bool) -> RetainReport:
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
        return await (_planned if dry_run else _retained)(context, log)
    except PartitionNotInitialized:
        # A partition without any append yet, or a topic that went meanwhile: nothing is left to do.
        return RetainedLog(topic=log.topic, partition=log.partition, log_start_before=0, log_start_offset=0)
    except LlogError as error:
        return RetainedLog(
            topic=log.topic,
            partition=log.partition,
            log_start_before=0,
            log_start_offset=0,
            error=str(error),
            retriable=getattr(error, "retriable", False),
        )


async def _retained(context: LogContext, log: Log) -> RetainedLog:
    limits = await configured_limits(context, log.topic)
    plan = await _plan(context, log, limits)
    done = await retain(context, log, limits)
    return RetainedLog(
        topic=log.topic,
        partition=log.partition,
        log_start_before=plan.log_start_before,
        log_start_offset=done.log_start_offset,
        entries_removed=done.entries_removed,
        segments_removed=done.segments_removed,
        bytes_released=plan.bytes_released if done.entries_removed else 0,
    )


async def _planned(context: LogContext, log: Log) -> RetainedLog:
    return await _plan(context, log, await configured_limits(context, log.topic))


async def _plan(context: LogContext, log: Log, limits: Limits) -> RetainedLog:
    """What retention would do to the log as it is now."""
    seen = await view(context, log, strict=True)
    control = seen.control
    entries: list[Entry] = []
    async for record in context.metadata.scan_all(context.keys.index(log), strict=True):
        entry = entry_of(record)
        verdict = judge(
            entry, incarnation=control.incarnation, cursor=seen.cursor, log_start_offset=control.log_start_offset
        )
        if verdict in (EntryVerdict.VALID, EntryVerdict.BELOW_START):
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
