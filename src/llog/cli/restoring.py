"""What `llog meta restore` does and tells: find the backup, put it back, look for what is newer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llog.errors import InvalidArgument
from llog.limits import RESTORE_BLOB_SLACK_MS
from llog.log.ids import is_object_id
from llog.log.keys import BACKUP_PREFIX
from llog.log.recovery.backup_places import BackupFile, BackupObjects, list_backups
from llog.log.recovery.recover import Recovered, UnknownSlice, recover
from llog.log.recovery.recover_find import newer_blobs
from llog.log.recovery.restore import inspect_backup, refuse_if_not_empty, restore_backup
from llog.opening import OpenedLog, Use, opened_log
from llog.settings import Settings


class Report(msgspec.Struct, kw_only=True):
    """For people by `lines`, for programs as it is."""

    backup: str
    backup_id: str
    taken_at_ms: int
    records: int
    logs: int
    dry_run: bool
    newer_blobs: int = 0
    """Of a dry run: blobs that may hold records the backup does not know."""
    versions_raised: bool = False
    resumed: bool = False
    recovering: bool = False
    slices: list[UnknownSlice] = []
    adopted: list[str] = []
    unreadable: list[str] = []

    def incomplete(self) -> bool:
        """Something is there that did not come back, though it was to."""
        missing = self.recovering and any(one.outcome.startswith(("refused", "left")) for one in self.slices)
        return bool(self.unreadable) or missing

    def document(self) -> dict[str, object]:
        slices = [{**one._asdict(), "log": str(one.log)} for one in self.slices]
        return {**msgspec.structs.asdict(self), "slices": slices}

    def lines(self) -> list[str]:
        told = [f"{self.backup}: {self.records} records of {self.logs} logs"]
        if self.dry_run:
            told.append(
                f"the backup is whole and the store is empty; {self.newer_blobs} newer blobs; nothing was changed"
            )
            return told
        told.append("restored" + (", going on from where it stopped" if self.resumed else ""))
        if not self.versions_raised:
            told.append("versions could not be raised here: no process that used the lost store may come back")
        told += [_told(one) for one in self.slices]
        told += [f"adopted: {uri}" for uri in self.adopted]
        told += [f"cannot be read: {uri}" for uri in self.unreadable]
        if any(one.outcome == "found" for one in self.slices):
            told.append("what was found is not in the restored logs: the same command with --recover appends it")
        told.append("vacuum is held: check the logs (llog log check), then llog meta release-vacuum")
        return told


def _told(one: UnknownSlice) -> str:
    others = f" and {one.objects - 1} other objects" if one.objects > 1 else ""
    return f"{one.outcome}: {one.log}, {one.msg_count} messages in {one.uri}{others}"


async def run_restore(
    settings: Settings, source: str, *, recovering: bool, dry_run: bool, old_processes_ended: bool
) -> Report:
    async with opened_log(settings, blobs=Use.LIST, segments=Use.LIST) as stores:
        context = stores.context
        place = await find_backup(stores, source)
        contents = await inspect_backup(context, place)
        report = Report(
            backup=place.where,
            backup_id=contents.header.backup_id,
            taken_at_ms=contents.header.started_at_ms,
            records=contents.end.records,
            logs=contents.end.logs,
            dry_run=dry_run,
            recovering=recovering,
        )
        if dry_run:
            await refuse_if_not_empty(context)
            assert context.wal is not None
            since_ms = max(0, contents.header.started_at_ms - RESTORE_BLOB_SLACK_MS)
            async for _ in newer_blobs(context, context.wal, since_ms):
                report.newer_blobs += 1
            return report
        done = await restore_backup(context, place, contents, old_processes_ended=old_processes_ended)
        report.versions_raised, report.resumed = done.hold.versions_raised, done.resumed
        found: Recovered = await recover(context, dry_run=not recovering)
        report.slices, report.adopted, report.unreadable = found.slices, found.adopted, found.unreadable
        return report


async def find_backup(stores: OpenedLog, source: str) -> BackupFile | BackupObjects:
    """A file, or `{store}/{root}/@backup/{id}`; a store's own URL is answered with what it holds."""
    if "://" not in source:
        return BackupFile(Path(source))
    keys = stores.context.keys
    url, separator, backup_id = source.rstrip("/").rpartition(f"/{keys.root}/{BACKUP_PREFIX}/")
    if separator and is_object_id(backup_id):
        return BackupObjects(await stores.objects.at(url, writing=False), keys, backup_id)
    store = await stores.objects.at(source, writing=False)
    held = [BackupObjects(store, keys, one.backup_id).where async for one in list_backups(store, keys)]
    listed = "; it holds " + ", ".join(held[-3:]) if held else "; and there is none below it"
    raise InvalidArgument(
        "backup", f"{source} does not name one ({{store}}/{keys.root}/{BACKUP_PREFIX}/{{id}}){listed}"
    )
