"""The one place where commands are registered: one small module per command group.

A command raises what the library raises; here every `LlogError` becomes a line on stderr and an exit code.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llog.cli import compact, doctor, fencing, log, meta, offsets, segments, settings, stores, topic
from llog.cli.exits import MEANINGS, exit_code_of
from llog.cli.pipeline import frame as pipeline
from llog.cli.pipeline import vacuum as pipeline_vacuum
from llog.cli.records import commands as records
from llog.cli.services import serve, up
from llog.errors import LlogError


class ErrorsToExitCodes(TyperGroup):
    """Ends a command that raised one of our errors as `exits` says; a bug keeps its traceback."""

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
    help="A diskless Kafka: a leaderless log on object storage. Settings come from LLOG_… variables: `llog settings`.",
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


app.command(name="settings")(settings.show_settings)
app.add_typer(stores.app, name="stores")
app.add_typer(log.app, name="log")
app.add_typer(meta.app, name="meta")
app.add_typer(segments.app, name="segments")
app.command(name="broker")(serve.broker)
app.command(name="compactor")(serve.compactor)
app.command(name="up")(up.up)
app.add_typer(topic.app, name="topic")
app.command(name="produce")(records.produce)
app.command(name="consume")(records.consume)
app.command(name="tail")(records.tail)
app.add_typer(offsets.app, name="offsets")
app.command(name="fence")(fencing.fence)
app.command(name="unfence")(fencing.unfence)
app.command(name="compact")(compact.compact)
# "-1" is an offset there, not an option.
app.command(name="delete-records", context_settings={"ignore_unknown_options": True})(compact.delete_records)
app.command(name="vacuum")(pipeline_vacuum.vacuum_here)
app.add_typer(pipeline.app, name="pipeline")
app.command(name="doctor")(doctor.doctor)
