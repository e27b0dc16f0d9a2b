"""Back up a cluster's metadata: a consistent copy of each log, and of the keys that logs share (protocol section 12).

The order matters:
1. the cluster's keys (consumer groups, producer ids, sink plans) come before the logs, so that no committed position
   lies beyond the end of its log;
2. each log is copied coherently: the copy shows the log at one point in time (`backup_logs`);
3. the topics come after their logs, so that no topic record has an earlier incarnation or fewer partitions than the
   copies of its logs.

Records bound to a session (claims, broker registrations) are left out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Final

from llog.formats.backup import BackedUp, BackupEncoder, BackupManifest, Begin, Commit, End, Header, Line
from llog.formats.values import ClusterId, TopicRecord, decode_value
from llog.limits import MIB
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.recovery.backup_logs import Emit, copy_logs, line_of
from llog.log.recovery.backup_places import BackupPlace

# The size of one part of a backup.
BACKUP_PART_BYTES: Final = 16 * MIB
# Keys that are sorted out in one turn of the event loop.
BACKUP_KEYS_PER_TURN: Final = 256

# Bound to sessions, or decided by the restore.
_LEFT_OUT: Final = frozenset({"claim", "broker", "vacuum_hold"})
_OF_LOGS: Final = frozenset(
    {"topic", "control", "compaction", "index_entry", "producers", "producer_page", "segment", "partition_delete"}
)
_INDEX_ENTRY: Final = re.compile(r"/partitions/[0-9]+/index/[0-9]{20}$")


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
        await copy_logs(context, await _logs(context), out.emit)
        await _copy_topics(context, out.emit)
        end = await out.end(context.now_ms())
        manifest = await place.finish(
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
    return manifest


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
    keys = records = 0
    async for record in context.metadata.scan_tree(context.keys.root):
        keys += 1
        if keys % BACKUP_KEYS_PER_TURN == 0:
            await asyncio.sleep(0)  # a page of keys may come without a wait
        path = record.key.path
        if record.ephemeral or (_INDEX_ENTRY.search(path) and "@" not in path):
            continue  # most keys are index entries, and parsing a key costs more than reading it
        parsed = context.keys.parse(path)
        if parsed is not None and parsed.kind in _LEFT_OUT | _OF_LOGS:
            continue
        await emit(line_of(record))
        records += 1
    await emit(Commit(records=records))


async def _copy_topics(context: LogContext, emit: Emit) -> None:
    await emit(Begin(kind="topics"))
    records = 0
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        await emit(line_of(record))
        records += 1
    await emit(Commit(records=records))


async def _logs(context: LogContext) -> Iterator[Log]:
    """Every partition of every topic, including deleted topics: vacuum needs their tombstones."""
    topics: list[tuple[str, int]] = []
    async for record in context.metadata.scan_all(context.keys.topics(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is not None:
            topic = decode_value(TopicRecord, record.value, record.key.path)
            topics.append((parsed.topic, topic.partition_count))
    return (Log(topic, partition) for topic, count in topics for partition in range(count))
