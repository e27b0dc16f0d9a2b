"""Avro's schema resolution: values of a writer's schema as values of a reader's.

fastavro reads by two schemas: it promotes numbers, skips and reorders fields and fills in defaults. This module
prepares the two, both in plain form (`avro_schema`), for what fastavro does not do or does otherwise:

- A pair that does not match is found here, once per schema and with its place, not at each value. Only a union's branch
  and an enum's symbol depend on the value.
- Aliases of the reader's schema rename the types and fields of the writer's schema.
- The reader's logical type counts; fastavro would apply the writer's. The unit is the writer's, so a field that went
  from milliseconds to microseconds keeps its meaning.
- A default is JSON; the prepared schema has the value that reading it would give.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

from llog.pipeline.export.avro_schema import LOGICAL, AvroSchemaError, base_of

_PROMOTED: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
# fastavro rounds a decimal to its precision. With more digits than a column has, Arrow refuses the value instead.
_DECIMAL_DIGITS: Final = 80
_UNITS: Final = ("-millis", "-micros")


class Mismatch(ValueError):
    """The writer's schema cannot be read as the reader's; the message names the place."""


def prepared_reader(schema: Any) -> Any:
    """The reader's schema as fastavro takes it."""
    import fastavro

    def filled(parsed: Any, plain: Any) -> None:
        match base_of(plain):
            case "union":
                for one, its in zip(parsed, plain, strict=True):
                    filled(one, its)
            case "record":
                for one, its in zip(parsed["fields"], plain["fields"], strict=True):
                    filled(one["type"], its["type"])
                    if "default" in its:
                        one["default"] = _default(its["type"], its["default"])
            case "array":
                filled(parsed["items"], plain["items"])
            case "map":
                filled(parsed["values"], plain["values"])

    parsed = fastavro.parse_schema(_Names().named(schema))
    filled(parsed, schema)
    return parsed


def prepared_writer(writer: Any, reader: Any) -> Any:
    """The writer's schema as fastavro takes it together with the reader's. Raises `Mismatch`."""
    import fastavro

    return fastavro.parse_schema(_Names().named(_resolved(writer, reader, "$")))


def same_values(writer: Any, reader: Any) -> bool:
    """Whether values of the writer's schema are values of the reader's as they are."""
    match base_of(writer), base_of(reader):
        case "record", "record":
            pairs = list(zip(writer["fields"], reader["fields"], strict=False))
            alike = all(one["name"] == its["name"] and same_values(one["type"], its["type"]) for one, its in pairs)
            return alike and len(writer["fields"]) == len(reader["fields"]) and _same_name(writer, reader)
        case "union", "union":
            return len(writer) == len(reader) and all(map(same_values, writer, reader))
        case "array", "array":
            return same_values(writer["items"], reader["items"])
        case "map", "map":
            return same_values(writer["values"], reader["values"])
        case ("enum", "enum") | ("fixed", "fixed"):
            kept = ("symbols", "size", "logicalType", "precision", "scale")
            alike = all(writer.get(name) == reader.get(name) for name in kept)
            return alike and _same_name(writer, reader)
    return bool(writer == reader)


def _resolved(writer: Any, reader: Any, place: str) -> Any:
    if isinstance(writer, list):
        return _resolved_union(writer, reader, place)
    if isinstance(reader, list):
        for branch in reader:
            try:
                return _resolved(writer, branch, place)
            except Mismatch:
                continue
        raise Mismatch(f"{place}: {_shown(writer)} cannot be read as {_shown(reader)}")
    kind, wanted = base_of(writer), base_of(reader)
    if wanted not in _PROMOTED.get(kind, (kind,)):
        raise Mismatch(f"{place}: {_shown(writer)} cannot be read as {_shown(reader)}")
    match kind:
        case "record":
            _check_names(writer, reader, place)
            return {"type": "record", "name": reader["name"], "fields": _resolved_fields(writer, reader, place)}
        case "array":
            return {"type": "array", "items": _resolved(writer["items"], reader["items"], f"{place}[]")}
        case "map":
            return {"type": "map", "values": _resolved(writer["values"], reader["values"], f"{place}{{}}")}
        case "enum":
            _check_names(writer, reader, place)
            return {"type": "enum", "name": reader["name"], "symbols": writer["symbols"]}
        case "fixed":
            _check_names(writer, reader, place)
            if writer["size"] != reader["size"]:
                raise Mismatch(f"{place}: {writer['size']} bytes cannot be read as {reader['size']}")
            return {
                "type": "fixed",
                "name": reader["name"],
                "size": writer["size"],
                **_logical(kind, writer, reader, place),
            }
    return {"type": kind, **_logical(kind, writer, reader, place)}


def _resolved_union(writer: list[Any], reader: Any, place: str) -> list[Any]:
    """A branch that does not match stays as it is: values of that branch are refused, others are read."""
    branches, reasons = [], []
    for branch in writer:
        try:
            branches.append(_resolved(branch, reader, place))
        except Mismatch as error:
            branches.append(_never_read(branch))
            reasons.append(str(error))
    if len(reasons) == len(writer):
        raise Mismatch(reasons[0] if reasons else f"{place}: an empty union holds no value")
    return branches


def _never_read(branch: Any) -> Any:
    """The same bytes as a type that matches no reader's type, so that fastavro refuses the value."""
    return {"type": "record", "name": "llog_unreadable_branch", "fields": [{"name": "value", "type": branch}]}


def _resolved_fields(writer: Any, reader: Any, place: str) -> list[dict[str, Any]]:
    written = {field["name"]: field for field in writer["fields"]}
    sources: dict[str, dict[str, Any]] = {}
    """The reader's fields by the names of the writer's."""
    own = {field["name"] for field in reader["fields"]}
    for field in reader["fields"]:
        aliases = [name for name in field.get("aliases", ()) if name not in own and name not in sources]
        name = next((name for name in (field["name"], *aliases) if name in written), None)
        if name is not None:
            sources[name] = field
        elif "default" not in field:
            raise Mismatch(f"{place}.{field['name']}: is missing, and the reader's schema has no default for it")
    fields = []
    for number, field in enumerate(writer["fields"]):
        target = sources.get(field["name"])
        if target is None:
            fields.append({"name": f"llog_skipped_{number}", "type": field["type"]})
        else:
            kind = _resolved(field["type"], target["type"], f"{place}.{target['name']}")
            fields.append({"name": target["name"], "type": kind})
    return fields


def _check_names(writer: Any, reader: Any, place: str) -> None:
    names = {writer["name"], _unqualified(writer["name"])}
    if not _same_name(writer, reader) and not names & set(reader.get("aliases", ())):
        reason = f"{writer['type']} {writer['name']} is not {reader['name']}"
        raise Mismatch(f"{place}: {reason}; an alias in the reader's schema would make it so")


def _same_name(writer: Any, reader: Any) -> bool:
    return _unqualified(writer["name"]) == _unqualified(reader["name"])


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _logical(kind: str, writer: Any, reader: Any, place: str) -> dict[str, Any]:
    """The attributes with which fastavro makes what the reader's logical type means."""
    meant = reader.get("logicalType") if isinstance(reader, dict) else None
    if meant is None:
        return {}
    given = writer.get("logicalType") if isinstance(writer, dict) else None
    if meant == "decimal":
        source = writer if given == "decimal" else reader
        attributes = {name: source[name] for name in ("logicalType", "precision", "scale")}
    elif given is not None and _family(given) == _family(meant):
        attributes = {"logicalType": meant.removesuffix(_unit(meant)) + _unit(given)}
    else:
        attributes = {"logicalType": meant}
    if (kind, attributes["logicalType"]) not in LOGICAL:
        raise Mismatch(f"{place}: {_shown(writer)} cannot be read as {meant}")
    return attributes


def _family(logical: str) -> str:
    return logical.removesuffix(_unit(logical)).removeprefix("local-")


def _unit(logical: str) -> str:
    return next((unit for unit in _UNITS if logical.endswith(unit)), "")


def _shown(schema: Any) -> str:
    if isinstance(schema, list):
        return f"a union of {', '.join(_shown(one) for one in schema)}"
    if isinstance(schema, dict) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    if isinstance(schema, dict):
        return str(schema.get("logicalType", schema["type"]))
    return str(schema)


class _Names:
    """Gives every copy of a named type a namespace of its own: Avro allows a name only once. Aliases and defaults are
    left out."""

    def __init__(self) -> None:
        self._count = 0

    def named(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.named(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        own = {name: value for name, value in schema.items() if name not in ("aliases", "fields")}
        if "precision" in own:
            own["precision"] = _DECIMAL_DIGITS
        if "name" in own:
            self._count += 1
            own["name"] = f"llog{self._count}.{_unqualified(own['name'])}"
        if "fields" in schema:
            own["fields"] = [{"name": one["name"], "type": self.named(one["type"])} for one in schema["fields"]]
        for name in ("items", "values"):
            if name in own:
                own[name] = self.named(own[name])
        return own


# -- defaults ----------------------------------------------------------------------------------------------------------


def _default(schema: Any, value: Any) -> Any:
    """A default as the value that a reader gives for it: written without logical types, read with them."""
    import fastavro

    stream, names = io.BytesIO(), _Names().named
    try:
        datum = _datum(schema, value)
        fastavro.schemaless_writer(stream, fastavro.parse_schema(names(_mapped(schema, _no_logical))), datum)
        stream.seek(0)
        return fastavro.schemaless_reader(stream, fastavro.parse_schema(names(schema)), None)
    except Exception as error:  # fastavro raises many unrelated classes
        raise AvroSchemaError(f"the default {value!r} is not of its type: {error}") from None


def _datum(schema: Any, value: Any) -> Any:
    """A JSON default as fastavro writes it: bytes are texts of code points up to 255."""
    match base_of(schema):
        case "union":
            if value is None:
                return None
            return _datum(next(one for one in schema if one != "null"), value)
        case "bytes" | "fixed":
            return value.encode("latin-1")
        case "array":
            return [_datum(schema["items"], one) for one in value]
        case "map":
            return {name: _datum(schema["values"], one) for name, one in value.items()}
        case "record":
            return {
                field["name"]: _datum(field["type"], value.get(field["name"], field.get("default")))
                for field in schema["fields"]
            }
    return value


def _no_logical(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in ("logicalType", "precision", "scale")}


def _mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The schema with every type that has attributes changed."""
    if isinstance(schema, list):
        return [_mapped(one, change) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = change(schema)
    for name in ("items", "values"):
        if name in changed:
            changed = {**changed, name: _mapped(changed[name], change)}
    if "fields" in changed:
        changed = {**changed, "fields": [{**one, "type": _mapped(one["type"], change)} for one in changed["fields"]]}
    return changed
