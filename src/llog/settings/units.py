"""Sizes and durations as people write them: `8MiB`, `64k`, `500ms`, `5m`.

Why it exists: `LLOG_BATCH_MAX_BYTES=8MiB` is easier to get right than 8388608, and both must keep working. A plain
number always means bytes (or milliseconds): the unit that the variable's name ends with.

What must stay true: a value either converts exactly or is refused; nothing is rounded. `KiB MiB GiB TiB` and the bare
letters `k m g t` are powers of 1,024 (as the JVM and most servers read them), `kB MB GB TB` powers of 1,000. In a
duration `m` is minutes; milliseconds are `ms`.
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

# ASCII digits only, and few enough that no conversion is ever expensive.
_QUANTITY: Final = re.compile(r"(-?[0-9][0-9_]{0,23}(?:\.[0-9]{1,9})?)\s*([a-z]{0,3})", re.ASCII)


def parse_bytes(text: str) -> int:
    """The number of bytes `text` means; `ValueError` says what is wrong with it."""
    return _parse(text, BYTES_PER_UNIT, "bytes", "KiB, MiB, GiB, TiB (1024), k, m, g, t (1024), kB, MB, GB, TB (1000)")


def parse_ms(text: str) -> int:
    """The number of milliseconds `text` means; `ValueError` says what is wrong with it."""
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
