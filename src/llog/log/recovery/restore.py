"""Restore a cluster's metadata from a backup. Safety depends on the order of `restore_backup` (protocol section 12):

1. read the whole backup and check every checksum and count; a damaged backup writes nothing
2. refuse a store that is not empty below the root
3. raise the store's versions above any that were ever given, so that a process that remembers an old version cannot
   overwrite a restored record (h12)
4. hold vacuum before the first index entry exists, because objects that the backup does not reference are newer, not
   garbage. The hold is stamped later than every existing blob; its time separates records from before the restore from
   later ones
5. put back every log, its control record last
6. put back the topics, then the cluster's identity, without which brokers refuse to start
7. mark the restore as complete in the hold

Nothing is overwritten (`RestorePuts`). A crash anywhere leaves the hold with the backup's id, and the same restore
continues from there. No other process may use the store meanwhile: the operator ensures that, and a key that another
process wrote is noticed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import MetadataUncertain, RestoreRefused, VersionConflict
from llog.formats.backup import BackedUp, BackupDecoder, Begin, Discard, End, Header, VacuumHold, decode_hold
from llog.formats.values import TopicRecord, decode_value, encode_value
from llog.limits import METADATA_VERSION_FLOOR_MAX, RESTORE_BLOB_SLACK_MS, RESTORE_ROUNDS_MAX
from llog.log.cluster import read_marker
from llog.log.context import LogChange, LogContext
from llog.log.ids import created_at_ms_of
from llog.log.recovery.backup_places import BackupPlace
from llog.log.recovery.recover_find import newer_blobs
from llog.log.recovery.restore_records import RestorePuts, put_back
from llog.stores.metadata.port import ABSENT

# How far a restore raises versions above those in the backup: more than were given since.
RESTORE_VERSION_LEAP: Final = 2**44


class BackupContents(NamedTuple):
    """The frame of a backup that was read completely."""

    where: str
    header: Header
    end: End
    topics: dict[str, TopicRecord]
    discarded: frozenset[int]
    """The numbers of groups that do not count, because their log changed while it was copied."""


class Restored(NamedTuple):
    records: int
    logs: int
    resumed: bool
    """It continued an interrupted restore."""
    hold: VacuumHold


async def inspect_backup(context: LogContext, place: BackupPlace) -> BackupContents:
    """Step 1. Raises `FormatError` for an incomplete or damaged backup, `RestoreRefused` for one of another root."""
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
    return BackupContents(place.where, header, end, topics, frozenset(discarded))


def _check_root(context: LogContext, place: BackupPlace, header: Header) -> None:
    if header.root != context.keys.root:
        raise RestoreRefused(
            f"{place.where} is a backup of the root {header.root!r}, but LLOG_ROOT_PREFIX is {context.keys.root!r}: "
            "set it to the root of the backup"
        )


async def restore_backup(
    context: LogContext, place: BackupPlace, contents: BackupContents, *, old_processes_ended: bool = False
) -> Restored:
    """Steps 2 to 7. `old_processes_ended`: the operator confirms that no process that used the lost store still runs,
    for a store that cannot raise its versions."""
    started_at_ms = context.now_ms()
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
    await put_back(context, place, contents, hold.held_at_ms, puts)
    hold = await _finish_hold(context, hold)
    counts = {"records": contents.end.records, "logs": contents.end.logs, "resumed": resumed, "vacuum": "held"}
    counts["duration_ms"] = context.now_ms() - started_at_ms
    context.on_change(LogChange("metadata.restore", contents.header.backup_id, after=counts))
    return Restored(puts.written, contents.end.logs, resumed, hold)


# -- before anything is put back -------------------------------------------------------------------------------------


async def read_hold(context: LogContext) -> tuple[VacuumHold, int] | None:
    """The hold on vacuum and its version; None when vacuum is not held."""
    record = await context.metadata.get(context.keys.vacuum_hold(), strict=True)
    return None if record is None else (decode_hold(record.value, record.key.path), record.version)


async def release_vacuum(context: LogContext) -> VacuumHold | None:
    """Release the hold and return it; None when there was none. An incomplete restore keeps its hold."""
    held = await read_hold(context)
    if held is None:
        return None
    hold, version = held
    if hold.state == "RESTORING":
        raise RestoreRefused(
            f"the restore of backup {hold.backup_id} is not complete: run it again, then release vacuum"
        )
    await context.metadata.delete(context.keys.vacuum_hold(), expected=version)
    context.on_change(LogChange("vacuum.release", hold.backup_id, before={"reason": hold.reason}))
    return hold


async def _hold_of(context: LogContext, contents: BackupContents) -> VacuumHold | None:
    """The hold of an interrupted restore of this backup."""
    held = await read_hold(context)
    if held is None:
        return None
    hold = held[0]
    if hold.state == "HELD" or hold.backup_id != contents.header.backup_id:
        raise RestoreRefused(
            f"vacuum is already held ({hold.reason}): the store is in use, or another backup is being restored"
        )
    return hold


async def refuse_if_not_empty(context: LogContext) -> None:
    async for record in context.metadata.scan_tree(context.keys.root):
        if not record.ephemeral:
            raise RestoreRefused(
                f"the metadata store is not empty: it has {record.key.path}. A restore overwrites nothing: point "
                "LLOG_METADATA_URL at an empty store"
            )


async def _refuse_foreign_objects(context: LogContext, contents: BackupContents) -> None:
    """Vacuum would treat the object stores of another cluster as this cluster's own."""
    for store in context.stores():
        marker = await read_marker(context, store)
        if marker is not None and marker.cluster_id != contents.header.cluster_id:
            raise RestoreRefused(
                f"{store.url} belongs to cluster {marker.cluster_id}, the backup to "
                f"{contents.header.cluster_id or 'one without an identity'}: check LLOG_OBJECTS_URL and LLOG_WAL_URL"
            )


async def _raise_versions(context: LogContext, contents: BackupContents, old_processes_ended: bool) -> bool:
    floor = min(contents.end.highest_version + RESTORE_VERSION_LEAP, METADATA_VERSION_FLOOR_MAX)
    if await context.metadata.raise_versions(floor):
        return True
    if not old_processes_ended:
        raise RestoreRefused(
            "this metadata store cannot raise its versions above those of the lost store, so a process that remembers "
            "an old version could overwrite a restored record. End every process that used the lost store (or restore "
            "into a namespace they do not use), then confirm it with --old-processes-ended"
        )
    return False


async def _wait_for_clocks(context: LogContext) -> None:
    """Wait until this clock has passed the time of every blob, since the clocks of some writers may be ahead. Blobs
    further ahead than clocks may differ are not waited for."""
    now_ms = context.now_ms()
    newest_ms = now_ms - 1
    if context.wal is not None:
        async for blob in newer_blobs(context, context.wal, now_ms):
            instant_ms = created_at_ms_of(blob.blob_id)
            if instant_ms <= now_ms + RESTORE_BLOB_SLACK_MS:
                newest_ms = max(newest_ms, instant_ms)
    while (wait_ms := newest_ms + 1 - context.now_ms()) > 0:
        await context.sleep(wait_ms / 1_000)


async def _put_hold(context: LogContext, contents: BackupContents, versions_raised: bool) -> VacuumHold:
    header = contents.header
    hold = VacuumHold(
        reason=f"restored from backup {header.backup_id}: check what is missing, then release vacuum",
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
        held = await read_hold(context)
        if held is None or held[0] != hold:
            raise
    return hold


async def _finish_hold(context: LogContext, hold: VacuumHold) -> VacuumHold:
    key, done = context.keys.vacuum_hold(), replace(hold, state="RESTORED")
    async for _ in context.rounds(RESTORE_ROUNDS_MAX):
        held = await read_hold(context)
        if held is not None and held[0] == done:
            return done
        if held is None or held[0] != hold:
            break
        try:
            await context.metadata.put(key, encode_value(done, key.path), expected=held[1])
            return done
        except (VersionConflict, MetadataUncertain):
            continue
    raise RestoreRefused(
        "all records were put back, but another process changed the hold on vacuum: stop it, then restore again"
    )
