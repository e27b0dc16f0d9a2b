"""`llog settings`: what is in force, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from llog.cli.output import AsJson, print_json, print_table


def show_settings(
    as_json: AsJson = False,
    changed: Annotated[
        bool, typer.Option("--changed/--all", help="Only what is not a default, or everything.")
    ] = False,
    env_example: Annotated[
        bool, typer.Option("--env-example", help="Print .env.example instead; reads no setting.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference page instead; reads no setting.")
    ] = False,
) -> None:
    """Show every setting in force and where it comes from; secrets are masked."""
    from llog.settings import pages as pages

    if as_json + env_example + markdown > 1:
        raise typer.BadParameter("--json, --env-example and --markdown exclude each other")
    if env_example or markdown:
        typer.echo(pages.env_example() if env_example else pages.markdown(), nl=False)
        return
    from llog.settings import Settings

    rows = list(pages.describe(Settings.from_env(), changed_only=changed))
    if as_json:
        print_json(rows)
    else:
        cells = [(row["variable"], row["text"], row["source"], row["doc"]) for row in rows]
        print_table(("variable", "value", "source", "meaning"), cells)
