"""`llog settings`: every setting, its value, and where the value comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from llog.cli.output import AsJson, print_report


def show_settings(
    as_json: AsJson = False,
    changed: Annotated[
        bool, typer.Option("--changed/--all", help="Only settings that differ from their default, or all.")
    ] = False,
    env_example: Annotated[
        bool, typer.Option("--env-example", help="Print .env.example instead; reads no setting.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference page instead; reads no setting.")
    ] = False,
) -> None:
    """Show every setting, its value and the value's source. Secrets are masked."""
    from llog.settings import Settings, pages

    if as_json + env_example + markdown > 1:
        raise typer.BadParameter("--json, --env-example and --markdown exclude each other")
    if env_example or markdown:
        typer.echo(pages.env_example() if env_example else pages.markdown(), nl=False)
        return
    rows = list(pages.describe(Settings.from_env(), changed_only=changed))
    cells = [(row["variable"], row["text"], row["source"], row["doc"]) for row in rows]
    print_report(as_json, rows, ("variable", "value", "source", "meaning"), cells)
