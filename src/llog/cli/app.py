"""Registers every command, and turns the errors that commands raise into a line on stderr and an exit code."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llog.cli import (
    acl,
    audit,
    cost,
    doctor,
    export,
    loadtest,
    log,
    meta,
    offsets,
    pipeline,
    segments,
    serve,
    settings,
    stores,
    topic,
    users,
)
from llog.cli.exits import MEANINGS, exit_code_of
from llog.cli.records import commands as records
from llog.errors import LlogError


class ErrorsToExitCodes(TyperGroup):
    """Ends a command that raised an `LlogError` with its exit code; any other exception keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LlogError as error:
            typer.echo(f"llog: {error}", err=True)
            raise typer.Exit(exit_code_of(error)) from error


EXIT_CODES = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + "."

app = typer.Typer(
    name="llog",
    cls=ErrorsToExitCodes,
    help="A leaderless log on object storage, with Kafka's concepts. Settings are LLOG_… variables: `llog settings`.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from llog import __version__

        typer.echo(f"llog {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command(name="up")(serve.up)
app.command(name="broker")(serve.broker)
app.command(name="compactor")(serve.compactor)
app.add_typer(topic.app, name="topic")
app.command(name="produce")(records.produce)
app.command(name="consume")(records.consume)
app.command(name="tail")(records.tail)
app.command(name="offsets", cls=offsets.OffsetsCommand)(offsets.offsets)
app.add_typer(offsets.group_app, name="group")
app.command(name="fence")(log.fence)
app.command(name="unfence")(log.unfence)
# "-1" is an offset here, not an option.
app.command(name="delete-records", context_settings={"ignore_unknown_options": True})(log.delete_records)

# Each job is one function. `llog compact` and `llog vacuum` are `llog pipeline compact` and `llog pipeline vacuum`, run
# in this process unless --spark or --master says otherwise.
for job in (pipeline.compact, pipeline.vacuum):
    app.command(context_settings={"default_map": {"in_process": True}})(job)
for job in (pipeline.compact, pipeline.vacuum, pipeline.key_compact, pipeline.retain, audit.audit, export.export):
    pipeline.app.command()(job)
app.add_typer(pipeline.app, name="pipeline")

app.command(name="doctor")(doctor.doctor)
app.command(name="cost", epilog=cost.EPILOG)(cost.cost)
app.command(name="settings")(settings.show_settings)
app.add_typer(stores.app, name="stores")
app.add_typer(log.app, name="log")
app.add_typer(segments.app, name="segments")
app.add_typer(meta.app, name="meta")
app.add_typer(users.app, name="user")
app.add_typer(acl.app, name="acl")
app.add_typer(loadtest.app, name="loadtest")
