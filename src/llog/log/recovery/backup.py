"""Back up a cluster's metadata: a consistent copy of each log, and of the keys that logs share (protocol section 12).

The order matters:
1. the cluster's keys (consumer groups, producer ids, sink plans) come before the logs, so that no committed position
   lies beyond the end of its log;
2. each log is copied coherently: the copy shows the log at one point in time (`llog.log.inspect.coherent`);
3. the topics come after their logs, so that no topic record has an earlier incarnation or fewer partitions than the
   copies of its logs.

A log that changed while it was copied is copied again, a bounded number of times. Records bound to a session (claims,
broker registrations) are left out. Memory holds a few pages, however large a log is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from llog.errors import FormatError, InvalidArgument, LogBusy
from llog.formats.backup import BackedUp, BackupEncoder, BackupManifest, Begin, Commit, Discard, End, Header, Line
from llog.formats.values import ClusterId, ProducerSnapshot, TopicRecord, decode_value
from llog.limits import MIB
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.inspect.coherent import LogGuards, is_coherent, read_guards
from llog.log.keys import Log
from llog.log.recovery.backup_places import BackupPlace
from llog.stores.metadata.port import Record

# The size of one part of a backup.
BACKUP_PART_BYTES: Final = 16 * MIB
# Copies of one log that may fail, because the log changed meanwhile, before the backup gives up.
BACKUP_LOG_ROUNDS_MAX: Final = 32
# Logs copied ahead of the one being written, and the lines that may wait for each.
BACKUP_LOGS_AHEAD_MAX: Final = 16
BACKUP_LINES_AHEAD_MAX: Final = 2_000

# Bound to sessions, or decided by the restore.
_LEFT_OUT: Final = frozenset({"claim", "broker", "vacuum_hold"})
_OF_LOGS: Final = frozenset(
    {"topic", "control", "compaction", "index_entry", "producers", "producer_page", "segment", "partition_delete"}
)
_INDEX_ENTRY: Final = re.compile(r"/partitions/[0-9]+/index/[0-9]{20}$")

Emit = Callable[[Line], Awaitable[None]]


async def write_backup(context: LogContext, place: BackupPlace, backup_id: str) -> BackupManifest:
    """Copy everything below the root to `place`. A failure leaves no backup behind."""
    started_at_ms = context.now_ms()
    await place.begin()
    try:
        out = _Writer(place)
        cluster_id = await _cluster_id(context)
        await out.emit(
            Header(
                backup_id=backup_id,
                root=context.keys.root,
                started_at_ms=started_at_ms,
                cluster_id=cluster_id,
                store=context.metadata.url.partition(":")[0],
            )
        )
        await _copy_cluster(context, out.emit)
        async for line in _all_logs(context):
            await out.emit(line)
        await _copy_topics(context, out.emit)
        end = await out.end(context.now_ms())
        return await place.finish(
            BackupManifest(
                backup_id=backup_id,
                root=context.keys.root,
                cluster_id=cluster_id,
                started_at_ms=started_at_ms,
                finished_at_ms=end.finished_at_ms,
                records=end.records,
                logs=end.logs,
                highest_version=end.highest_version,
                parts=(),
            )
        )
    except BaseException:
        await place.give_up()
        raise


class _Writer:
    """Writes lines as parts, and counts the records of committed groups."""

    def __init__(self, place: BackupPlace) -> None:
        self._place, self._encoder = place, BackupEncoder()
        self._part = bytearray()
        self._records = self._logs = 0
        self._highest_version = 0
        self._is_log = False

    async def emit(self, line: Line) -> None:
        if isinstance(line, BackedUp):
            self._highest_version = max(self._highest_version, line.version)
        elif isinstance(line, Begin):
            self._is_log = line.kind == "log"
        elif isinstance(line, Commit):
            self._records += line.records
            self._logs += self._is_log
        self._part += self._encoder.add(line)
        if len(self._part) >= BACKUP_PART_BYTES:
            await self._put()

    async def end(self, now_ms: int) -> End:
        end = End(
            lines=0,
            crc32c=0,
            records=self._records,
            logs=self._logs,
            highest_version=self._highest_version,
            finished_at_ms=now_ms,
        )
        await self.emit(end)
        if self._part:
            await self._put()
        return end

    async def _put(self) -> None:
        await self._place.put_part(bytes(self._part))
        self._part.clear()


async def _cluster_id(context: LogContext) -> str:
    found = await context.metadata.get(context.keys.cluster_id(), strict=True)
    return "" if found is None else decode_value(ClusterId, found.value, found.key.path).cluster_id


async def _copy_cluster(context: LogContext, emit: Emit) -> None:
    """Copy every key that belongs to no log, including kinds of keys that this release does not know."""
    await emit(Begin(kind="cluster"))
    records = 0
    async for record in context.metadata.scan_tree(context.keys.root):
        path = record.key.path
        if record.ephemeral or (_INDEX_ENTRY.search(path) and "@" not in path):
            continue  # most keys are index entries, and parsing a key costs more than reading it
        parsed = context.keys.parse(path)
        if parsed is not None and parsed.kind in _LEFT_OUT | _OF_LOGS:
            continue
        await emit(_line(record))
        records += 1
    await emit(Commit(records=records))


async def _copy_topics(context: LogContext, emit: Emit) -> None:
    await emit(Begin(kind="topics"))
    records = 0
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        await emit(_line(record))
        records += 1
    await emit(Commit(records=records))


def _line(record: Record) -> BackedUp:
    return BackedUp.of(record.key.path, record.version, record.value)


# -- logs ---------------------------------------------------------------------------------------------------------


async def _logs(context: LogContext) -> AsyncIterator[Log]:
    """Every partition of every topic, including deleted topics: vacuum needs their tombstones."""
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is not None:
            topic = decode_value(TopicRecord, record.value, record.key.path)
            for partition in range(topic.partition_count):
                yield Log(parsed.topic, partition)


async def _all_logs(context: LogContext) -> AsyncIterator[Line]:
    """The lines of all logs, log by log. A few logs are copied ahead, because every strict read takes a while."""
    ahead: list[_Copying] = []
    logs = _logs(context)
    try:
        more = True
        while ahead or more:
            while more and len(ahead) < BACKUP_LOGS_AHEAD_MAX:
                log = await anext(logs, None)
                if log is None:
                    more = False
                else:
                    ahead.append(_Copying(context, log))
            if ahead:
                async for line in ahead[0].lines():
                    yield line
                ahead.pop(0)
    finally:
        for copying in ahead:
            await copying.cancel()


class _Copying:
    """A log being copied, and the lines that wait to be written."""

    def __init__(self, context: LogContext, log: Log) -> None:
        self._queue: asyncio.Queue[Line | None] = asyncio.Queue(BACKUP_LINES_AHEAD_MAX)
        self._task = asyncio.create_task(self._run(context, log))

    async def _run(self, context: LogContext, log: Log) -> None:
        try:
            await copy_log(context, log, self._queue.put)
        except Exception:
            await self._queue.put(None)
            raise
        await self._queue.put(None)

    async def lines(self) -> AsyncIterator[Line]:
        while (line := await self._queue.get()) is not None:
            yield line
        await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def copy_log(context: LogContext, log: Log, emit: Emit) -> None:
    """Emit one committed group, after discarded ones for failed copies. Raises `LogBusy` when every copy failed."""
    async for _ in context.rounds(BACKUP_LOG_ROUNDS_MAX):
        head = await read_guards(context, log)
        if head is None:
            return  # the log does not exist yet; after a restore, its first append creates it
        await emit(Begin(kind="log", topic=log.topic, partition=log.partition))
        records = await _copy_records(context, log, head, emit)
        if records is not None and is_coherent(head, await read_guards(context, log)):
            await emit(_line(head.control_record))
            await emit(Commit(records=records + 1))
            return
        await emit(Discard(reason="the log changed while it was copied"))
    raise LogBusy(*log, f"it changed during each of {BACKUP_LOG_ROUNDS_MAX} copies; try again")


async def _copy_records(context: LogContext, log: Log, head: LogGuards, emit: Emit) -> int | None:
    """Emit all records but control, in the order of a restore; None when the copy is already inconsistent."""
    if head.control.log_state == "DELETED":
        return 0  # a tombstone has no other records
    keys, records = context.keys, 0
    if head.compaction_record is not None:
        await emit(_line(head.compaction_record))
        records += 1
    async for record in context.metadata.scan_all(keys.index(log), strict=True):
        belongs = _belongs(record, head)
        if belongs is None:
            return None
        if belongs:
            await emit(_line(record))
            records += 1
    snapshot = await _snapshot(context, log)
    if snapshot is None:
        return None
    more = [*snapshot, *await context.metadata.get_many([keys.partition_delete(log)], strict=True)]
    async for record in context.metadata.scan_all(keys.segments(log), strict=True):
        await emit(_line(record))
        records += 1
    for found in more:
        if found is not None:
            await emit(_line(found))
            records += 1
    return records


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


async def _snapshot(context: LogContext, log: Log) -> list[Record] | None:
    """The pages of the producer snapshot, then its head; None when it changed meanwhile."""
    head_record = await context.metadata.get(context.keys.producers(log), strict=True)
    if head_record is None:
        return []
    head = decode_value(ProducerSnapshot, head_record.value, head_record.key.path)
    keys = [context.keys.producer_page(log, head.as_of, page) for page in range(head.pages)]
    pages = [page for page in await context.metadata.get_many(keys, strict=True) if page is not None]
    return [*pages, head_record] if len(pages) == head.pages else None
