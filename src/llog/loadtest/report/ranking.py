"""Many lines in one chart: the largest, and the rest added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llog.loadtest.report.charts import Series
from llog.loadtest.report.charts.model import Point

SERIES_MAX: Final = 8


def ranked(lines: Mapping[str, tuple[Point, ...]], rest: str = "other") -> tuple[Series, ...]:
    """The largest first; those beyond SERIES_MAX are added up. Lines that are zero throughout are left out."""
    sizes = {name: sum(y or 0.0 for _, y in points) for name, points in lines.items()}
    names = sorted((name for name, size in sizes.items() if size > 0), key=lambda name: (-sizes[name], name))
    if len(names) <= SERIES_MAX:
        return tuple(Series(name, lines[name]) for name in names)
    shown, others = names[: SERIES_MAX - 1], names[SERIES_MAX - 1 :]
    columns = zip(*(lines[name] for name in others), strict=True)
    summed = tuple(
        (column[0][0], None if all(y is None for _, y in column) else sum(y or 0.0 for _, y in column))
        for column in columns
    )
    return (*(Series(name, lines[name]) for name in shown), Series(f"{rest} ({len(others)})", summed))
