"""JSON values as columns, by a JSON Schema: the types it means, and a block of values parsed in one go.

Values are parsed by Arrow, many at a time: they are put one behind the other, and every value must come out as exactly
one row. What must stay true: a row belongs to its value. Arrow reads objects wherever they begin, so two in one value,
or one spread over two, must not pass: each value begins with `{` and ends with `}` (so none can be completed by the
next one, which begins with `{` where a comma would have to stand), and there are as many rows as values.

Which schemas: `type` object with `properties`, of string (`format` date-time: a timestamp), integer, number, boolean,
object and array with `items`; a type may be listed beside "null". Fields that the schema does not name are left aside.
Fields that the value itself (not an object within it) is `required` to have must be there, and null only where "null"
is among their types; every column may be null all the same (of values that cannot be read, and tombstones). Timestamps
have microseconds; what is finer is cut off.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from llog.errors import InvalidArgument
from llog.limits import EXPORT_SCHEMA_DEPTH_MAX
from llog.pipeline.export.sift import JsonSift

_SCALARS: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_WHITESPACE: Final = b" \t\r\n"
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")


class JsonValues:
    """Made from the text of a JSON Schema; raises `InvalidArgument` naming the place that cannot be a column."""

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
        # Arrow tells a null and a missing field alike; of those that may be null, only the missing one is wrong.
        self.required = [name for name in required if not _may_be_null(schema["properties"][name])]
        self._required_or_null = [name for name in required if name not in self.required]
        self._options, self._finer = _options(kind), _options(_with_nanoseconds(kind))
        self._sift = JsonSift(self.fields, self.required, self._required_or_null)

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        """A row per value, none of which is null. Raises `ValueError` where one of them cannot be read; which one, it
        does not say."""
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
        """Where a field is null that may be, but must be there: is it there?"""
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
            # Arrow takes no digit more than a timestamp's unit has, and nanoseconds only of the years 1678 to 2261.
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
    """Does each begin with { and end with }?"""
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
        raise InvalidArgument("schema", f"{place}: must be an object, nested up to {EXPORT_SCHEMA_DEPTH_MAX} deep")
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
