"""`llog meta …`: show the metadata, back it up, restore it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from llog.cli.exits import FAILED, NOT_FOUND
from llog.cli.frame import on_log, with_stores
from llog.cli.output import AsJson, DryRun, Yes, ask, instant, print_json, print_report, print_result, progress_line

if TYPE_CHECKING:
    from llog.formats.backup import BackupManifest
    from llog.log.context import LogContext
    from llog.log.inspect.describe import DescribedRecord
    from llog.log.recovery.backup_places import BackupFile, BackupObjects
    from llog.log.recovery.recover import UnknownSlice
    from llog.settings import Settings
    from llog.wiring import OpenedLog

app = typer.Typer(help="Show the metadata, back it up, restore it.", no_args_is_help=True)

SCAN_LIMIT_DEFAULT: Final = 1_000


@app.command()
@with_stores("metadata")
def show(settings: Settings, key: str, as_json: AsJson = False) -> None:
    """Show one key: its kind, version and value. KEY may omit the root prefix."""
    from llog.log.inspect.describe import describe_record

    async def read(context: LogContext) -> DescribedRecord | None:
        path = _below_root(context.keys.root, key)
        record = await context.metadata.get(context.keys.key_of(path), strict=True)
        return None if record is None else describe_record(context.keys, record)

    record = on_log(settings, read)
    if record is None:
        typer.echo(f"llog: no such key: {key}; `llog meta scan` lists the keys", err=True)
        raise typer.Exit(NOT_FOUND)
    if as_json:
        print_json(record)
        return
    bound = ", bound to a session" if record.ephemeral else ""
    typer.echo(f"{record.key}\n{record.kind}, version {record.version}, {record.byte_length} bytes{bound}")
    print_json(record.value)
    if record.problem:
        typer.echo(f"llog: {record.problem}", err=True)


def _below_root(root: str, path: str) -> str:
    path = path.strip("/")
    return path if path == root or path.startswith(root + "/") else f"{root}/{path}".rstrip("/")


@app.command()
@with_stores("metadata")
def scan(
    settings: Settings,
    prefix: Annotated[str, typer.Argument(help="Only this key and those below it; it may omit the root prefix.")] = "",
    values: Annotated[bool, typer.Option("--values", help="Also show the values.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Stop after this many keys.")] = SCAN_LIMIT_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List keys and their kinds, including keys of unknown kinds."""
    records, more = on_log(settings, lambda context: _scan(context, prefix, values, limit))
    columns = ("key", "kind", "version", "bytes", *(("value",) if values else ()))
    rows = [
        (one.key, one.kind, str(one.version), str(one.byte_length), *((_one_line(one.value),) if values else ()))
        for one in records
    ]
    print_report(as_json, records, columns, rows)
    if more:
        typer.echo(f"llog: there are more than {limit} keys: raise --limit to see more", err=True)


def _one_line(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _scan(context: LogContext, prefix: str, values: bool, limit: int) -> tuple[list[DescribedRecord], bool]:
    from contextlib import aclosing

    from llog.log.inspect.describe import describe_record

    records: list[DescribedRecord] = []
    tree = context.metadata.scan_tree(_below_root(context.keys.root, prefix))
    more = False
    async with aclosing(tree) as walking:  # type: ignore[type-var]
        async for record in walking:
            if len(records) == limit:
                more = True
                break
            records.append(describe_record(context.keys, record, with_value=values))
    return sorted(records, key=lambda one: one.key), more


# -- backup ---------------------------------------------------------------------------------------------------------


@app.command()
@with_stores("metadata")
def backup(
    settings: Settings,
    destination: Annotated[str, typer.Argument(help="A file that does not exist yet, or the URL of an object store.")],
    as_json: AsJson = False,
) -> None:
    """Copy the metadata while the cluster runs. The copy of each log is consistent."""
    import asyncio

    where, manifest = asyncio.run(_backup(settings, destination))
    size = sum(part.byte_length for part in manifest.parts)
    document = {"backup": where, "byte_length": size, "manifest": manifest}
    seconds = (manifest.finished_at_ms - manifest.started_at_ms) / 1_000
    text = f"{where}\n{manifest.records} records of {manifest.logs} logs, {size:,} bytes, in {seconds:.1f} s"
    print_result(as_json, document, text)


async def _backup(settings: Settings, destination: str) -> tuple[str, BackupManifest]:
    from pathlib import Path

    from llog.log.ids import new_object_id
    from llog.log.recovery.backup import write_backup
    from llog.log.recovery.backup_places import BackupFile, BackupObjects
    from llog.wiring import opened_log

    async with opened_log(settings) as stores:
        context = stores.context
        backup_id = new_object_id(context.now_ms(), context.random_bits)
        place: BackupFile | BackupObjects
        if "://" in destination:
            place = BackupObjects(await stores.objects.at(destination), context.keys, backup_id)
        else:
            place = BackupFile(Path(destination))
        with progress_line("backing up the metadata"):
            return place.where, await write_backup(context, place, backup_id)


@app.command()
@with_stores("objects")
def backups(
    settings: Settings,
    url: Annotated[str | None, typer.Argument(help="An object store; by default LLOG_OBJECTS_URL.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the complete backups in an object store, oldest first."""
    import asyncio

    listed = asyncio.run(_backups(settings, url or settings.objects_url))
    documents = [{"backup": where, "manifest": manifest} for where, manifest in listed]
    rows = [
        (where, instant(m.started_at_ms), str(m.logs), str(m.records), f"{sum(p.byte_length for p in m.parts):,}")
        for where, m in listed
    ]
    print_report(as_json, documents, ("backup", "taken", "logs", "records", "bytes"), rows)


async def _backups(settings: Settings, url: str) -> list[tuple[str, BackupManifest]]:
    from llog.log.keys import Keys
    from llog.log.recovery.backup_places import BackupObjects, list_backups
    from llog.wiring import ObjectStores

    keys = Keys(settings.root_prefix)
    async with ObjectStores(settings) as objects:
        store = await objects.at(url, writing=False)
        return [
            (BackupObjects(store, keys, manifest.backup_id).where, manifest)
            async for manifest in list_backups(store, keys)
        ]


# -- restore --------------------------------------------------------------------------------------------------------


@app.command()
@with_stores("metadata", "objects", "wal", audit="metadata.restore")
def restore(
    settings: Settings,
    source: Annotated[str, typer.Argument(help="A backup: the file, or the URL that `llog meta backup` printed.")],
    recover: Annotated[
        bool, typer.Option("--recover", help="Append again the records of blobs and segments newer than the backup.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    old_processes_ended: Annotated[
        bool,
        typer.Option(
            "--old-processes-ended", help="Confirm that no process that used the lost store runs; some stores need it."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an EMPTY metadata store. Vacuum is held until `llog meta release-vacuum`."""
    import asyncio

    if not (yes or dry_run):
        ask("Is every broker, compactor and job of this cluster stopped?")
    with progress_line("checking the backup" if dry_run else "restoring"):
        report = asyncio.run(
            run_restore(settings, source, recovering=recover, dry_run=dry_run, old_processes_ended=old_processes_ended)
        )
    print_result(as_json, report.document(), "\n".join(report.lines()))
    if report.incomplete():
        raise typer.Exit(FAILED)


class RestoreReport(NamedTuple):
    backup: str
    backup_id: str
    taken_at_ms: int
    records: int
    logs: int
    dry_run: bool
    newer_blobs: int = 0
    """For a dry run: blobs that may hold records that are not in the backup."""
    versions_raised: bool = False
    resumed: bool = False
    recovering: bool = False
    slices: Sequence[UnknownSlice] = ()
    adopted: Sequence[str] = ()
    unreadable: Sequence[str] = ()
    restore_seconds: float = 0.0
    search_seconds: float = 0.0
    """Finding, and recovering, what is newer than the backup."""

    def incomplete(self) -> bool:
        """Data exists that should have been recovered and was not."""
        missing = self.recovering and any(one.outcome.startswith(("refused", "left")) for one in self.slices)
        return bool(self.unreadable) or missing

    def document(self) -> dict[str, object]:
        return {**self._asdict(), "slices": [{**one._asdict(), "log": str(one.log)} for one in self.slices]}

    def lines(self) -> list[str]:
        lines = [f"{self.backup}: {self.records} records of {self.logs} logs"]
        if self.dry_run:
            state = "the backup is complete and the store is empty"
            return [*lines, f"{state}; {self.newer_blobs} newer blobs; nothing was changed"]
        times = f" in {self.restore_seconds:.1f} s; searched for newer records in {self.search_seconds:.1f} s"
        lines.append("restored" + (", continuing an interrupted restore" if self.resumed else "") + times)
        if not self.versions_raised:
            lines.append("this store cannot raise versions: no process that used the lost store may run again")
        lines += [_slice_line(one) for one in self.slices]
        lines += [f"adopted: {uri}" for uri in self.adopted]
        lines += [f"cannot be read: {uri}" for uri in self.unreadable]
        if any(one.outcome == "found" for one in self.slices):
            lines.append(
                "records marked found are not in the restored logs: run the command with --recover to append them"
            )
        return [*lines, "vacuum is held: check the logs (llog log check), then run llog meta release-vacuum"]


def _slice_line(one: UnknownSlice) -> str:
    others = f" and {one.objects - 1} other objects" if one.objects > 1 else ""
    return f"{one.outcome}: {one.log}, {one.msg_count} messages in {one.uri}{others}"


async def run_restore(
    settings: Settings, source: str, *, recovering: bool, dry_run: bool, old_processes_ended: bool
) -> RestoreReport:
    from llog.limits import RESTORE_BLOB_SLACK_MS
    from llog.log.recovery.recover import recover
    from llog.log.recovery.recover_find import newer_blobs
    from llog.log.recovery.restore import inspect_backup, refuse_if_not_empty, restore_backup
    from llog.wiring import Use, opened_log

    async with opened_log(settings, blobs=Use.LIST, segments=Use.LIST) as stores:
        context = stores.context
        place = await find_backup(stores, source)
        contents = await inspect_backup(context, place)
        report = RestoreReport(
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
            return report._replace(
                newer_blobs=len([blob async for blob in newer_blobs(context, context.wal, since_ms)])
            )
        times = [time.monotonic()]
        done = await restore_backup(context, place, contents, old_processes_ended=old_processes_ended)
        times.append(time.monotonic())
        found = await recover(context, dry_run=not recovering)
        times.append(time.monotonic())
        return report._replace(
            restore_seconds=round(times[1] - times[0], 3),
            search_seconds=round(times[2] - times[1], 3),
            versions_raised=done.hold.versions_raised,
            resumed=done.resumed,
            slices=found.slices,
            adopted=found.adopted,
            unreadable=found.unreadable,
        )


async def find_backup(stores: OpenedLog, source: str) -> BackupFile | BackupObjects:
    """A file, or `{store}/{root}/@backup/{id}`. For the URL of a store, the error lists the backups in it."""
    from pathlib import Path

    from llog.errors import InvalidArgument
    from llog.log.ids import is_object_id
    from llog.log.keys import BACKUP_PREFIX
    from llog.log.recovery.backup_places import BackupFile, BackupObjects, list_backups

    if "://" not in source:
        return BackupFile(Path(source))
    keys = stores.context.keys
    url, separator, backup_id = source.rstrip("/").rpartition(f"/{keys.root}/{BACKUP_PREFIX}/")
    if separator and is_object_id(backup_id):
        return BackupObjects(await stores.objects.at(url, writing=False), keys, backup_id)
    store = await stores.objects.at(source, writing=False)
    held = [BackupObjects(store, keys, one.backup_id).where async for one in list_backups(store, keys)]
    listed = "the latest backups there: " + ", ".join(held[-3:]) if held else "there is no backup below it"
    form = f"{{store}}/{keys.root}/{BACKUP_PREFIX}/{{id}}"
    raise InvalidArgument("backup", f"{source} is not the URL of a backup ({form}); {listed}")


@app.command(name="release-vacuum")
@with_stores("metadata", audit="vacuum.release")
def release(settings: Settings, as_json: AsJson = False) -> None:
    """Release the hold that a restore put on vacuum, so that unreferenced objects are deleted again."""
    from llog.log.recovery.restore import release_vacuum

    hold = on_log(settings, release_vacuum)
    text = "vacuum was not held" if hold is None else f"vacuum is released; the reason was: {hold.reason}"
    print_result(as_json, {"released": hold}, text)
