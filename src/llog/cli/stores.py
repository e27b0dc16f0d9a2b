"""`llog stores …`: the stores themselves, below any log."""

from __future__ import annotations

from typing import Annotated

import typer

from llog.cli.exits import FAILED
from llog.cli.output import AsJson, print_json, print_table

app = typer.Typer(help="The metadata store and the object stores.", no_args_is_help=True)

MetadataUrl = Annotated[str | None, typer.Option("--metadata-url", help="Instead of LLOG_METADATA_URL.")]
ObjectsUrl = Annotated[str | None, typer.Option("--objects-url", help="Instead of LLOG_OBJECTS_URL.")]
WalUrl = Annotated[str | None, typer.Option("--wal-url", help="Instead of LLOG_WAL_URL.")]


@app.callback()
def _stores() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@app.command()
def check(
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Open the stores in force, write, read and remove a probe in each; exit code 1 when a step fails."""
    import asyncio

    from llog.cli.store_check import check_stores
    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    steps = asyncio.run(check_stores(settings))
    ok = all(step.ok for step in steps)
    if as_json:
        print_json({"ok": ok, "steps": [step._asdict() for step in steps]})
    else:
        rows = [(s.store, s.url, s.step, "ok" if s.ok else "FAILED", f"{s.ms:.1f}") for s in steps]
        print_table(("store", "url", "step", "result", "ms"), rows)
    for step in steps:
        if not step.ok:
            typer.echo(f"llog: {step.store} store, {step.step}: {step.error}\n  {step.advice}", err=True)
    if not ok:
        raise typer.Exit(FAILED)
