"""Avro schemas in one plain form: every named type is written out where it is used.

Registries and files hold schemas as texts, which may refer to types of other schemas. The plain form has no references,
no attributes but those that reading needs, and only the logical types that become columns. It cannot hold a type that
contains itself; such a schema is refused, because hostile bytes could nest its values until the stack overflows. An
array of values that take no bytes is refused too: a few bytes could claim billions of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from llog.errors import ExportNotInstalled
from llog.limits import EXPORT_SCHEMA_DEPTH_MAX

# Types in one schema, counted where they are used: references to references could multiply without end.
EXPORT_SCHEMA_TYPES_MAX: Final = 10_000

LOGICAL: Final = frozenset(
    {
        ("int", "date"),
        ("int", "time-millis"),
        ("long", "time-micros"),
        ("long", "timestamp-millis"),
        ("long", "timestamp-micros"),
        ("long", "local-timestamp-millis"),
        ("long", "local-timestamp-micros"),
        ("bytes", "decimal"),
        ("fixed", "decimal"),
    }
)
"""By the type they annotate; on any other type Avro ignores a logical type. A uuid is read as its text or bytes."""
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NESTING: Final = ("type", "fields", "items", "values")
"""The attributes of a schema that hold schemas."""


class AvroSchemaError(ValueError):
    """The text is not a schema that values can be read by; the message names the place."""


def plain_schema(texts: Sequence[str], *, writer: bool = False) -> Any:
    """The plain form of the last text; the others are the schemas that it refers to, each after those it needs itself.

    `writer`: defaults do not matter, so wrong ones are no error."""
    try:
        import fastavro
    except ImportError as error:
        raise ExportNotInstalled("fastavro", str(error)) from None
    named: dict[str, Any] = {}
    parsed: Any = None
    for text in texts:
        try:
            schema = msgspec.json.decode(text)
            parsed = fastavro.parse_schema(_without_defaults(schema) if writer else schema, named_schemas=named)
        except msgspec.DecodeError as error:
            raise AvroSchemaError(f"is not JSON: {error}") from None
        except RecursionError:
            raise AvroSchemaError(f"nested more than {EXPORT_SCHEMA_DEPTH_MAX} deep") from None
        except Exception as error:  # fastavro raises many unrelated classes
            raise AvroSchemaError(f"is not an Avro schema: {type(error).__name__}: {error}") from None
    return _Plain(named).of(parsed, "$", (), 0)


def base_of(schema: Any) -> str:
    """The type without its attributes; "union" for a union."""
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


def _without_defaults(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_defaults(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "default"}
    return {name: _without_defaults(value) if name in _NESTING else value for name, value in kept.items()}


class _Plain:
    def __init__(self, named: dict[str, Any]) -> None:
        self._named, self._count = named, 0

    def of(self, schema: Any, place: str, within: tuple[str, ...], depth: int) -> Any:
        """`within`: the named types around this place."""
        self._count += 1
        if depth > EXPORT_SCHEMA_DEPTH_MAX:
            raise AvroSchemaError(f"{place}: nested more than {EXPORT_SCHEMA_DEPTH_MAX} deep")
        if self._count > EXPORT_SCHEMA_TYPES_MAX:
            raise AvroSchemaError(f"has more than {EXPORT_SCHEMA_TYPES_MAX} types")
        if isinstance(schema, list):
            return [self.of(one, place, within, depth + 1) for one in schema]
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema
            if schema in within:
                raise AvroSchemaError(f"{place}: type {schema} contains itself")
            if schema not in self._named:
                raise AvroSchemaError(f"{place}: type {schema!r} is not defined")
            return self.of(self._named[schema], place, within, depth)
        if "name" in schema:
            within = (*within, schema["name"])
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, place, within, depth)
            case "array":
                items = self.of(schema["items"], f"{place}[]", within, depth + 1)
                if _bytes_min(items) == 0:
                    raise AvroSchemaError(f"{place}: an array of values that take no bytes cannot be read safely")
                return {"type": "array", "items": items}
            case "map":
                return {"type": "map", "values": self.of(schema["values"], f"{place}{{}}", within, depth + 1)}
            case "enum":
                kept = {name: schema[name] for name in ("symbols", "default", "aliases") if name in schema}
                return {"type": "enum", "name": schema["name"], **kept}
            case "fixed":
                size = schema["size"]
                if not isinstance(size, int) or size < 0:
                    raise AvroSchemaError(f"{place}: size {size!r} must be a number of bytes")
                named = {"type": "fixed", "name": schema["name"], "size": size}
                return {**named, "aliases": schema.get("aliases", []), **_logical("fixed", schema)}
            case str(kind) if kind in _PRIMITIVES:
                logical = _logical(kind, schema)
                return {"type": kind, **logical} if logical else kind
            case kind:
                return self.of(kind, place, within, depth + 1)

    def _record(self, schema: dict[str, Any], place: str, within: tuple[str, ...], depth: int) -> dict[str, Any]:
        fields = []
        for field in schema["fields"]:
            kind = self.of(field["type"], f"{place}.{field['name']}", within, depth + 1)
            kept = {name: field[name] for name in ("default", "aliases") if name in field}
            fields.append({"name": field["name"], "type": kind, **kept})
        return {"type": "record", "name": schema["name"], "aliases": schema.get("aliases", []), "fields": fields}


def _logical(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    logical = schema.get("logicalType")
    if (kind, logical) not in LOGICAL:
        return {}
    if logical != "decimal":
        return {"logicalType": logical}
    return {"logicalType": logical, "precision": schema.get("precision", 0), "scale": schema.get("scale", 0)}


def _bytes_min(schema: Any) -> int:
    """The fewest bytes of a value."""
    match base_of(schema):
        case "null":
            return 0
        case "fixed":
            return int(schema["size"])
        case "record":
            return sum(_bytes_min(field["type"]) for field in schema["fields"])
    return 1
