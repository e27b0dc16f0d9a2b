"""Which JSON values cannot be of a schema, told one by one: a block that does not parse need not be searched for them.

Why it exists: Arrow says that a block holds a bad value, not which ones, and each look at a smaller block takes as long
as a hundred values do here. Where one field has another type in half of all values, that was an hour for ten million.

What must stay true: only what Arrow would refuse is refused here. In doubt a value is left to Arrow: this looks at the
kinds of fields, at what begins like no date, and at text that is no JSON to either of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

# All that Arrow takes as a timestamp begins so.
_INSTANT: Final = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}([T ]|$)")]
_NOT_A_NUMBER: Final = (b"NaN", b"Inf")
"""Which Arrow takes as numbers."""


class JsonSift:
    def __init__(self, fields: list[pa.Field], required: Sequence[str], required_or_null: Sequence[str] = ()) -> None:
        self._decode: Callable[[bytes], Any] | None = None
        try:
            kind = _kind_of(pa.struct(fields), frozenset(required), frozenset(required_or_null))
            self._decode = msgspec.json.Decoder(kind).decode
        except (TypeError, ValueError):
            pass  # names that the library does not take: Arrow finds the bad ones, only later

    def refused(self, value: bytes) -> str | None:
        """Why it cannot be read; None: as far as is seen here, it can."""
        if self._decode is None:
            return None
        try:
            self._decode(value)
        except msgspec.ValidationError as error:
            return str(error)
        except msgspec.DecodeError as error:
            if value.isascii() and not any(word in value for word in _NOT_A_NUMBER):
                return str(error)
        except (RecursionError, UnicodeDecodeError):
            pass
        return None


def _kind_of(
    kind: pa.DataType, required: frozenset[str] = frozenset(), required_or_null: frozenset[str] = frozenset()
) -> Any:
    if pa.types.is_timestamp(kind):
        return _INSTANT
    if pa.types.is_string(kind):
        return str
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_list(kind):
        return list[_kind_of(kind.value_type) | None]  # type: ignore[misc]
    named = [(f"f{number}", field) for number, field in enumerate(kind)]
    members: list[tuple[str, Any] | tuple[str, Any, None]] = []
    for name, field in named:
        one = _kind_of(field.type) if field.name in required else _kind_of(field.type) | None
        must_be_there = field.name in required or field.name in required_or_null
        members.append((name, one) if must_be_there else (name, one, None))
    return msgspec.defstruct("Value", members, rename={name: field.name for name, field in named}, kw_only=True)
