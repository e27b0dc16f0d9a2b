"""How long work shows that it goes on: one line on stderr, and only where somebody looks at it.

What must stay true: stdout is never touched, so that output stays readable by programs; without a terminal nothing is
drawn and `rich` is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llog.pipeline.runtime.progress import Advance


@contextmanager
def progress_line(what: str, *, total: int | None = None, wanted: bool = True) -> Iterator[Advance]:
    """A bar towards `total`, or, where nobody knows the total, what it is at."""
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
        task = bar.add_task(escape(what), total=total, detail="")
        yield lambda amount, detail: bar.update(task, advance=amount, detail=escape(detail))
