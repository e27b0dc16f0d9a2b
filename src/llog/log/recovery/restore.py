"""Restore of a cluster's metadata from a backup. The order that safety hangs on is `restore_backup`.

    1. read the whole backup once: every checksum, every count        (nothing is written for a torn one)
    2. refuse a store that is not empty below the root
    3. raise the store's versions above anything ever given           (h12: else a process of before, with a version it
                                                                       remembers, overwrites what was restored)
    4. hold vacuum                                                     (before the first index entry: what the backup
                                                                       does not name is not garbage, but newer), at an
                                                                       instant later than every blob that is there: it
                                                                       is what tells records of before from those since
    5. put back every log, its control record last
    6. put back the topics, then the cluster's identity                (brokers refuse to start without it)
    7. note in the hold that the restore is complete

Why it is safe: nothing is ever overwritten (`restore_puts`); a crash anywhere leaves the hold with the backup's id, and
the same restore goes on from what is there. What must stay true: nobody else uses the store meanwhile; an operator sees
to that, and a key that somebody took is noticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from llog.errors import MetadataUncertain, RestoreRefused, VersionConflict
from llog.formats.backup import (
    BackedUp,
    BackupDecoder,
    Begin,
    Commit,
    Discard,
    End,
    Header,
    Line,
    VacuumHold,
    decode_hold,
)
from llog.formats.values import (
    ClusterId,
    CompactionRecord,
    ControlRecord,
    ProducerIdBlock,
    TopicRecord,
    Value,
    decode_value,
    encode_value,
)
from llog.limits import METADATA_VERSION_FLOOR_MAX, RESTORE_BLOB_SLACK_MS, RESTORE_ROUNDS_MAX
from llog.log.cluster import read_marker
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.keys import Log, ParsedKey
from llog.log.recovery.backup_places import BackupPlace
from llog.log.recovery.recover_find import newer_blobs
from llog.log.recovery.restore_puts import RestorePuts
from llog.log.recovery.restore_values import plan_compaction, plan_control, plan_producer_ids
from llog.stores.metadata.port import ABSENT, Key

# How far a restore raises versions and producer ids above those in the backup: more than were given since.
RESTORE_VERSION_LEAP: Final = 2**44


V = TypeVar("V", bound=Value)


class Contents(NamedTuple):
    """A backup that was read from its first line to its last."""

    where: str
    header: Header
    end: End
    topics: dict[str, TopicRecord]
    discarded: frozenset[int]
    """Which groups do not count, by their place in the backup."""


class Restored(NamedTuple):
    records: int
    logs: int
    resumed: bool
    """It went on from where an interrupted restore stood."""
    hold: VacuumHold


async def inspect_backup(context: LogContext, place: BackupPlace) -> Contents:
    """Step 1. Raises `FormatError` for a backup that is torn or damaged, `RestoreRefused` for one of another root."""
    decoder = BackupDecoder(place.where)
    header: Header | None = None
    topics: dict[str, TopicRecord] = {}
    discarded: set[int] = set()
    group, holds_topics = -1, False
    async for piece in place.parts():
        for line in decoder.feed(piece):
            if isinstance(line, Header):
                header = line
                _check_root(context, place, header)
            elif isinstance(line, Begin):
                group += 1
                holds_topics = line.kind == "topics"
            elif isinstance(line, Discard):
                discarded.add(group)
            elif isinstance(line, BackedUp) and holds_topics:
                parsed = context.keys.parse(line.path)
                if parsed is not None and parsed.kind == "topic":
                    topics[parsed.topic] = decode_value(TopicRecord, line.value, line.path)
    end = decoder.close()
    assert header is not None
    return Contents(place.where, header, end, topics, frozenset(discarded))


def _check_root(context: LogContext, place: BackupPlace, header: Header) -> None:
    if header.root != context.keys.root:
        raise RestoreRefused(
            f"{place.where} is a backup of the root {header.root!r}, and LLOG_ROOT_PREFIX is {context.keys.root!r}: "
            "set it to the backup's"
        )


async def restore_backup(
    context: LogContext, place: BackupPlace, contents: Contents, *, old_processes_ended: bool = False
) -> Restored:
    """Put everything back. `old_processes_ended`: an operator's word that nobody who used the lost store is left, for a
    store whose versions cannot be raised."""
    hold = await _hold_of(context, contents)
    if hold is not None and hold.state == "RESTORED":
        return Restored(contents.end.records, contents.end.logs, True, hold)
    resumed = hold is not None
    if hold is None:
        await refuse_if_not_empty(context)
        await _refuse_foreign_objects(context, contents)
        raised = await _raise_versions(context, contents, old_processes_ended)
        await _wait_for_clocks(context)
        hold = await _put_hold(context, contents, raised)
    puts = RestorePuts(context)
    await _put_back(context, place, contents, hold.held_at_ms, puts)
    return Restored(puts.written, contents.end.logs, resumed, await _finish_hold(context, hold))


# -- before anything is put back -------------------------------------------------------------------------


async def read_hold(context: LogContext) -> tuple[VacuumHold, int] | None:
    """What holds vacuum, and the version it stands at."""
    found = await context.metadata.get(context.keys.vacuum_hold(), strict=True)
    return None if found is None else (decode_hold(found.value, found.key.path), found.version)


async def release_vacuum(context: LogContext) -> VacuumHold | None:
    """Lift the hold; what it was, or None when there was none. A restore that is not complete is not let go."""
    found = await read_hold(context)
    if found is None:
        return None
    hold, version = found
    if hold.state == "RESTORING":
        raise RestoreRefused(f"the restore of backup {hold.backup_id} is not complete: run it again first")
    await context.metadata.delete(context.keys.vacuum_hold(), expected=version)
    return hold


async def _hold_of(context: LogContext, contents: Contents) -> VacuumHold | None:
    """The hold of a restore of this very backup."""
    found = await read_hold(context)
    if found is None:
        return None
    hold = found[0]
    if hold.state == "HELD" or hold.backup_id != contents.header.backup_id:
        raise RestoreRefused(f"vacuum is held already ({hold.reason}): this store is in use, or being restored from it")
    return hold


async def refuse_if_not_empty(context: LogContext) -> None:
    async for record in context.metadata.scan_tree(context.keys.root):
        if not record.ephemeral:
            raise RestoreRefused(
                f"the metadata store is not empty: {record.key.path} is there. Restore into an empty store, or under "
                "another LLOG_METADATA_URL; nothing is ever overwritten"
            )


async def _refuse_foreign_objects(context: LogContext, contents: Contents) -> None:
    """Object stores that say they are another cluster's would be vacuumed as if they were this one's."""
    for store in context.stores():
        marker = await read_marker(context, store)
        if marker is not None and marker.cluster_id != contents.header.cluster_id:
            raise RestoreRefused(
                f"{store.url} belongs to cluster {marker.cluster_id}, the backup to "
                f"{contents.header.cluster_id or 'one without an identity'}: check LLOG_OBJECTS_URL and LLOG_WAL_URL"
            )


async def _raise_versions(context: LogContext, contents: Contents, old_processes_ended: bool) -> bool:
    floor = min(contents.end.highest_version + RESTORE_VERSION_LEAP, METADATA_VERSION_FLOOR_MAX)
    if await context.metadata.raise_versions(floor):
        return True
    if not old_processes_ended:
        raise RestoreRefused(
            "the versions of this metadata store cannot be raised above those that the lost one gave, so a process "
            "that still remembers one could overwrite what is restored. End every process that used the lost store "
            "(or restore into a namespace they do not know), and say so with --old-processes-ended"
        )
    return False


async def _wait_for_clocks(context: LogContext) -> None:
    """Until this clock has passed the instants of all blobs: some may be of writers whose clocks are ahead. Whose blobs
    are further ahead than clocks may differ are not waited for."""
    now_ms = context.now_ms()
    newest_ms = now_ms - 1
    if context.wal is not None:
        async for blob in newer_blobs(context, context.wal, now_ms):
            instant_ms = created_at_ms_of(blob.blob_id)
            if instant_ms <= now_ms + RESTORE_BLOB_SLACK_MS:
                newest_ms = max(newest_ms, instant_ms)
    while (wait_ms := newest_ms + 1 - context.now_ms()) > 0:
        await context.sleep(wait_ms / 1_000)


async def _put_hold(context: LogContext, contents: Contents, versions_raised: bool) -> VacuumHold:
    header = contents.header
    hold = VacuumHold(
        reason=f"restored from backup {header.backup_id}: check what is missing, then lift this",
        held_at_ms=context.now_ms(),
        backup_id=header.backup_id,
        recover_since_ms=max(0, header.started_at_ms - RESTORE_BLOB_SLACK_MS),
        versions_raised=versions_raised,
        state="RESTORING",
    )
    key = context.keys.vacuum_hold()
    try:
        await context.metadata.put(key, encode_value(hold), expected=ABSENT)
    except (VersionConflict, MetadataUncertain):
        found = await read_hold(context)
        if found is None or found[0] != hold:
            raise
    return hold


async def _finish_hold(context: LogContext, hold: VacuumHold) -> VacuumHold:
    key, done = context.keys.vacuum_hold(), replace(hold, state="RESTORED")
    async for _ in context.rounds(RESTORE_ROUNDS_MAX):
        found = await read_hold(context)
        if found is not None and found[0] == done:
            return done
        if found is None or found[0] != hold:
            break
        try:
            await context.metadata.put(key, encode_value(done, key.path), expected=found[1])
            return done
        except (VersionConflict, MetadataUncertain):
            continue
    raise RestoreRefused("everything was put back, but the hold on vacuum changed meanwhile: somebody else is at work")


# -- putting back ----------------------------------------------------------------------------------------


async def _put_back(
    context: LogContext, place: BackupPlace, contents: Contents, restored_at_ms: int, puts: RestorePuts
) -> None:
    identity: BackedUp | None = None
    log: _LogRestore | None = None
    async for line in _counting_lines(place, contents):
        if isinstance(line, Begin):
            topic = contents.topics.get(line.topic)
            log = (
                _LogRestore(context, Log(line.topic, line.partition), topic, restored_at_ms, puts)
                if line.kind == "log"
                else None
            )
        elif isinstance(line, Commit):
            if log is not None:
                await log.finish()
        elif isinstance(line, BackedUp):
            if log is not None:
                await log.put(line)
                continue
            parsed = context.keys.parse(line.path)
            if parsed is not None and parsed.kind == "cluster_id":
                identity = line
            else:
                await puts.put(context.keys.key_of(line.path), _shared_value(parsed, line))
    await puts.flush()
    if identity is not None:
        # A disk that held the WAL may be gone with the metadata: stores join again, whether they carry the marker still
        # or not.
        cluster = replace(decode_value(ClusterId, identity.value, identity.path), stores=())
        await puts.put(context.keys.cluster_id(), encode_value(cluster, identity.path))
        await puts.flush()


def _shared_value(parsed: ParsedKey | None, line: BackedUp) -> bytes:
    if parsed is None or parsed.kind != "producer_ids":
        return line.value
    block = decode_value(ProducerIdBlock, line.value, line.path)
    return encode_value(plan_producer_ids(block), line.path)


async def _counting_lines(place: BackupPlace, contents: Contents) -> AsyncIterator[Line]:
    """The lines of the groups that count."""
    decoder = BackupDecoder(place.where)
    group = -1
    async for piece in place.parts():
        for line in decoder.feed(piece):
            if isinstance(line, Begin):
                group += 1
            if group not in contents.discarded:
                yield line
    decoder.close()


class _LogRestore:
    """One log: everything else as it comes, then the compaction record, then control."""

    def __init__(
        self, context: LogContext, log: Log, topic: TopicRecord | None, restored_at_ms: int, puts: RestorePuts
    ) -> None:
        self._context, self._log, self._topic, self._puts = context, log, topic, puts
        self._restored_at_ms = restored_at_ms
        self._control: ControlRecord | None = None
        self._compaction: CompactionRecord | None = None
        self._end_key = ""
        self._end_key_version: int | None = None
        self._control_key, self._compaction_key = context.keys.control(log), context.keys.compaction(log)

    async def put(self, line: BackedUp) -> None:
        if line.path == self._control_key.path:
            self._control = decode_value(ControlRecord, line.value, line.path)
        elif self._topic is not None and self._topic.state == "DELETED":
            return  # deleted while the backup was taken: only the tombstone is left of it
        elif line.path == self._compaction_key.path:
            self._compaction = decode_value(CompactionRecord, line.value, line.path)
            run = self._compaction.in_flight
            index_entry = self._context.keys.index_entry
            self._end_key = "" if run is None else index_entry(self._log, run.end_offset).path
        else:
            if line.path == self._end_key:
                self._end_key_version = line.version
            await self._puts.put(Key(line.path, self._control_key.route), line.value)

    async def finish(self) -> None:
        """Where control stands, everything else stands."""
        await self._puts.flush()
        if self._compaction is not None:
            await self._put_compaction(self._compaction)
        if self._control is not None:
            control = plan_control(self._control, self._topic, restored_at_ms=self._restored_at_ms)
            await self._put(self._control_key, control)

    async def _put_compaction(self, record: CompactionRecord) -> None:
        now: int | None = None
        if record.in_flight is not None:
            key = self._context.keys.index_entry(self._log, record.in_flight.end_offset)
            found = await self._context.metadata.get(key, strict=True)
            now = None if found is None else found.version
        planned = plan_compaction(
            record,
            restored_at_ms=self._restored_at_ms,
            end_key_version_then=self._end_key_version,
            end_key_version_now=now,
        )
        await self._put(self._compaction_key, planned)

    async def _put(self, key: Key, value: Value) -> None:
        await self._puts.put(key, encode_value(value, key.path))
        await self._puts.flush()
