"""What a chart shows, free of pixels: reports write these values as JSON beside their pages."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final, Literal

import msgspec

from llog.errors import InvalidArgument

VALUE_MAX: Final = 1e300
"""Larger values are drawn as this one, so that the difference of two values stays finite."""
VALUE_MIN: Final = 1e-300
"""Smaller values are drawn as zero, so that a logarithm of a value is that of a normal number."""

Kind = Literal["lines", "stacked", "hdr", "bars"]
Point = tuple[float, float | None]
"""Horizontal and vertical value; None is a gap."""

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


class Series(msgspec.Struct, frozen=True):
    name: str
    points: tuple[Point, ...]
    """In the order of x. Of bars: x is the position in `categories`."""
    dashed: bool = False
    colour: int | None = None
    """Position in the palette; None: the position of the series in its chart."""


class Mark(msgspec.Struct, frozen=True):
    """An event, or a span of time, that all plots over time show."""

    x: float
    label: str
    end: float | None = None
    kind: Literal["event", "phase"] = "event"


class Chart(msgspec.Struct, frozen=True):
    """x of `lines` and `stacked` is seconds; of `hdr` a percentile below 100."""

    id: str
    title: str
    about: str
    kind: Kind
    unit: str
    series: tuple[Series, ...] = ()
    marks: tuple[Mark, ...] = ()
    categories: tuple[str, ...] = ()
    log: bool = False
    """The axis of values is logarithmic where they spread far. A line on such an axis shows ratios."""
    missing: str = ""
    """Why there is nothing to draw."""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise InvalidArgument("chart id", f"must be lower-case letters, digits and dashes, not {self.id!r}")

    @property
    def drawable(self) -> bool:
        return any(y is not None for line in self.lines() for _, y in line)

    def lines(self) -> list[list[Point]]:
        """The points of each series that can be drawn: those without a place are dropped, values that are no numbers
        become gaps, huge and tiny ones are cut."""
        return [
            [
                (_cut(x), _cut(y) if y is not None and isfinite(y) else None)
                for x, y in series.points
                if self._has_place(x)
            ]
            for series in self.series
        ]

    def _has_place(self, x: float) -> bool:
        return isfinite(x) and (self.kind != "hdr" or 0 <= x < 100)


def _cut(value: float) -> float:
    return 0.0 if abs(value) < VALUE_MIN else max(-VALUE_MAX, min(VALUE_MAX, value))
