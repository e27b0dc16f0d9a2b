"""A JSON Schema (draft 2020-12, and what drafts 4 to 7 called otherwise) as columns.

Every keyword is either honoured or refused by name and place, so no rule of a schema is lost in silence:

    decide columns   type, properties, items, additionalProperties (a schema: a map; false: no other fields), $ref,
                     $defs, allOf, anyOf and oneOf with null, enum, const, nullable, format date-time, date, decimal
    are checked      required, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength,
                     pattern, minItems, maxItems, uniqueItems, minProperties and maxProperties (of maps), enum, const,
                     format uuid and time (`json_checks`)
    are annotations  title, description, default, examples, other formats, content…, x-…, names with a dot, …
    are refused      all others, such as not, if, patternProperties, prefixItems, contains, dependentRequired

An integer is an int64, or a decimal if its bounds are wider; a number is a double. `"format": "decimal"` with
`precision` and `scale` makes a decimal of a string or number. Fields that the schema does not name are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from llog.errors import InvalidArgument
from llog.limits import EXPORT_SCHEMA_DEPTH_MAX
from llog.pipeline.export.json_checks import Check, Refused, checks_of, exact

# Places in one schema, counted where they are used: references to references could multiply without end.
EXPORT_JSON_PLACES_MAX: Final = 10_000
_DECIMAL_DIGITS_MAX: Final = 38
_INT64: Final = (-(2**63), 2**63 - 1)

# fmt: off
_ANNOTATIONS: Final = frozenset({
    "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$vocabulary", "$comment", "$defs", "definitions",
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "contentEncoding", "contentMediaType", "contentSchema",
})
_SHAPING: Final = frozenset({
    "type", "properties", "required", "items", "additionalProperties", "enum", "const", "nullable",
    "format", "precision", "scale", "$ref", "allOf", "anyOf", "oneOf",
})
# fmt: on
_LOWER: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_CHECKED: Final = _LOWER | _UPPER | {"multipleOf", "pattern", "uniqueItems"}
# fmt: off
_REFUSED: Final = frozenset({
    "not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies", "prefixItems",
    "additionalItems", "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties",
    "patternProperties", "propertyNames", "$dynamicRef", "$recursiveRef", "$recursiveAnchor", "divisibleBy",
})
# fmt: on
_NAMES: Final = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """A place in values: a column, or a part of one."""

    place: str
    kind: pa.DataType
    json_type: str
    nullable: bool
    required: bool = False
    """The object that holds this field must have it."""
    closed: bool = False
    """The object has no fields but its members."""
    members: tuple[tuple[str, JsonColumn], ...] = ()
    item: JsonColumn | None = None
    """Of an array or a map."""
    checks: tuple[Check, ...] = ()

    def inner(self) -> list[JsonColumn]:
        return [*(member for _, member in self.members), *([] if self.item is None else [self.item])]

    def within(self) -> list[JsonColumn]:
        """This place and all places in it."""
        return [self, *(place for one in self.inner() for place in one.within())]


def json_columns(schema_text: str) -> JsonColumn:
    """The columns of the values. Raises `InvalidArgument` naming the keyword and its place."""
    try:
        root = msgspec.json.decode(schema_text)
    except msgspec.DecodeError as error:
        raise InvalidArgument("schema", f"is not JSON: {error}") from None
    try:
        column = _Schema(root).column([_Part(root, frozenset())], "$", 0)
    except Refused as error:
        raise InvalidArgument("schema", str(error)) from None
    if column.json_type != "object" or not column.members or column.nullable:
        raise InvalidArgument("schema", "$: must be of type object, with properties")
    return column


class _Part(NamedTuple):
    """A schema, and the references that led to it."""

    schema: Any
    within: frozenset[str]


Flat = dict[str, Any]
"""A schema without references and combinations. Schemas in it are lists of `_Part`, which must all hold."""


class _Schema:
    def __init__(self, root: Any) -> None:
        self._root, self._count = root, 0
        draft = str(root.get("$schema", "")) if isinstance(root, dict) else ""
        self._old = re.search(r"draft-0[3-7]", draft) is not None
        """Up to draft 7, keywords beside $ref have no effect."""

    def column(self, parts: Sequence[_Part], place: str, depth: int, *, required: bool = False) -> JsonColumn:
        self._count += 1
        if depth > EXPORT_SCHEMA_DEPTH_MAX:
            raise Refused(place, f"nested more than {EXPORT_SCHEMA_DEPTH_MAX} deep")
        if self._count > EXPORT_JSON_PLACES_MAX:
            raise Refused(place, f"the schema has more than {EXPORT_JSON_PLACES_MAX} places")
        flat = self._all(parts, place)
        json_type, nullable = _type_of(flat, place)
        own: dict[str, Any] = {"place": place, "json_type": json_type, "nullable": nullable, "required": required}
        if json_type == "object":
            return self._object(flat, own, depth)
        if json_type == "array":
            if not flat.get("items"):
                raise Refused(place, "an array cannot be a column without items")
            item = self.column(flat["items"], f"{place}[]", depth + 1)
            kind = pa.list_(pa.field("element", item.kind))
            return JsonColumn(kind=kind, item=item, checks=checks_of(flat, kind, place), **own)
        kind = _scalar(flat, json_type, place)
        return JsonColumn(kind=kind, checks=checks_of(flat, kind, place), **own)

    def _object(self, flat: Flat, own: dict[str, Any], depth: int) -> JsonColumn:
        place, properties, others = own["place"], flat.get("properties", {}), flat.get("additionalProperties")
        required = flat.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
            raise Refused(f"{place}.required", f"{required!r} must list properties")
        if not properties:
            if not isinstance(others, list):
                raise Refused(
                    place, "an object cannot be a column without properties, or additionalProperties of one type"
                )
            item = self.column(others, f"{place}{{}}", depth + 1)
            kind = pa.map_(pa.string(), item.kind)
            return JsonColumn(kind=kind, item=item, checks=checks_of(flat, kind, place), **own)
        if isinstance(others, list):
            raise Refused(place, "'additionalProperties' with a schema beside 'properties' has no column")
        members = tuple(
            (name, self.column(parts, f"{place}.{name}", depth + 1, required=name in required))
            for name, parts in properties.items()
        )
        kind = pa.struct([pa.field(name, member.kind) for name, member in members])
        checks = checks_of(flat, kind, place)
        return JsonColumn(kind=kind, members=members, closed=others is False, checks=checks, **own)

    # -- references and combinations ----------------------------------------------------------------------------------
    def _all(self, parts: Sequence[_Part], place: str) -> Flat:
        flat: Flat = {}
        for part in parts:
            flat = _both(flat, self._flat(part, place), place)
        return flat

    def _flat(self, part: _Part, place: str) -> Flat:
        schema, within = part
        if not isinstance(schema, dict):
            raise Refused(place, f"the schema {schema!r} cannot be a column; it must be an object")
        _check_keywords(schema, place)
        flat: Flat = {name: value for name, value in schema.items() if name in _SHAPING | _CHECKED}
        for name in ("$ref", "allOf", "anyOf", "oneOf"):
            flat.pop(name, None)
        if "properties" in flat:
            if not isinstance(flat["properties"], dict):
                raise Refused(place, "'properties' must be an object")
            flat["properties"] = {name: [_Part(its, within)] for name, its in flat["properties"].items()}
        if "items" in flat:
            flat["items"] = [_Part(flat["items"], within)]
        others = flat.get("additionalProperties")
        if others in (True, {}):
            del flat["additionalProperties"]
        elif others is not None and others is not False:
            flat["additionalProperties"] = [_Part(others, within)]
        if "$ref" in schema:
            target = self._referred(schema["$ref"], within, place)
            flat = self._flat(target, place) if self._old else _both(self._flat(target, place), flat, place)
        for one in schema.get("allOf", []):
            flat = _both(flat, self._flat(_Part(one, within), place), place)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                flat = _both(flat, self._either(name, schema[name], within, place), place)
        return flat

    def _either(self, name: str, branches: Any, within: frozenset[str], place: str) -> Flat:
        """One type, or that type and null; or alternatives that are constants, as an enumeration."""
        if not isinstance(branches, list) or not branches:
            raise Refused(place, f"{name!r} must be a list of schemas")
        flats = [self._flat(_Part(one, within), place) for one in branches]
        others = [flat for flat in flats if not _only_null(flat)]
        null = {"nullable": True} if len(others) < len(flats) else {}
        if len(others) == 1:
            if null and name == "oneOf" and _permits_null(others[0]):
                raise Refused(place, "'oneOf' with null beside a type that allows null never holds for null")
            return {**others[0], **null}
        constants = [_constants(flat) for flat in others]
        if others and all(constants):
            return {"enum": [value for values in constants for value in values], **null}
        raise Refused(place, f"{name!r} with other alternatives than one type and null cannot be a column")

    def _referred(self, reference: Any, within: frozenset[str], place: str) -> _Part:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise Refused(place, f"'$ref' {reference!r} must be one within the schema, #/…")
        if reference in within:
            raise Refused(place, f"'$ref' {reference!r} contains itself, which cannot be a column")
        found: Any = self._root
        if reference[1:] and not reference.startswith("#/"):
            found = _anchored(self._root, reference[1:])
        else:
            for name in reference.split("/")[1:]:
                name = unquote(name).replace("~1", "/").replace("~0", "~")
                if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                    found = found[int(name)]
                else:
                    found = found.get(name) if isinstance(found, dict) else None
        if found is None:
            raise Refused(place, f"'$ref' {reference!r} leads nowhere")
        return _Part(found, within | {reference})


def _anchored(schema: Any, name: str) -> Any:
    """The schema with this anchor, if there is one."""
    if isinstance(schema, dict):
        if name in (schema.get("$anchor"), schema.get("$dynamicAnchor")) or schema.get("$id") == f"#{name}":
            return schema
        schema = list(schema.values())
    if isinstance(schema, list):
        return next((found for one in schema if (found := _anchored(one, name)) is not None), None)
    return None


def _check_keywords(schema: dict[str, Any], place: str) -> None:
    for name in schema:
        if name in _ANNOTATIONS | _SHAPING | _CHECKED or name.startswith("x-") or "." in name:
            continue
        if name in ("unevaluatedProperties", "unevaluatedItems", "additionalItems") and schema[name] is True:
            continue
        if name in _REFUSED:
            raise Refused(place, f"keyword {name!r} is not supported; remove it, or express the rule otherwise")
        raise Refused(place, f"keyword {name!r} is not one of JSON Schema; an annotation of your own begins with x-")
    if place != "$" and not str(schema.get("$id", "#")).startswith("#"):
        raise Refused(place, "'$id' below the root changes the meaning of references, which is not supported")


def _both(one: Flat, other: Flat, place: str) -> Flat:
    """A schema that holds where both hold."""
    if not one or not other:
        return {**one, **other}
    for first, second in ((one, other), (other, one)):
        beyond = second.get("properties", {}).keys() - first.get("properties", {}).keys()
        if "additionalProperties" in first and beyond:
            raise Refused(place, f"'additionalProperties' beside the property {min(beyond)!r} of another schema")
    both: Flat = {**one, **other}
    for name in one.keys() & other.keys():
        first, second = one[name], other[name]
        if first == second:
            continue
        if name in _LOWER | _UPPER and _is_number(first) and _is_number(second):
            both[name] = max(first, second) if name in _LOWER else min(first, second)
        elif name == "properties":
            both[name] = {key: [*first.get(key, ()), *second.get(key, ())] for key in first | second}
        elif name in ("items", "required") and isinstance(first, list) and isinstance(second, list):
            both[name] = [*first, *second]
        elif name == "type":
            both[name] = _common_types(first, second, place)
        elif name == "enum" and isinstance(first, list) and isinstance(second, list):
            both[name] = [value for value in first if any(_equal(value, its) for its in second)]
        elif name != "nullable":
            raise Refused(place, f"keyword {name!r} is given twice, as {first!r} and as {second!r}")
    # "Or null" holds for both only if the other schema allows null too.
    if one.get("nullable") or other.get("nullable"):
        both["nullable"] = _permits_null(one) and _permits_null(other)
    return both


def _common_types(first: Any, second: Any, place: str) -> list[str]:
    ours, theirs = set(_types(first, place)), set(_types(second, place))
    common = ours & theirs
    common |= {"integer"} if {"integer", "number"} <= ours | theirs and not {"integer", "number"} & common else set()
    if not common:
        raise Refused(place, f"no value is of type {first!r} and of type {second!r}")
    return sorted(common)


def _types(given: Any, place: str) -> list[str]:
    types = given if isinstance(given, list) else [given]
    if not types or not all(isinstance(name, str) and name in _NAMES for name in types):
        raise Refused(place, f"type {given!r} is not one of JSON")
    return types


def _permits_null(flat: Flat) -> bool:
    if flat.get("nullable"):
        return True
    if "type" in flat and "null" not in (flat["type"] if isinstance(flat["type"], list) else [flat["type"]]):
        return False
    if "enum" in flat and None not in flat["enum"]:
        return False
    return "const" not in flat or flat["const"] is None


def _only_null(flat: Flat) -> bool:
    return flat.get("type") in ("null", ["null"]) or flat.get("enum") == [None] or flat.get("const", 0) is None


def _constants(flat: Flat) -> list[Any]:
    """The values of an alternative that is nothing but constants."""
    if flat.keys() - {"const", "enum", "type"}:
        return []
    return [flat["const"]] if "const" in flat else list(flat.get("enum", []))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(one: Any, other: Any) -> bool:
    """As in JSON: 1 is 1.0, but not true."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


# -- types -------------------------------------------------------------------------------------------------------------


def _type_of(flat: Flat, place: str) -> tuple[str, bool]:
    """The one type besides null, and whether null is allowed."""
    if "enum" in flat and (not isinstance(flat["enum"], list) or not flat["enum"]):
        raise Refused(place, "'enum' must be a list of values")
    constants = [*flat.get("enum", []), *([flat["const"]] if "const" in flat else [])]
    named = _types(flat["type"], place) if "type" in flat else sorted({_json_type(value) for value in constants})
    kinds = [name for name in named if name != "null"]
    if sorted(kinds) == ["integer", "number"]:
        kinds = ["number"]
    if len(kinds) != 1:
        accepted = "string, integer, number, boolean, object with properties, or array with items"
        shown = flat.get("type", named or None)
        raise Refused(place, f"type {shown!r} cannot be a column; it must be one of {accepted}")
    without_type = _permits_null({name: value for name, value in flat.items() if name != "type"})
    nullable = bool(flat.get("nullable")) or (without_type and "null" in named)
    return kinds[0], nullable


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
    return "object" if isinstance(value, dict) else "array"


def _scalar(flat: Flat, json_type: str, place: str) -> pa.DataType:
    form = flat.get("format")
    if form == "decimal" and json_type in ("string", "number", "integer"):
        return _decimal(flat, place)
    for name in ("precision", "scale"):
        if name in flat:
            raise Refused(place, f'keyword {name!r} is only for "format": "decimal"')
    match json_type:
        case "string":
            return {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}.get(str(form), pa.string())
        case "integer":
            return _integer(flat)
        case "number":
            return pa.float64()
        case "boolean":
            return pa.bool_()
    raise Refused(place, f"type {json_type!r} cannot be a column")


def _integer(flat: Flat) -> pa.DataType:
    """A decimal if the bounds allow what an int64 cannot hold."""
    bounds = [exact(flat[name]) for name in ("minimum", "maximum") if _is_number(flat.get(name))]
    widest = max((abs(bound) for bound in bounds), default=Fraction(0))
    if all(_INT64[0] <= bound <= _INT64[1] for bound in bounds):
        return pa.int64()
    digits = len(str(int(widest)))
    return pa.decimal128(digits, 0) if digits <= _DECIMAL_DIGITS_MAX else pa.int64()


def _decimal(flat: Flat, place: str) -> pa.DataType:
    digits, scale = flat.get("precision"), flat.get("scale")
    whole = isinstance(digits, int) and isinstance(scale, int) and not isinstance(digits, bool)
    if not whole or not 1 <= digits <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:  # type: ignore[operator]
        reason = (
            f"a decimal needs 'precision', 1 to {_DECIMAL_DIGITS_MAX} digits, and 'scale', of which after the point"
        )
        raise Refused(place, reason)
    return pa.decimal128(digits, scale)
