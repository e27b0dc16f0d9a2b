"""Copies of logs for a backup, many at a time.

A copy of one log is a few strict reads, each after the answer of the one before (`llog.log.inspect.coherent` says why
the order matters), so alone it mostly waits. BACKUP_LOGS_AT_ONCE logs are copied side by side and share their gets
(`llog.stores.metadata.shared_reads`).

The groups of a backup cannot interleave. A copy is therefore held in memory until it proves consistent, then written in
one go; one that proves inconsistent is forgotten. Copies hold at most BACKUP_HELD_BYTES_MAX together: where the last
logs were large, fewer logs are copied at a time, and a log that finds no more room is written while it is read, alone,
its failed copies followed by a `discard` line. With the pages that are being copied, memory holds about twice as much,
however many and however large the logs are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from llog.concurrency import batched, gather_bounded
from llog.errors import FormatError, InvalidArgument, LogBusy
from llog.formats.backup import BackedUp, Begin, Commit, Discard, Line
from llog.formats.values import ProducerSnapshot, decode_value
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX, MIB
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.inspect.coherent import LogGuards, is_coherent, read_guards
from llog.log.keys import Log
from llog.stores.metadata.port import Key, Record, after, last_segment
from llog.stores.metadata.shared_reads import sharing_reads

# Logs copied at the same time. On Oxia each copy takes about a quarter of a second, nearly all of it waiting.
BACKUP_LOGS_AT_ONCE: Final = 256
# Copies of one log that may fail, because the log changed meanwhile, before the backup gives up.
BACKUP_LOG_ROUNDS_MAX: Final = 32
# Lines of copies that are not complete yet, or wait for their turn to be written.
BACKUP_HELD_BYTES_MAX: Final = 32 * MIB
# Logs that are copied at the same time before the size of the first is known, and the sizes that decide later.
BACKUP_LOGS_FIRST: Final = 16
BACKUP_SIZES_SEEN: Final = 32
# What a held line costs besides its path and value.
BACKUP_LINE_BYTES: Final = 256
# Held lines that are encoded in one turn of the event loop.
BACKUP_LINES_PER_TURN: Final = 256
# Index entries, or segments, of a log that are read first.
BACKUP_FIRST_PAGE_RECORDS: Final = 128
# Pages of a producer snapshot that are read in one call.
BACKUP_PRODUCER_PAGES_AT_ONCE: Final = 8

Emit = Callable[[Line], Awaitable[None]]


async def copy_logs(context: LogContext, logs: Iterator[Log], write: Emit) -> None:
    """Write a committed group for every log that exists, in no particular order."""
    groups = LogGroups(write, BACKUP_HELD_BYTES_MAX)
    async with sharing_reads(context.metadata) as metadata:
        shared = replace(context, metadata=metadata)

        async def work(_: int) -> None:
            for log in logs:
                async with groups.of_one_log() as emit:
                    await copy_log(shared, log, emit)

        await gather_bounded(range(BACKUP_LOGS_AT_ONCE), work, limit=BACKUP_LOGS_AT_ONCE)


async def copy_log(context: LogContext, log: Log, emit: Emit) -> None:
    """Emit one committed group, after discarded ones for failed copies. Raises `LogBusy` when every copy failed."""
    async for _ in context.rounds(BACKUP_LOG_ROUNDS_MAX):
        head = await read_guards(context, log)
        if head is None:
            return  # the log does not exist yet; after a restore, its first append creates it
        await emit(Begin(kind="log", topic=log.topic, partition=log.partition))
        records = await _copy_records(context, log, head, emit)
        if records is not None and is_coherent(head, await read_guards(context, log, in_order=False)):
            await emit(line_of(head.control_record))
            await emit(Commit(records=records + 1))
            return
        await emit(Discard(reason="the log changed while it was copied"))
    raise LogBusy(*log, f"it changed during each of {BACKUP_LOG_ROUNDS_MAX} copies; try again")


def line_of(record: Record) -> BackedUp:
    return BackedUp.of(record.key.path, record.version, record.value)


async def _copy_records(context: LogContext, log: Log, head: LogGuards, emit: Emit) -> int | None:
    """Emit all records but control; None when the copy is already inconsistent. The producer snapshot is read after
    the index (h06)."""
    if head.control.log_state == "DELETED":
        return 0  # a tombstone has no other records
    keys, records = context.keys, 0
    if head.compaction_record is not None:
        await emit(line_of(head.compaction_record))
        records += 1
    async for record in _children(context, keys.index(log)):
        belongs = _belongs(record, head)
        if belongs is None:
            return None
        if belongs:
            await emit(line_of(record))
            records += 1
    producers, deletion = await context.metadata.get_many(
        [keys.producers(log), keys.partition_delete(log)], strict=True
    )
    if producers is not None:
        pages = await _copy_producers(context, log, producers, emit)
        if pages is None:
            return None
        records += pages
    async for record in _children(context, keys.segments(log)):
        await emit(line_of(record))
        records += 1
    if deletion is not None:
        await emit(line_of(deletion))
        records += 1
    return records


async def _children(context: LogContext, parent: Key) -> AsyncIterator[Record]:
    """All direct children by strict reads. The first page is small: most logs have no more, and LMDB answers it without
    a thread. Later pages grow with what was read, so pages take no more memory than the copies held."""
    start, limit = "", BACKUP_FIRST_PAGE_RECORDS
    while True:
        page = await context.metadata.scan(parent, start=start, limit=limit, strict=True)
        for record in page:
            yield record
        if len(page) < limit:
            return
        start, limit = after(last_segment(page[-1].key.path)), min(2 * limit, METADATA_SCAN_PAGE_RECORDS_MAX)


def _belongs(record: Record, head: LogGuards) -> bool | None:
    """Whether the entry is part of the log that `head` shows; None: the topic was created again meanwhile."""
    try:
        entry = entry_of(record)
    except (FormatError, InvalidArgument):
        return True  # a damaged entry is copied unchanged; `llog log check` reports it
    if entry.value.incarnation > head.control.incarnation:
        return None
    same_incarnation = entry.value.incarnation == head.control.incarnation
    return not (same_incarnation and entry.end_offset >= head.control.sequence_counter)


async def _copy_producers(context: LogContext, log: Log, head_record: Record, emit: Emit) -> int | None:
    """Emit the pages of the producer snapshot, then its head; None when it changed meanwhile."""
    head = decode_value(ProducerSnapshot, head_record.value, head_record.key.path)
    for numbers in batched(range(head.pages), BACKUP_PRODUCER_PAGES_AT_ONCE):
        keys = [context.keys.producer_page(log, head.as_of, page) for page in numbers]
        for page in await context.metadata.get_many(keys, strict=True):
            if page is None:
                return None
            await emit(line_of(page))
    await emit(line_of(head_record))
    return head.pages + 1


# -- groups of lines ---------------------------------------------------------------------------------------------------


class LogGroups:
    """Writes the groups of many logs one after another, each whole."""

    def __init__(self, write: Emit, held_bytes_max: int) -> None:
        self.write, self.held_bytes_max = write, held_bytes_max
        self.turn = asyncio.Lock()
        self.held_bytes = 0
        self._under_way = 0
        self._sizes: deque[int] = deque(maxlen=BACKUP_SIZES_SEEN)
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def of_one_log(self) -> AsyncIterator[Emit]:
        """`emit` of one log, for groups that begin and end inside of the block, which is entered when there is room."""
        while not self._has_room():
            self._ended.clear()
            await self._ended.wait()
        self._under_way += 1
        group = _Group(self)
        try:
            yield group.emit
        finally:
            group.close()
            self._under_way -= 1
            self._sizes.append(group.byte_length)
            self._ended.set()

    def _has_room(self) -> bool:
        """For one more log of the size of the last ones; a first few logs show the size."""
        if not self._sizes:
            return self._under_way < BACKUP_LOGS_FIRST
        expected_bytes = sum(self._sizes) // len(self._sizes)
        return not self._under_way or (self._under_way + 1) * expected_bytes <= self.held_bytes_max


class _Group:
    """The current group of one log: held, or being written."""

    def __init__(self, groups: LogGroups) -> None:
        self._all = groups
        self.byte_length = 0
        self._held: list[Line] = []
        self._held_bytes = 0
        self._is_writing = False

    async def emit(self, line: Line) -> None:
        self.byte_length = _size_of(line) + (0 if isinstance(line, Begin) else self.byte_length)
        if self._is_writing:
            await self._all.write(line)
            if isinstance(line, Commit | Discard):
                self._end_turn()
        elif isinstance(line, Discard):
            self._forget()
        else:
            self._hold(line)
            if isinstance(line, Commit):
                await self._write_held()
                self._end_turn()
            elif self._all.held_bytes > self._all.held_bytes_max:
                await self._write_held()

    def _hold(self, line: Line) -> None:
        byte_length = _size_of(line)
        self._held.append(line)
        self._held_bytes += byte_length
        self._all.held_bytes += byte_length

    def _forget(self) -> None:
        self._held.clear()
        self._all.held_bytes -= self._held_bytes
        self._held_bytes = 0

    async def _write_held(self) -> None:
        """Write the held lines, and keep the turn."""
        await self._all.turn.acquire()
        self._is_writing = True
        for number, line in enumerate(self._held):
            if number % BACKUP_LINES_PER_TURN == BACKUP_LINES_PER_TURN - 1:
                await asyncio.sleep(0)
            await self._all.write(line)
        self._forget()

    def _end_turn(self) -> None:
        self._is_writing = False
        self._all.turn.release()

    def close(self) -> None:
        """After a failure, the backup is incomplete and given up."""
        self._forget()
        if self._is_writing:
            self._end_turn()


def _size_of(line: Line) -> int:
    """The memory of a held line, roughly."""
    if not isinstance(line, BackedUp):
        return BACKUP_LINE_BYTES
    return BACKUP_LINE_BYTES + len(line.path) + len(line.text or line.data or b"")
