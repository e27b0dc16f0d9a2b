"""The rules of a JSON Schema on values, as checks of whole Arrow arrays.

A check returns which elements break its rule. Null never does: whether a place may be null, or missing, is a matter of
its type. A rule for another type than the column's has no effect, as in JSON Schema. Patterns are matched by RE2, in
linear time whatever the value; it has no look-around and no back-references, and a pattern that needs them is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]
Violations = Callable[[pa.Array], Flags]
_FORMATS: Final = {
    "uuid": r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    "time": r"^([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)$",
}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Refused(Exception):
    """A place of a schema that cannot be honoured."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


@dataclass(frozen=True, slots=True)
class Check:
    rule: str
    """The keyword and its value, for the reason why a value is bad."""
    violations: Violations


def checks_of(flat: dict[str, Any], kind: pa.DataType, place: str) -> tuple[Check, ...]:
    """The checks of a schema whose values are of this Arrow type. Raises `Refused`."""
    checks: list[Check] = []

    def add(name: str, violations: Violations) -> None:
        checks.append(Check(f"{name} {str(flat[name])[:100]}", violations))

    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        for name, violations in _bounds(flat, kind, place):
            add(name, violations)
        if "multipleOf" in flat:
            add("multipleOf", _multiple_of(_number(flat, "multipleOf", place, above=0), kind))
    elif pa.types.is_struct(kind):
        for name in ("minProperties", "maxProperties"):
            if name in flat:
                raise Refused(place, f"keyword {name!r} is only supported for maps, not beside properties")
    else:
        for name, violations in _sized(flat, kind, place):
            add(name, violations)
    if pa.types.is_string(kind) and flat.get("format") in _FORMATS:
        add("format", _unmatched(_FORMATS[flat["format"]]))
    if pa.types.is_list(kind) and flat.get("uniqueItems"):
        if pa.types.is_nested(kind.value_type):
            raise Refused(place, "keyword 'uniqueItems' is only supported for items that are no objects and no arrays")
        add("uniqueItems", _repeated)
    for name in ("enum", "const"):
        if name in flat:
            values = flat[name] if name == "enum" else [flat[name]]
            add(name, _other_than(values, kind, f"{place}: keyword {name!r}"))
    return tuple(checks)


def exact(number: int | float) -> Fraction:
    """A number of a schema as it was written, not as a binary fraction."""
    return Fraction(Decimal(str(number)))


def _number(flat: dict[str, Any], name: str, place: str, *, above: float = -math.inf) -> int | float:
    number = flat[name]
    if not isinstance(number, int | float) or isinstance(number, bool) or not above < number:
        raise Refused(place, f"keyword {name!r} must be a number, not {number!r}")
    return number


# -- numbers -----------------------------------------------------------------------------------------------------------


def _bounds(flat: dict[str, Any], kind: pa.DataType, place: str) -> list[tuple[str, Violations]]:
    bounds: list[tuple[str, Violations]] = []
    for end, lower in (("inimum", True), ("aximum", False)):
        inclusive, exclusive = f"m{end}", f"exclusiveM{end}"
        strict = flat.get(exclusive)
        if inclusive in flat:
            number = _number(flat, inclusive, place)
            # In draft 4, exclusiveMinimum says of minimum that it is exclusive.
            bounds.append((inclusive, _beyond(number, kind, lower=lower, strict=strict is True)))
        if exclusive in flat and not isinstance(strict, bool):
            bounds.append((exclusive, _beyond(_number(flat, exclusive, place), kind, lower=lower, strict=True)))
    return bounds


def _beyond(bound: int | float, kind: pa.DataType, *, lower: bool, strict: bool) -> Violations:
    """Elements below a lower bound, or above an upper one; with `strict`, at the bound too."""
    if pa.types.is_floating(kind):
        compare = (pc.less_equal if strict else pc.less) if lower else (pc.greater_equal if strict else pc.greater)
        return lambda array: _flags(compare(array, float(bound)))
    # The nearest number of the column's scale that the bound allows.
    units = exact(bound) * 10 ** (kind.scale if pa.types.is_decimal(kind) else 0)
    if lower:
        nearest = math.floor(units) + 1 if strict else math.ceil(units)
    else:
        nearest = math.ceil(units) - 1 if strict else math.floor(units)
    if pa.types.is_integer(kind):
        least, most, limit = _INT64_MIN, _INT64_MAX, pa.scalar(min(max(nearest, _INT64_MIN), _INT64_MAX), kind)
    else:
        most = 10**kind.precision - 1
        least, clipped = -most, min(max(nearest, -most), most)
        limit = pa.scalar(Decimal(clipped).scaleb(-kind.scale), kind)
    if nearest > most if lower else nearest < least:
        return lambda array: np.asarray(array.is_valid())
    return lambda array: _flags(pc.less(array, limit) if lower else pc.greater(array, limit))


def _multiple_of(factor: int | float, kind: pa.DataType) -> Violations:
    step = exact(factor)

    def violations(array: pa.Array) -> Flags:
        if pa.types.is_integer(kind) and step.denominator == 1 and step.numerator <= _INT64_MAX:
            return np.asarray(array.fill_null(0).to_numpy() % step.numerator != 0)
        distinct = array.unique().drop_null()
        wrong = [value for value in distinct.to_pylist() if not _is_multiple(value, step)]
        return _flags(pc.is_in(array, value_set=pa.array(wrong, kind)))

    return violations


def _is_multiple(value: Any, step: Fraction) -> bool:
    return Fraction(Decimal(str(value))) % step == 0


# -- texts, lists and maps ---------------------------------------------------------------------------------------------


def _sized(flat: dict[str, Any], kind: pa.DataType, place: str) -> list[tuple[str, Violations]]:
    sized: list[tuple[str, Violations]] = []
    ends = {"Length": pc.utf8_length} if pa.types.is_string(kind) else {}
    ends |= {"Items": pc.list_value_length} if pa.types.is_list(kind) else {}
    ends |= {"Properties": _entries} if pa.types.is_map(kind) else {}
    for end, length in ends.items():
        for name, compare in ((f"min{end}", pc.less), (f"max{end}", pc.greater)):
            if name in flat:
                limit = _number(flat, name, place)
                sized.append((name, lambda array, n=limit, c=compare, f=length: _flags(c(f(array), n))))  # type: ignore[misc]
    if "pattern" in flat and pa.types.is_string(kind):
        sized.append(("pattern", _unmatched(_pattern(flat["pattern"], place))))
    converted = pa.types.is_temporal(kind) or pa.types.is_decimal(kind)
    for name in ("minLength", "maxLength", "pattern"):
        if name in flat and converted:
            raise Refused(place, f"keyword {name!r} cannot be checked beside format {flat.get('format')!r}")
    return sized


def _entries(array: pa.MapArray) -> pa.Array:
    ends = array.offsets.to_numpy()
    return pa.array(np.diff(ends))


def _pattern(pattern: Any, place: str) -> str:
    """The pattern as RE2 writes it."""
    if not isinstance(pattern, str):
        raise Refused(place, f"keyword 'pattern' must be a text, not {pattern!r}")
    ours: str = re.sub(r"\\u([0-9a-fA-F]{4})", r"\\x{\1}", pattern)
    try:
        pc.match_substring_regex(pa.array([""]), ours)
    except pa.ArrowInvalid as error:
        raise Refused(place, f"keyword 'pattern' cannot be matched: {error}") from None
    return ours


def _unmatched(pattern: str) -> Violations:
    return lambda array: _flags(pc.invert(pc.match_substring_regex(array, pattern)))


def _repeated(array: pa.ListArray) -> Flags:
    """Lists that hold an element twice."""
    parents = pc.list_parent_indices(array).to_numpy()
    codes = pc.dictionary_encode(pc.list_flatten(array), null_encoding="encode").indices.to_numpy().astype(np.int64)
    pairs, counts = np.unique(np.stack([parents, codes]), axis=1, return_counts=True)
    flags = np.zeros(len(array), np.bool_)
    flags[pairs[0][counts > 1]] = True
    return flags


def _other_than(values: Any, kind: pa.DataType, place: str) -> Violations:
    scalar = pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind)
    if not scalar and not pa.types.is_floating(kind):
        raise Refused(place, f"is not supported for a column of type {kind}")
    fitting = [value for value in values if value is not None and _fits(value, kind)]
    allowed = pa.array([int(value) if pa.types.is_integer(kind) else value for value in fitting], kind)
    return lambda array: _flags(pc.and_(array.is_valid(), pc.invert(pc.is_in(array, value_set=allowed))))


def _fits(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, str):
        return bool(pa.types.is_string(kind))
    if not isinstance(value, int | float) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return False
    return bool(pa.types.is_floating(kind)) or (value == int(value) and _INT64_MIN <= value <= _INT64_MAX)


def _flags(array: pa.Array) -> Flags:
    """Null counts as no violation."""
    flags: Flags = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags
