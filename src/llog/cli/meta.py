"""`llog meta …`: the metadata itself: show it, back it up, put it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.exits import FAILED, NOT_FOUND
from llog.cli.output import AsJson, ask, print_json, print_table
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.formats.backup import BackupManifest, VacuumHold
    from llog.log.inspect.record import Shown
    from llog.settings import Settings

app = typer.Typer(help="The metadata: show it, back it up, put it back.", no_args_is_help=True)

SCAN_LIMIT_DEFAULT = 1_000


@app.command()
def show(key: str, as_json: AsJson = False, metadata_url: MetadataUrl = None) -> None:
    """Show one key: what it means, its version and its value. KEY may leave out the root prefix."""
    import asyncio

    from llog.settings import Settings

    found = asyncio.run(_show(Settings.from_env(metadata_url=metadata_url), key))
    if found is None:
        typer.echo(f"llog: no such key: {key}; `llog meta scan` shows those there are", err=True)
        raise typer.Exit(NOT_FOUND)
    if as_json:
        print_json(found)
        return
    bound = ", bound to a session" if found.ephemeral else ""
    typer.echo(f"{found.key}\n{found.kind}, version {found.version}, {found.byte_length} bytes{bound}")
    print_json(found.value)
    if found.problem:
        typer.echo(f"llog: {found.problem}", err=True)


async def _show(settings: Settings, key: str) -> Shown | None:
    from llog.log.inspect.record import shown
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        context = stores.context
        path = _below_root(context.keys.root, key)
        record = await context.metadata.get(context.keys.key_of(path), strict=True)
        return None if record is None else shown(context.keys, record)


def _below_root(root: str, path: str) -> str:
    path = path.strip("/")
    return path if path == root or path.startswith(root + "/") else f"{root}/{path}".rstrip("/")


@app.command()
def scan(
    prefix: Annotated[str, typer.Argument(help="Only keys at or below this; it may leave out the root prefix.")] = "",
    values: Annotated[bool, typer.Option("--values", help="Also show the values.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Stop after so many keys.")] = SCAN_LIMIT_DEFAULT,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """List keys, with what they mean; those of no known kind too."""
    import asyncio

    from llog.settings import Settings

    found, more = asyncio.run(_scan(Settings.from_env(metadata_url=metadata_url), prefix, values, limit))
    if as_json:
        print_json(found)
    else:
        columns = ("key", "kind", "version", "bytes", *(("value",) if values else ()))
        rows = [
            (one.key, one.kind, str(one.version), str(one.byte_length), *((_compact(one.value),) if values else ()))
            for one in found
        ]
        print_table(columns, rows)
    if more:
        typer.echo(f"llog: there are more than {limit} keys: --limit shows more of them", err=True)


def _compact(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _scan(settings: Settings, prefix: str, values: bool, limit: int) -> tuple[list[Shown], bool]:
    from contextlib import aclosing

    from llog.log.inspect.record import shown
    from llog.opening import opened_log

    found: list[Shown] = []
    more = False
    async with opened_log(settings) as stores:
        context = stores.context
        records = context.metadata.scan_tree(_below_root(context.keys.root, prefix))
        async with aclosing(records) as walking:  # type: ignore[type-var]
            async for record in walking:
                if len(found) == limit:
                    more = True
                    break
                found.append(shown(context.keys, record, with_value=values))
    return sorted(found, key=lambda one: one.key), more


# -- backup ---------------------------------------------------------------------------------------------------------


@app.command()
def backup(
    destination: Annotated[str, typer.Argument(help="A file that does not exist yet, or the URL of an object store.")],
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Copy the metadata, consistent for each log, while everything runs."""
    import asyncio

    from llog.settings import Settings

    where, manifest = asyncio.run(_backup(Settings.from_env(metadata_url=metadata_url), destination))
    size = sum(part.byte_length for part in manifest.parts)
    if as_json:
        print_json({"backup": where, "byte_length": size, "manifest": manifest})
    else:
        typer.echo(f"{where}\n{manifest.records} records of {manifest.logs} logs, {size:,} bytes")


async def _backup(settings: Settings, destination: str) -> tuple[str, BackupManifest]:
    from pathlib import Path

    from llog.cli.progress import progress_line
    from llog.log.ids import new_object_id
    from llog.log.recovery.backup import write_backup
    from llog.log.recovery.backup_places import BackupFile, BackupObjects
    from llog.opening import opened_log

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
def backups(
    url: Annotated[str | None, typer.Argument(help="An object store; LLOG_OBJECTS_URL when left out.")] = None,
    as_json: AsJson = False,
    objects_url: ObjectsUrl = None,
) -> None:
    """List the whole backups in an object store, oldest first; torn ones are not backups."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(objects_url=objects_url)
    found = asyncio.run(_backups(settings, url or settings.objects_url))
    if as_json:
        print_json([{"backup": where, "manifest": manifest} for where, manifest in found])
        return
    rows = [
        (where, _instant(m.started_at_ms), str(m.logs), str(m.records), f"{sum(p.byte_length for p in m.parts):,}")
        for where, m in found
    ]
    print_table(("backup", "taken", "logs", "records", "bytes"), rows)


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


def _instant(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="seconds")


# -- restore --------------------------------------------------------------------------------------------------------


@app.command()
def restore(
    source: Annotated[str, typer.Argument(help="A backup: the file, or the URL that `llog meta backup` printed.")],
    recover: Annotated[
        bool, typer.Option("--recover", help="Append again what blobs and segments newer than the backup hold.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the backup and the store; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    old_processes_ended: Annotated[
        bool,
        typer.Option("--old-processes-ended", help="Nobody who used the lost store is left; for stores that need it."),
    ] = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Put a backup back into an EMPTY metadata store. Vacuum stays held until `llog meta release-vacuum`."""
    import asyncio

    from llog.cli.progress import progress_line
    from llog.cli.restoring import run_restore
    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    if not (yes or dry_run):
        ask("Is every broker, compactor and job of this cluster stopped?")
    with progress_line("looking at the backup" if dry_run else "restoring"):
        report = asyncio.run(
            run_restore(settings, source, recovering=recover, dry_run=dry_run, old_processes_ended=old_processes_ended)
        )
    if as_json:
        print_json(report.document())
    else:
        for line in report.lines():
            typer.echo(line)
    if report.incomplete():
        raise typer.Exit(FAILED)


@app.command(name="release-vacuum")
def release(as_json: AsJson = False, metadata_url: MetadataUrl = None) -> None:
    """Lift the hold that a restore put on vacuum: from then on, objects that nothing names are deleted again."""
    import asyncio

    from llog.settings import Settings

    hold = asyncio.run(_release(Settings.from_env(metadata_url=metadata_url)))
    if as_json:
        print_json({"released": hold})
    else:
        typer.echo("vacuum was not held" if hold is None else f"vacuum is released; it was held: {hold.reason}")


async def _release(settings: Settings) -> VacuumHold | None:
    from llog.log.recovery.restore import release_vacuum
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await release_vacuum(stores.context)
