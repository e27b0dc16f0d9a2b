"""JSON values as columns, by a JSON Schema.

Arrow parses many values at a time: they are joined by newlines, and every value must become exactly one row. Arrow
reads objects wherever they begin, so two objects in one value, or one spread over two values, must not pass. Therefore
each value must begin with `{` and end with `}` (the next value cannot complete it, because it begins with `{` where a
comma would be needed), and there must be as many rows as values.

Supported: `type` object with `properties` of string (`format` date-time: a timestamp), integer, number, boolean, object
and array with `items`; a type may be listed with "null". Fields that the schema does not name are ignored. A `required`
field of the value itself (not of a nested object) must exist, and be null only if "null" is among its types. Every
column is nullable, for tombstones and unreadable values. Timestamps have microseconds; finer digits are cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from llog.errors import InvalidArgument
from llog.limits import EXPORT_SCHEMA_DEPTH_MAX

_SCALARS: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_WHITESPACE: Final = b" \t\r\n"
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
# Every text that Arrow accepts as a timestamp begins like this.
_INSTANT: Final = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}([T ]|$)")]
# Arrow accepts these as numbers.
_NOT_A_NUMBER: Final = (b"NaN", b"Inf")


class JsonValues:
    """Built from the text of a JSON Schema; raises `InvalidArgument` naming the path that cannot be a column."""

    def __init__(self, schema_text: str) -> None:
        try:
            schema = msgspec.json.decode(schema_text)
        except msgspec.DecodeError as error:
            raise InvalidArgument("schema", f"is not JSON: {error}") from None
        kind = _type_of(schema, "$", 0)
        if not pa.types.is_struct(kind):
            raise InvalidArgument("schema", "$: must be of type object, with properties")
        self.fields: list[pa.Field] = list(kind)
        named = {field.name for field in self.fields}
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) and name in named for name in required):
            raise InvalidArgument("schema", f"$.required: {required!r} must list properties")
        # Arrow does not distinguish a null from a missing field; where null is allowed, only a missing field is wrong.
        self.required = [name for name in required if not _may_be_null(schema["properties"][name])]
        self._required_or_null = [name for name in required if name not in self.required]
        self._options, self._finer = _options(kind), _options(_with_nanoseconds(kind))
        self._sift = JsonSift(self.fields, self.required, self._required_or_null)

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        if not _all_objects(values):
            values = pa.array([value.strip(_WHITESPACE) for value in values.to_pylist()], pa.binary())
            if not _all_objects(values):
                raise ValueError("not a JSON object")
        lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        joined = pc.binary_join(lines, b"\n")[0].as_buffer()
        table = self._table(joined)
        if table.num_rows != len(values):
            raise ValueError("more than one JSON object")
        table.validate(full=True)
        for name in self.required:
            if table[name].null_count:
                raise ValueError(f"required field {name!r} is missing")
        self._check_missing(table, values)
        columns = [_whole(table[field.name], field.type) for field in self.fields]
        return pa.StructArray.from_arrays(columns, fields=self.fields)

    def _check_missing(self, table: pa.Table, values: pa.BinaryArray) -> None:
        """Refuse values that lack a field which is required but may be null."""
        nulls = {
            row
            for name in self._required_or_null
            if table[name].null_count
            for row in np.flatnonzero(table[name].is_null()).tolist()
        }
        for row in sorted(nulls):
            reason = self._sift.refused(values[row].as_py())
            if reason is not None:
                raise ValueError(reason)

    def checked(self, values: pa.BinaryArray, rows: pa.StructArray) -> dict[int, str]:
        return {}

    def refused(self, value: bytes) -> str | None:
        stripped = value.strip(_WHITESPACE)
        if not (stripped.startswith(b"{") and stripped.endswith(b"}")):
            return "not a JSON object"
        return self._sift.refused(stripped)

    def _table(self, text: pa.Buffer) -> pa.Table:
        try:
            return _read(text, self._options)
        except pa.ArrowInvalid as error:
            if self._finer.explicit_schema == self._options.explicit_schema:
                raise
            # Arrow refuses digits beyond a timestamp's unit, and nanoseconds outside the years 1678 to 2261.
            try:
                return _read(text, self._finer)
            except pa.ArrowInvalid:
                raise error from None


def _options(kind: pa.StructType) -> pj.ParseOptions:
    return pj.ParseOptions(
        explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore", newlines_in_values=True
    )


def _read(text: pa.Buffer, options: pj.ParseOptions) -> pa.Table:
    reading = pj.ReadOptions(block_size=text.size + 1, use_threads=False)
    return pj.read_json(pa.BufferReader(text), read_options=reading, parse_options=options)


def _with_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """The same type, its timestamps in nanoseconds."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", tz=kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_nanoseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_nanoseconds(kind.value_type)))
    return kind


def _all_objects(values: pa.BinaryArray) -> bool:
    """Every value begins with { and ends with }."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    if data is None or bool(np.any(ends[1:] - ends[:-1] < 2)):
        return False
    text = np.frombuffer(data, np.uint8)
    return bool(np.all(text[ends[:-1]] == _OPENING) and np.all(text[ends[1:] - 1] == _CLOSING))


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    whole = column.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return whole if whole.type == kind else pc.cast(whole, kind, safe=False)


def _may_be_null(schema: dict[str, Any]) -> bool:
    named = schema.get("type")
    return isinstance(named, list) and "null" in named


def _type_of(schema: Any, place: str, depth: int) -> pa.DataType:
    if not isinstance(schema, dict) or depth > EXPORT_SCHEMA_DEPTH_MAX:
        raise InvalidArgument("schema", f"{place}: must be an object, nested at most {EXPORT_SCHEMA_DEPTH_MAX} deep")
    named = schema.get("type")
    kinds = [kind for kind in named if kind != "null"] if isinstance(named, list) else [named]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "string" and schema.get("format") == "date-time":
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, str) and kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "object" and isinstance(schema.get("properties"), dict) and schema["properties"]:
        properties = schema["properties"].items()
        return pa.struct([pa.field(name, _type_of(its, f"{place}.{name}", depth + 1)) for name, its in properties])
    if kind == "array" and "items" in schema:
        return pa.list_(pa.field("element", _type_of(schema["items"], f"{place}[]", depth + 1)))
    accepted = "string, integer, number, boolean, object with properties, or array with items"
    raise InvalidArgument("schema", f"{place}: type {named!r} cannot be a column; it must be one of {accepted}")


# -- single values -----------------------------------------------------------------------------------------------------


class JsonSift:
    """Finds values that cannot match a schema one by one, without parsing blocks with Arrow.

    Arrow reports that a block holds a bad value, not which one, and parsing a smaller block takes as long as a hundred
    values here: with a wrong type in half of ten million values, that took an hour. The sift refuses only what Arrow
    would refuse; in doubt it leaves a value to Arrow.
    """

    def __init__(self, fields: list[pa.Field], required: Sequence[str], required_or_null: Sequence[str] = ()) -> None:
        self._decode: Callable[[bytes], Any] | None = None
        try:
            kind = _kind_of(pa.struct(fields), frozenset(required), frozenset(required_or_null))
            self._decode = msgspec.json.Decoder(kind).decode
        except (TypeError, ValueError):
            pass  # msgspec rejects a field name: Arrow finds the bad values, only more slowly

    def refused(self, value: bytes) -> str | None:
        """Why the value cannot be read; None if the sift finds nothing wrong."""
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
