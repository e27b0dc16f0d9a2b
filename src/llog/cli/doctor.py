"""`llog doctor`: look at everything that commonly goes wrong, and say what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from llog.cli.exits import FAILED
from llog.cli.output import AsJson, print_json, print_table
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from llog.cli.diagnosis import Finding
    from llog.settings import Settings


def doctor(
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Look for what is wrong with settings, stores, clocks, logs and Java; exit code 1 when something is."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    found = asyncio.run(_diagnose(settings))
    wrong = [finding for finding in found if finding.result == "WRONG"]
    if as_json:
        print_json({"ok": not wrong, "findings": [finding._asdict() for finding in found]})
    else:
        print_table(("look", "result", "finding", "what to do"), found, unbroken=2)
        typer.echo(f"\n{len(wrong)} WRONG" if wrong else "\nnothing is wrong")
    if wrong:
        raise typer.Exit(FAILED)


async def _diagnose(settings: Settings) -> list[Finding]:
    import os

    from llog.cli.diagnosis import diagnose
    from llog.cli.progress import progress_line

    with progress_line("looking at") as advance:
        return await diagnose(settings, os.environ, lambda look: advance(1, look))
