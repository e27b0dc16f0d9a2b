"""Avro values as columns: by the schema they were all written with, or by the schema that each names by its id.

fastavro reads one value at a time; no reader of bare values gives columns. The columns are those of the reader's
schema, a record of the primitive types, enum, fixed, array, map, record, a union of one type with null, and the logical
types date, time-*, timestamp-*, local-timestamp-*, decimal and uuid (text, or 16 bytes if it is fixed). A value must be
read to its last byte: left-over bytes mean that another schema wrote it.

A value in Confluent's form begins with a zero byte and the id of its writer's schema. Avro's schema resolution turns it
into a value of the reader's schema; a value whose id has no schema, or one that does not resolve, is refused.
"""

from __future__ import annotations

import io
from typing import Any, Final

import pyarrow as pa

from llog.errors import InvalidArgument
from llog.pipeline.export.avro_resolve import Mismatch, prepared_reader, prepared_writer, same_values
from llog.pipeline.export.avro_schema import AvroSchemaError, base_of, plain_schema
from llog.pipeline.export.schema_ids import SCHEMA_ID_BYTES, WriterSchemas

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
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL_DIGITS_MAX: Final = 38


class AvroValues:
    """Built from the texts of an Avro schema; raises `InvalidArgument` naming the path that cannot be a column.

    `writers`: values begin with the id of one of these schemas. None: all were written with the schema itself."""

    def __init__(
        self, schema_text: str, references: tuple[str, ...] = (), *, writers: WriterSchemas | None = None
    ) -> None:
        try:
            self._reader = plain_schema([*references, schema_text])
            self._type = _type_of(self._reader, "$")
            if not pa.types.is_struct(self._type):
                raise AvroSchemaError("$: must be a record")
            self._prepared = prepared_reader(self._reader)
        except AvroSchemaError as error:
            raise InvalidArgument("schema", str(error)) from None
        import fastavro

        self.fields: list[pa.Field] = list(self._type)
        self._read, self._writers = fastavro.schemaless_reader, writers
        self._pairs: dict[int, tuple[Any, Any] | str] = {}
        """By id that has a schema: what fastavro reads a value with, or why it cannot be read."""

    def parse(self, values: pa.BinaryArray) -> pa.StructArray:
        return pa.array([self._datum(value) for value in values.to_pylist()], self._type)

    def refused(self, value: bytes) -> str | None:
        try:
            self._datum(value)
        except ValueError as error:
            return str(error)
        return None

    def checked(self, values: pa.BinaryArray, rows: pa.StructArray) -> dict[int, str]:
        """Avro has no rules beyond its types."""
        return {}

    def _datum(self, value: bytes) -> Any:
        stream = io.BytesIO(value)
        pair: tuple[Any, Any] = (self._prepared, None)
        if self._writers is not None:
            pair = self._pair_of(value)
            stream.seek(SCHEMA_ID_BYTES)
        try:
            datum = self._read(stream, *pair)
        except Exception as error:  # bad bytes raise many kinds of errors
            raise ValueError(f"not of its Avro schema: {type(error).__name__}: {error}") from None
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes are left over: another Avro schema wrote it")
        return datum

    def _pair_of(self, value: bytes) -> tuple[Any, Any]:
        if len(value) < SCHEMA_ID_BYTES or value[0] != 0:
            raise ValueError("does not begin with a zero byte and a schema id")
        schema_id = int.from_bytes(value[1:SCHEMA_ID_BYTES], "big")
        pair = self._pairs.get(schema_id)
        if pair is None:
            assert self._writers is not None
            texts = self._writers.found.get(schema_id)
            if texts is None:
                raise ValueError(self._writers.reason(schema_id))
            pair = self._pairs[schema_id] = self._pair(schema_id, texts)
        if isinstance(pair, str):
            raise ValueError(pair)
        return pair

    def _pair(self, schema_id: int, texts: tuple[str, ...]) -> tuple[Any, Any] | str:
        try:
            writer = plain_schema(texts, writer=True)
            if same_values(writer, self._reader):
                return self._prepared, None
            return prepared_writer(writer, self._reader), self._prepared
        except (AvroSchemaError, Mismatch) as error:
            return f"schema id {schema_id}: {error}"


def _type_of(schema: Any, place: str) -> pa.DataType:
    """The plain form of a schema as an Arrow type."""
    match base_of(schema):
        case "union":
            kinds = [kind for kind in schema if kind != "null"]
            if len(kinds) != 1:
                names = ", ".join(base_of(kind) for kind in schema)
                reason = f"a union of {names} cannot be a column; only one type with null can"
                raise AvroSchemaError(f"{place}: {reason}")
            return _type_of(kinds[0], place)
        case "record":
            if not schema["fields"]:
                raise AvroSchemaError(f"{place}: a record without fields cannot be a column")
            named = ((one["name"], _type_of(one["type"], f"{place}.{one['name']}")) for one in schema["fields"])
            return pa.struct([pa.field(name, kind) for name, kind in named])
        case "array":
            return pa.list_(pa.field("element", _type_of(schema["items"], f"{place}[]")))
        case "map":
            return pa.map_(pa.string(), _type_of(schema["values"], f"{place}{{}}"))
        case "enum":
            return pa.string()
        case kind if isinstance(schema, str):
            if kind not in _PRIMITIVES:
                raise AvroSchemaError(f"{place}: type {kind!r} cannot be a column")
            return _PRIMITIVES[kind]
    if schema.get("logicalType") == "decimal":
        digits, scale = schema["precision"], schema["scale"]
        if not isinstance(digits, int) or not 1 <= digits <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:
            reason = f"a decimal has a precision of 1 to {_DECIMAL_DIGITS_MAX} digits and a scale up to that"
            raise AvroSchemaError(f"{place}: {reason}")
        return pa.decimal128(digits, scale)
    return _LOGICAL[schema["logicalType"]] if "logicalType" in schema else pa.binary(schema["size"])
