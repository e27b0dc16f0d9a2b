"""Avro values as columns, by the schema they were written with.

fastavro reads one value at a time; there is no reader of bare values that gives columns. Which schemas: a record of the
primitive types, enum, fixed, array, map, record, a union of one type with null, and the logical types date, time-*,
timestamp-*, local-timestamp-*, decimal and uuid (a text, or 16 bytes where it is fixed). What must stay true: a value
is read to its last byte, for what is left over means that another schema wrote it.
"""

from __future__ import annotations

import io
from typing import Any, Final

import msgspec
import pyarrow as pa

from llog.errors import ExportNotInstalled, InvalidArgument
from llog.limits import EXPORT_SCHEMA_DEPTH_MAX

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""By the type they annotate: on any other one Avro, and the library, pass a logical type over."""
_DECIMAL_DIGITS_MAX: Final = 38
_NESTING: Final = frozenset({"type", "fields", "items", "values"})
"""Where schemas stand within a schema."""
CONFLUENT_HEADER_BYTES: Final = 5
"""A zero byte and the number of a schema in a registry, in front of the value."""


class AvroValues:
    """Made from the text of an Avro schema; raises `InvalidArgument` naming the place that cannot be a column."""

    def __init__(self, schema_text: str, *, confluent: bool = False) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise ExportNotInstalled("fastavro", str(error)) from None
        try:
            self._schema = fastavro.parse_schema(_with_plain_uuids(msgspec.json.decode(schema_text)))
        except msgspec.DecodeError as error:
            raise InvalidArgument("schema", f"is not JSON: {error}") from None
        except Exception as error:  # fastavro has no class of its own for all that can be wrong
            raise InvalidArgument("schema", f"is no Avro schema: {error}") from None
        kind = _Types().of(self._schema, "$", 0)
        if not pa.types.is_struct(kind):
            raise InvalidArgument("schema", "$: must be a record")
        self.fields: list[pa.Field] = list(kind)
        self._type, self._read, self._skipped = kind, fastavro.schemaless_reader, CONFLUENT_HEADER_BYTES * confluent

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        """A row per value, none of which is null. Raises `ValueError` where one of them cannot be read; which one, it
        does not say."""
        return pa.array([self._datum(value) for value in values.to_pylist()], self._type)

    def refused(self, value: bytes) -> str | None:
        try:
            self._datum(value)
        except ValueError as error:
            return str(error)
        return None

    def _datum(self, value: bytes) -> Any:
        if self._skipped and (len(value) < self._skipped or value[0] != 0):
            raise ValueError("does not begin with the number of a schema")
        stream = io.BytesIO(value)
        stream.seek(self._skipped)
        try:
            datum = self._read(stream, self._schema, None)
        except Exception as error:  # hostile bytes end in many kinds of error
            raise ValueError(f"not of this Avro schema: {type(error).__name__}: {error}") from None
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes are left over: another Avro schema wrote it")
        return datum


def _with_plain_uuids(schema: Any) -> Any:
    """The same schema, whose UUIDs are the texts that they are written as: the library would make objects of them,
    which are no column."""
    if isinstance(schema, list):
        return [_with_plain_uuids(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _with_plain_uuids(one) if name in _NESTING else one for name, one in schema.items()}
    if plain.get("type") == "string" and plain.get("logicalType") == "uuid":
        del plain["logicalType"]
    return plain


class _Types:
    """Avro's types as Arrow's; named types may be used again by their name."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType] = {}

    def of(self, schema: Any, place: str, depth: int) -> pa.DataType:
        if depth > EXPORT_SCHEMA_DEPTH_MAX:
            raise InvalidArgument("schema", f"{place}: nested more than {EXPORT_SCHEMA_DEPTH_MAX} deep")
        if isinstance(schema, list):
            kinds = [kind for kind in schema if kind != "null"]
            if len(kinds) != 1:
                raise InvalidArgument(
                    "schema", f"{place}: a union of {schema} cannot be a column, one type or null can"
                )
            return self.of(kinds[0], place, depth + 1)
        if isinstance(schema, str):
            found = _PRIMITIVES.get(schema, self._named.get(schema))
            if found is None:
                raise InvalidArgument("schema", f"{place}: type {schema!r} cannot be a column")
            return found
        kind = self._complex(schema, place, depth)
        if "name" in schema:
            self._named[schema["name"]] = kind
        return kind

    def _complex(self, schema: dict[str, Any], place: str, depth: int) -> pa.DataType:
        logical, kind = schema.get("logicalType"), schema["type"]
        if logical == "decimal" and kind in ("bytes", "fixed"):
            digits = schema.get("precision", 0)
            if not 1 <= digits <= _DECIMAL_DIGITS_MAX:
                reason = f"a decimal has a precision of 1 to {_DECIMAL_DIGITS_MAX} digits"
                raise InvalidArgument("schema", f"{place}: {reason}")
            return pa.decimal128(digits, schema.get("scale", 0))
        known = _LOGICAL.get((str(kind), str(logical)))
        if known is not None:
            return known
        match kind:
            case "record":
                fields = schema["fields"]
                if not fields:
                    raise InvalidArgument("schema", f"{place}: a record without fields cannot be a column")
                return pa.struct(
                    [pa.field(one["name"], self.of(one["type"], f"{place}.{one['name']}", depth + 1)) for one in fields]
                )
            case "array":
                return pa.list_(pa.field("element", self.of(schema["items"], f"{place}[]", depth + 1)))
            case "map":
                return pa.map_(pa.string(), self.of(schema["values"], f"{place}{{}}", depth + 1))
            case "enum":
                return pa.string()
            case "fixed":
                return pa.binary(schema["size"])
        return self.of(kind, place, depth + 1)
