"""How commands print: a table for people, JSON for programs.

What must stay true: with `--json` stdout holds one JSON document and nothing else; `rich` is only imported when a
table is really drawn; cells are printed as they are, never read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from llog.cli.exits import FAILED

# Wider than any row of ours, so that nothing is folded where a program reads.
PIPE_COLUMNS_MAX: Final = 20_000

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def ask(question: str) -> None:
    """Returns after a yes; else the command ends here, having changed nothing. Stdout is not touched: the libraries'
    own prompts write a space there."""
    import sys

    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    answer = sys.stdin.readline()
    if answer.strip().lower() in ("y", "yes"):
        return
    unanswered = "\nllog: nobody answered, so nothing was changed; --yes answers for you"
    typer.echo("llog: nothing was changed" if answer else unanswered, err=True)
    raise typer.Exit(FAILED)


def print_json(document: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def print_json_line(document: Any) -> None:
    """From commands that tell one thing after another."""
    import sys

    import msgspec

    typer.echo(msgspec.json.encode(document).decode())
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, unbroken: int = 1) -> None:
    """Fits the terminal by wrapping all but the first `unbroken` columns; into a pipe, a row is always one line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS_MAX)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=position < unbroken or not console.is_terminal)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table, soft_wrap=not console.is_terminal)
