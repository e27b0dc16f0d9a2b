"""Avro values as columns, by the schema they were written with.

fastavro reads one value at a time; no reader of bare values gives columns. Supported: a record of the primitive types,
enum, fixed, array, map, record, a union of one type with null, and the logical types date, time-*, timestamp-*,
local-timestamp-*, decimal and uuid (text, or 16 bytes if it is fixed). A value must be read to its last byte: left-over
bytes mean that another schema wrote it.
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
"""By the type they annotate; on any other type Avro and fastavro ignore a logical type."""
_DECIMAL_DIGITS_MAX: Final = 38
_NESTING: Final = frozenset({"type", "fields", "items", "values"})
"""The fields of a schema that hold schemas."""
CONFLUENT_HEADER_BYTES: Final = 5
"""Before the value: a zero byte and the id of the schema in a registry."""


class AvroValues:
    """Built from the text of an Avro schema; raises `InvalidArgument` naming the path that cannot be a column."""

    def __init__(self, schema_text: str, *, confluent: bool = False) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise ExportNotInstalled("fastavro", str(error)) from None
        try:
            self._schema = fastavro.parse_schema(_with_plain_uuids(msgspec.json.decode(schema_text)))
        except msgspec.DecodeError as error:
            raise InvalidArgument("schema", f"is not JSON: {error}") from None
        except Exception as error:  # fastavro raises many unrelated classes
            raise InvalidArgument("schema", f"is not an Avro schema: {error}") from None
        kind = _Types().of(self._schema, "$", 0)
        if not pa.types.is_struct(kind):
            raise InvalidArgument("schema", "$: must be a record")
        self.fields: list[pa.Field] = list(kind)
        self._type, self._read, self._skipped = kind, fastavro.schemaless_reader, CONFLUENT_HEADER_BYTES * confluent

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        return pa.array([self._datum(value) for value in values.to_pylist()], self._type)

    def refused(self, value: bytes) -> str | None:
        try:
            self._datum(value)
        except ValueError as error:
            return str(error)
        return None

    def _datum(self, value: bytes) -> Any:
        if self._skipped and (len(value) < self._skipped or value[0] != 0):
            raise ValueError("does not begin with a schema id")
        stream = io.BytesIO(value)
        stream.seek(self._skipped)
        try:
            datum = self._read(stream, self._schema, None)
        except Exception as error:  # bad bytes raise many kinds of errors
            raise ValueError(f"not of this Avro schema: {type(error).__name__}: {error}") from None
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes are left over: another Avro schema wrote it")
        return datum


def _with_plain_uuids(schema: Any) -> Any:
    """The schema without the logical type uuid on strings: fastavro would build UUID objects, which Arrow refuses."""
    if isinstance(schema, list):
        return [_with_plain_uuids(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _with_plain_uuids(one) if name in _NESTING else one for name, one in schema.items()}
    if plain.get("type") == "string" and plain.get("logicalType") == "uuid":
        del plain["logicalType"]
    return plain


class _Types:
    """Avro types as Arrow types. A named type may be referenced by its name."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType] = {}

    def of(self, schema: Any, place: str, depth: int) -> pa.DataType:
        if depth > EXPORT_SCHEMA_DEPTH_MAX:
            raise InvalidArgument("schema", f"{place}: nested more than {EXPORT_SCHEMA_DEPTH_MAX} deep")
        if isinstance(schema, list):
            kinds = [kind for kind in schema if kind != "null"]
            if len(kinds) != 1:
                raise InvalidArgument(
                    "schema", f"{place}: a union of {schema} cannot be a column; only one type with null can"
                )
            return self.of(kinds[0], place, depth + 1)
        if isinstance(schema, str):
            known = _PRIMITIVES.get(schema, self._named.get(schema))
            if known is None:
                raise InvalidArgument("schema", f"{place}: type {schema!r} cannot be a column")
            return known
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
