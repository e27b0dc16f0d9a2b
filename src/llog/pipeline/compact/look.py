"""What the driver of a rewriting job does before it plans: claim a log, settle it, finish what is in flight, read it.

The order is PROTOCOL 7's: pending is settled and cleared, and that counter noted, before the compaction record is read,
and the record before any entry. So no run reaches past the counter (R11), and whatever happened to the log's entries
since then makes publishing at the record's version fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from llog.errors import FormatError, LlogError, LogBusy
from llog.formats.values import ControlRecord, decode_value
from llog.limits import COMPACT_LOGS_AT_ONCE, COMPACT_REPLANS_MAX, METADATA_GET_MANY_MAX
from llog.log.append.settle import settle_and_clear
from llog.log.claim import claim
from llog.log.context import LogContext
from llog.log.index import Entry, entry_of
from llog.log.keys import Log, offset_name
from llog.log.rewrite.publish import Compacted, KnownCompaction, finish, load_compaction
from llog.log.topics.admin import list_topics

T = TypeVar("T")


async def for_each(logs: Sequence[Log], work: Callable[[Log], Awaitable[T]]) -> list[T]:
    """For every log, a bounded number at a time; in order. `work` answers with an error of one log, and raises none:
    it would end the others."""
    slots = asyncio.Semaphore(COMPACT_LOGS_AT_ONCE)

    async def one(log: Log) -> T:
        async with slots:
            return await work(log)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(log)) for log in logs]
    return [task.result() for task in tasks]


# -- which logs --------------------------------------------------------------------------------------------------------


class LiveLogs(NamedTuple):
    lives: dict[Log, int]
    """Which life each of them is in."""
    unreadable: dict[Log, FormatError]
    """Nobody can say whether these are there."""


async def live_logs(context: LogContext, logs: Sequence[Log] | None) -> LiveLogs:
    """Those of `logs` (None: of every topic) that are there."""
    if logs is None:
        topics = await list_topics(context, states=["LIVE"])
        logs = [Log(name, partition) for name, record in topics for partition in range(record.partition_count)]
    found = LiveLogs({}, {})
    for first in range(0, len(logs), METADATA_GET_MANY_MAX):
        some = logs[first : first + METADATA_GET_MANY_MAX]
        records = await context.metadata.get_many([context.keys.control(log) for log in some])
        for log, record in zip(some, records, strict=True):
            if record is None:
                continue
            try:
                control = decode_value(ControlRecord, record.value, record.key.path)
            except FormatError as error:
                found.unreadable[log] = error
                continue
            if control.log_state != "DELETED":
                found.lives[log] = control.incarnation
    return found


class Claimed(NamedTuple):
    ours: list[Log]
    failed: dict[Log, LlogError]
    """Nobody could say whose these are."""


@asynccontextmanager
async def claimed(
    context: LogContext, logs: dict[Log, int], *, owner: str, session_timeout_ms: int
) -> AsyncIterator[Claimed]:
    """The logs that are ours to work on; the claims go with their session. A session lost meanwhile harms nobody: a
    claim only saves work (R12)."""
    name = f"{owner}/{context.random_bits(64):016x}"
    session = await context.metadata.open_session(timeout_ms=session_timeout_ms, on_lost=lambda: None)
    try:

        async def take(log: Log) -> bool | LlogError:
            try:
                return await claim(context, log, session, compactor_id=name, incarnation=logs[log])
            except LlogError as error:
                return error

        taken = dict(zip(logs, await for_each(list(logs), take), strict=True))
        yield Claimed(
            [log for log, ours in taken.items() if ours is True],
            {log: error for log, error in taken.items() if isinstance(error, LlogError)},
        )
    finally:
        await session.close()


# -- one log -----------------------------------------------------------------------------------------------------------


class LogHead(NamedTuple):
    """A log with nothing pending and nothing in flight, as it stood then."""

    log: Log
    control: ControlRecord
    record: KnownCompaction
    resumed: tuple[Compacted, ...] = ()
    """Runs that somebody had left, and that were finished here."""


async def settled_head(context: LogContext, log: Log) -> LogHead:
    """Raises `LogBusy` when others keep beginning runs."""
    resumed: list[Compacted] = []
    for round_number in range(COMPACT_REPLANS_MAX):
        control = await settle_and_clear(context, log)
        record = await load_compaction(context, log, control.incarnation)
        run = record.value.in_flight
        if run is None:
            return LogHead(log, control, record, tuple(resumed))
        if (await finish(context, log, control, run)).done:
            size, level = run.entry.byte_length or 0, run.entry.level
            resumed.append(
                Compacted(log, run.start_offset, run.end_offset, 0, size, run.data_key, True, run.kind, level)
            )
        else:
            await context.back_off(round_number)
    raise LogBusy(*log, f"it had a run in flight {COMPACT_REPLANS_MAX} times in a row; try again")


async def entries_from(context: LogContext, log: Log, offset: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
    """Index entries that end at `offset` or behind it, until there are enough of them."""
    entries: list[Entry] = []
    size_bytes = 0
    async for record in context.metadata.scan_all(context.keys.index(log), start=offset_name(offset)):
        entry = entry_of(record)
        entries.append(entry)
        size_bytes += entry.value.byte_length or 0
        if len(entries) >= entries_max or size_bytes > bytes_max:
            break
    return entries
