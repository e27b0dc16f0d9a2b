"""How commands print: a table for people, JSON for programs, and progress on stderr.

With `--json` stdout holds JSON and nothing else. Progress is drawn only where stderr is a terminal. `rich` and
`msgspec` are imported only when they are used. Cells are printed verbatim, never read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llog.cli.exits import FAILED

if TYPE_CHECKING:
    from llog.pipeline.runtime.tasks import OnProgress

# Wider than any row of ours, so that no line is folded when a program reads the table.
PIPE_COLUMNS_MAX: Final = 20_000

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def print_result(as_json: bool, document: Any, text: str) -> None:
    """Print `document` as JSON, or `text` for people."""
    if as_json:
        print_json(document)
    else:
        typer.echo(text)


def print_report(
    as_json: bool,
    document: Any,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    unbroken: int = 1,
    empty: str | None = None,
) -> None:
    """Print `document` as JSON, or `rows` as a table; `empty`, if given, replaces a table without rows."""
    if as_json:
        print_json(document)
    elif rows or empty is None:
        print_table(columns, rows, unbroken=unbroken)
    else:
        typer.echo(empty)


def print_json(document: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def print_json_line(document: Any) -> None:
    """Print one line of a command that reports several things over time."""
    import msgspec

    typer.echo(msgspec.json.encode(document).decode())
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, unbroken: int = 1) -> None:
    """Fit the terminal by wrapping all but the first `unbroken` columns; in a pipe, each row is one line."""
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


def instant(ms: int) -> str:
    """A timestamp as ISO 8601 in UTC. Producers choose record timestamps, so a value may be no date at all."""
    from datetime import UTC, datetime

    if ms < 0:
        return "unknown"
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def ask(question: str) -> None:
    """Return after a yes; otherwise end the command with exit code 1. The prompt goes to stderr, so stdout stays
    clean."""
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    answer = sys.stdin.readline()
    if answer.strip().lower() in ("y", "yes"):
        return
    unanswered = "\nllog: standard input ended without an answer, nothing was changed; use --yes to skip the question"
    typer.echo("llog: nothing was changed" if answer else unanswered, err=True)
    raise typer.Exit(FAILED)


@contextmanager
def progress_line(title: str, *, total: int | None = None, wanted: bool = True) -> Iterator[OnProgress]:
    """Draw a progress bar towards `total` on stderr, or a spinner with a detail when the total is unknown."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda _amount, _detail: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *((BarColumn(), MofNCompleteColumn()) if total is not None else ()),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(title), total=total, detail="")
        yield lambda amount, detail: bar.update(task, advance=amount, detail=escape(detail))
