"""Sizes and durations as people write them: `8MiB`, `64k`, `500ms`, `5m`.

A plain number has the unit at the end of the name of the variable: bytes or milliseconds. A value converts exactly or
is refused; nothing is rounded. `KiB MiB GiB TiB` and the bare letters `k m g t` are powers of 1,024 (as in the JVM and
most servers), `kB MB GB TB` powers of 1,000. In a duration `m` is minutes; milliseconds are `ms`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_BINARY: Final = {letter: 1024**power for power, letter in enumerate("kmgt", start=1)}
_DECIMAL: Final = {letter + "b": 1000**power for power, letter in enumerate("kmgt", start=1)}

BYTES_PER_UNIT: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **_BINARY,
    **{letter + "ib": factor for letter, factor in _BINARY.items()},
    **_DECIMAL,
}
MS_PER_UNIT: Final[dict[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

# ASCII digits only, and few enough that a conversion is cheap.
_QUANTITY: Final = re.compile(r"(-?[0-9][0-9_]{0,23}(?:\.[0-9]{1,9})?)\s*([a-z]{0,3})", re.ASCII)


def parse_bytes(text: str) -> int:
    """Parse a size in bytes. Raises `ValueError` with the reason."""
    return _parse(text, BYTES_PER_UNIT, "bytes", "KiB, MiB, GiB, TiB (1024), k, m, g, t (1024), kB, MB, GB, TB (1000)")


def parse_ms(text: str) -> int:
    """Parse a duration in milliseconds. Raises `ValueError` with the reason."""
    return _parse(text, MS_PER_UNIT, "milliseconds", "ms, s, m (minutes), h, d")


def format_bytes(count: int) -> str:
    """The shortest exact way to write a size; `parse_bytes` reads it back."""
    for letter, factor in reversed(_BINARY.items()):
        if count and count % factor == 0:
            return f"{count // factor}{letter.upper()}iB"
    return str(count)


def format_ms(count: int) -> str:
    """The shortest exact way to write a duration; `parse_ms` reads it back."""
    for unit in ("d", "h", "m", "s"):
        if count and count % MS_PER_UNIT[unit] == 0:
            return f"{count // MS_PER_UNIT[unit]}{unit}"
    return f"{count}ms"


def _parse(text: str, units: dict[str, int], what: str, known: str) -> int:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"not a number of {what}, with or without a unit ({known})")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(f"unknown unit {unit!r}; known are {known}")
    amount = Fraction(number.replace("_", "")) * units[unit]
    if amount.denominator != 1:
        raise ValueError(f"not a whole number of {what}")
    return int(amount)
