"""`python -m llog.loadtest.review [SCENARIO]`, which `./quick_run.sh` runs once everything is installed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from llog.errors import InvalidArgument, LlogError
from llog.loadtest.progress import Progress
from llog.loadtest.review.review import review
from llog.loadtest.run_directory import RESULTS
from llog.loadtest.scenario import read_scenario

FAILED, USAGE, INTERRUPTED = 1, 2, 130
SERVERS = {
    "minio": "minio",
    "versitygw": "versitygw",
    "oxia": "oxia",
    "oxia-cluster": "oxia",
    "postgresql": "postgresql",
}


def main(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario, or the path of a YAML file.")] = "smoke",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field; repeatable.")
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Where the run's directory goes.")] = RESULTS,
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--no-stay", help="Let everything run on after the load, until Ctrl-C; on a terminal."),
    ] = None,
    servers: Annotated[bool, typer.Option("--servers", help="Print the servers it needs, and end.")] = False,
) -> None:
    """Run a load test with Prometheus, and Grafana where it is available, on this machine only."""
    try:
        if servers:
            stack = read_scenario(scenario, changes or ()).stack
            needed = {SERVERS[name] for name in (stack.metadata, stack.objects) if name in SERVERS}
            typer.echo(" ".join(sorted({*needed, "prometheus"})))
            return
        wanted = sys.stdout.isatty() if stay is None else stay
        with Progress() as progress:
            outcome = asyncio.run(review(scenario, changes or (), results, progress, stay=wanted, show=typer.echo))
    except LlogError as error:
        typer.echo(f"llog: {error}", err=True)
        raise typer.Exit(USAGE if isinstance(error, InvalidArgument) else FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if outcome is not None:
        for line in outcome.errors:
            typer.echo(f"llog: {line}", err=True)
        typer.echo(f"report: {outcome.report or outcome.run.path}")
    if outcome is None or outcome.interrupted:
        raise typer.Exit(INTERRUPTED)
    if outcome.errors or outcome.summary is None:
        raise typer.Exit(FAILED)
    raise typer.Exit(outcome.summary.exit_code)


if __name__ == "__main__":
    typer.run(main)
