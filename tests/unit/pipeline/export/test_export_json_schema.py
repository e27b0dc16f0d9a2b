"""Every keyword of JSON Schema decides columns, is checked, is an annotation, or is refused by name and place."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InvalidArgument
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.json_values import JsonValues
from tests.unit.pipeline.export.exporting import raw_rows

UTC = datetime.UTC


def schema_of(its: Any, **more: Any) -> str:
    """Values with one property `a`."""
    return json.dumps({"type": "object", "properties": {"a": its}, **more})


def decoded(schema: str, texts: list[str]) -> list[dict[str, Any]]:
    batch = raw_rows([(0, offset, text.encode()) for offset, text in enumerate(texts)])
    rows: list[dict[str, Any]] = Decoder(Decoding("json", schema)).decode(batch).batch.to_pylist()
    return rows


def column_of(schema: str, name: str = "a") -> str:
    return str(Decoder(Decoding("json", schema)).schema.field(name).type)


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
STRINGS = {"type": "array", "items": STRING}
INTEGERS = {"type": "object", "additionalProperties": INTEGER}
DECIMAL = {"type": "number", "format": "decimal", "precision": 9, "scale": 2}
RULES: list[tuple[dict[str, Any], list[str], list[str], str]] = [
    ({**INTEGER, "minimum": 3}, ["3", "4", "3.0"], ["2", "-9223372036854775808"], "$.a: breaks minimum 3"),
    ({**INTEGER, "minimum": 2.5}, ["3"], ["2"], "minimum 2.5"),
    ({**INTEGER, "maximum": 3}, ["3", "2"], ["4"], "maximum 3"),
    ({**INTEGER, "exclusiveMinimum": 3}, ["4"], ["3"], "exclusiveMinimum 3"),
    ({**INTEGER, "exclusiveMaximum": 3.5}, ["3"], ["4"], "exclusiveMaximum 3.5"),
    ({**INTEGER, "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"], "minimum 3"),
    ({**INTEGER, "minimum": 3, "exclusiveMinimum": False}, ["3"], ["2"], "minimum 3"),
    ({**INTEGER, "exclusiveMinimum": 9223372036854775807}, [], ["9223372036854775807"], "exclusiveMinimum"),
    ({**INTEGER, "multipleOf": 5}, ["-5", "0", "10"], ["7"], "multipleOf 5"),
    ({**INTEGER, "multipleOf": 2.5}, ["5"], ["3"], "multipleOf 2.5"),
    ({**NUMBER, "minimum": 0.5}, ["0.5", "1"], ["0.49"], "minimum 0.5"),
    ({**NUMBER, "exclusiveMaximum": 0.5}, ["0.49"], ["0.5"], "exclusiveMaximum 0.5"),
    ({**NUMBER, "multipleOf": 0.01}, ["0.07", "1.1", "19.99", "3"], ["0.075"], "multipleOf 0.01"),
    ({**DECIMAL, "minimum": 0.011}, ["0.02"], ["0.01"], "minimum 0.011"),
    ({**DECIMAL, "maximum": 10, "multipleOf": 0.05}, ["10", "9.95"], ["10.01", "9.99"], "a: breaks"),
    ({**DECIMAL, "maximum": -1e12}, [], ["0"], "maximum"),
    ({**STRING, "minLength": 2}, ['"ab"', '"üü"'], ['"a"', '"ü"'], "minLength 2"),
    ({**STRING, "maxLength": 2}, ['"ab"', '"üü"', '""'], ['"abc"'], "maxLength 2"),
    ({**STRING, "pattern": "^[a-z]+$"}, ['"ab"'], ['"aB"', '"ab\\n"', '""'], "pattern ^[a-z]+$"),
    ({**STRING, "pattern": "b"}, ['"abc"'], ['"a"'], "pattern b"),
    ({**STRING, "pattern": "^\\u0041$"}, ['"A"'], ['"B"'], "pattern"),
    ({**STRING, "enum": ["x", "y", 3]}, ['"x"'], ['"z"', '"3"'], "enum ['x', 'y', 3]"),
    ({"enum": [1, 2.0]}, ["1", "2"], ["3"], "enum [1, 2.0]"),
    ({"enum": [1.5, 2]}, ["1.5", "2"], ["3"], "enum"),
    ({"enum": [True]}, ["true"], ["false"], "enum [True]"),
    ({**INTEGER, "enum": [True, 1]}, ["1"], ["0"], "enum"),
    ({"const": "x"}, ['"x"'], ['"y"'], "const x"),
    ({"oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]}, ['"y"'], ['"z"'], "enum ['x', 'y']"),
    ({**STRINGS, "minItems": 1}, ['["x"]'], ["[]"], "minItems 1"),
    ({**STRINGS, "maxItems": 1}, ["[]", '["x"]'], ['["x", "y"]'], "maxItems 1"),
    ({**STRINGS, "uniqueItems": True}, ["[]", '["x", "y"]'], ['["x", "y", "x"]'], "uniqueItems True"),
    ({**INTEGERS, "minProperties": 1}, ['{"k": 1}'], ["{}"], "minProperties 1"),
    ({**INTEGERS, "maxProperties": 1}, ['{"k": 1}', "{}"], ['{"k": 1, "l": 2}'], "maxProperties 1"),
    ({**STRING, "format": "uuid"}, ['"5e0a1b2c-0000-4000-8000-00000000000F"'], ['"5e0a"'], "format uuid"),
    ({**STRING, "format": "time"}, ['"23:59:60Z"', '"08:00:00.5+02:00"'], ['"8:00"', '"08:00:00"'], "format time"),
    ({"type": "array", "items": {**INTEGER, "minimum": 0}}, ["[]", "[0, 1]"], ["[1, -1]"], "$.a[]: breaks minimum 0"),
    (
        {"type": "object", "additionalProperties": {**STRING, "maxLength": 1}},
        ["{}", '{"k": "v"}'],
        ['{"k": "vv", "l": "v"}'],
        "$.a{}: breaks maxLength 1",
    ),
    (
        {"type": "array", "items": {"type": "object", "properties": {"b": {**INTEGER, "maximum": 3}}}},
        ['[{"b": 3}, {}]', "[]"],
        ['[{}, {"b": 4}]'],
        "$.a[].b: breaks maximum 3",
    ),
    # A rule for another type has no effect.
    ({**STRING, "minimum": 3, "minItems": 2, "multipleOf": 5, "minProperties": 1}, ['"x"'], [], ""),
    ({**INTEGER, "minLength": 3, "pattern": "x", "uniqueItems": True}, ["1"], [], ""),
]


@pytest.mark.parametrize(("its", "good", "bad", "reason"), RULES)
def test_a_value_that_breaks_a_rule_is_bad_with_its_place_and_keyword(
    its: dict[str, Any], good: list[str], bad: list[str], reason: str
) -> None:
    texts = [f'{{"a": {text}}}' for text in [*good, *bad, *good]]
    rows = decoded(schema_of(its), texts)
    assert [row["_error"] is None for row in rows] == [True] * len(good) + [False] * len(bad) + [True] * len(good)
    for row in rows[len(good) : len(good) + len(bad)]:
        assert reason in row["_error"]
        assert row["a"] is None
        assert row["_raw_value"] == texts[row["offset"]].encode()


PLACE = {"type": "object", "properties": {"x": INTEGER, "y": {"type": ["integer", "null"]}}, "required": ["x", "y"]}
SHAPES: list[tuple[dict[str, Any], list[str], list[tuple[str, str]]]] = [
    # required, and null, at any depth
    (PLACE, ['{"x": 1, "y": null}', '{"x": 1, "y": 2}'], [('{"x": 1}', "y"), ('{"y": 1}', "x"), ("null", "null")]),
    (
        {"type": "array", "items": PLACE},
        ['[{"x": 1, "y": null}]', "[]"],
        [('[{"x": 1, "y": 1}, {"x": 2}]', "y"), ("[null]", "null")],
    ),
    (
        {"type": "object", "additionalProperties": PLACE},
        ['{"k": {"x": 1, "y": null}}', "{}"],
        [('{"k": {"x": 1}}', "y"), ('{"k": null}', "null")],
    ),
    (STRING, ['"x"'], [("null", "null"), ("1", "str")]),
    ({"type": ["string", "null"]}, ['"x"', "null"], [("1", "str")]),
    ({"type": ["string", "null"], "enum": ["x"]}, ['"x"'], [("null", "null")]),
    ({"enum": ["x", None]}, ['"x"', "null"], [('"y"', "enum")]),
    ({"type": "string", "nullable": True}, ["null", '"x"'], [("true", "str")]),
    ({"anyOf": [STRING, {"type": "null"}], "default": None, "title": "A"}, ["null", '"x"'], [("1", "str")]),
    ({"oneOf": [{"type": "null"}, {**INTEGER, "minimum": 3}]}, ["null", "3"], [("2", "minimum 3")]),
    ({"anyOf": [{"enum": ["x"]}, {"const": None}]}, ["null", '"x"'], [('"y"', "enum")]),
    ({"allOf": [{"anyOf": [STRING, {"type": "null"}]}, STRING]}, ['"x"'], [("null", "null")]),
    # other fields
    (
        {"type": "object", "properties": {"x": INTEGER}, "additionalProperties": False},
        ['{"x": 1}', "{}"],
        [('{"x": 1, "z": 2}', "z")],
    ),
    ({"type": "object", "properties": {"x": INTEGER}, "additionalProperties": True}, ['{"x": 1, "z": 2}'], []),
    # references and conjunctions
    ({"$ref": "#/$defs/small", "description": "d"}, ["3"], [("4", "maximum 3")]),
    ({"$ref": "#/$defs/small", "minimum": 2}, ["3"], [("1", "minimum 2"), ("4", "maximum 3")]),
    ({"$ref": "#tiny"}, ["1"], [("2", "maximum 1")]),
    ({"allOf": [{"$ref": "#/$defs/small"}, {"maximum": 2}]}, ["2"], [("3", "maximum 2")]),
    ({"allOf": [INTEGER, NUMBER]}, ["2", "2.0"], [("2.5", "fraction")]),
    (
        {"allOf": [{"type": "object", "properties": {"x": INTEGER}}, {"properties": {"y": STRING}, "required": ["y"]}]},
        ['{"x": 1, "y": "s"}'],
        [('{"x": 1}', "y"), ('{"y": 1}', "str")],
    ),
    # texts that become other types
    ({**STRING, "format": "date"}, ['"2026-02-28"'], [('"2026-02-30"', "date"), ('"28.2.2026"', ""), ("1", "str")]),
    ({**STRING, "format": "date-time"}, ['"2026-02-28T08:00:00Z"'], [('"2026-02-30T08:00:00Z"', ""), ("1", "str")]),
    (DECIMAL, ["1.5", "1.50000", "1e2"], [("1.505", "scale"), ('"1.5"', "float"), ("12345678.9", ""), ("1e999", "")]),
    ({**DECIMAL, "type": "string"}, ['"1.5"', '"-0.10"'], [("1.5", "str"), ('"x"', ""), ('"1.234"', "")]),
    # numbers
    (INTEGER, ["1", "1.0", "1e3", "-0"], [("1.5", "fraction"), ("9223372036854775808", "9223372036854775807")]),
    ({"type": ["integer", "number"]}, ["1", "1.5"], [('"1"', "float")]),
    ({**INTEGER, "maximum": 18446744073709551615}, ["18446744073709551615"], [("18446744073709551616", "maximum")]),
    ({"type": "boolean"}, ["true"], [("1", "bool"), ('"true"', "bool")]),
]
DEFINITIONS = {"small": {**INTEGER, "maximum": 3}, "other": {"$anchor": "tiny", **INTEGER, "maximum": 1}}


@pytest.mark.parametrize(("its", "good", "bad"), SHAPES)
def test_a_value_of_another_shape_is_bad_with_the_reason(
    its: dict[str, Any], good: list[str], bad: list[tuple[str, str]]
) -> None:
    texts = [f'{{"a": {text}}}' for text in (*good, *(text for text, _ in bad), *good)]
    schema = schema_of(its, **{"$defs": DEFINITIONS})
    rows = decoded(schema, texts)
    wanted = [None] * len(good) + [reason for _, reason in bad] + [None] * len(good)
    for row, reason in zip(rows, wanted, strict=True):
        if reason is None:
            assert row["_error"] is None, row
        else:
            assert row["_error"], row
            assert reason in row["_error"]
    # The result does not depend on the neighbours.
    for row, text in zip(rows, texts, strict=True):
        assert [{**one, "offset": row["offset"]} for one in decoded(schema, [text])] == [row]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "Inf", "-Inf"])
@pytest.mark.parametrize("value", ['{{"a": {}}}', '{{"a": 1, "b": {}}}', '{{"a": 1, "b": {{"c": [{}]}}}}'])
def test_nan_and_infinity_are_not_json_wherever_they_are(text: str, value: str) -> None:
    rows = decoded(schema_of(NUMBER), ['{"a": 1}', value.format(text), '{"a": 2, "b": "NaN, Infinity"}'])
    assert [row["a"] for row in rows] == [1.0, None, 2.0]
    assert "JSON" in rows[1]["_error"]


def test_bytes_that_are_not_utf_8_are_bad_in_fields_that_are_ignored_too() -> None:
    batch = raw_rows([(0, 1, b'{"a": "x", "b": "\xff"}'), (0, 2, b'{"a": "y"}')])
    rows = Decoder(Decoding("json", schema_of(STRING))).decode(batch).batch.to_pylist()
    assert [(row["a"], row["_error"]) for row in rows] == [(None, "not UTF-8"), ("y", None)]


COLUMNS: list[tuple[Any, str]] = [
    ({**STRING, "format": "date"}, "date32[day]"),
    ({**STRING, "format": "date-time"}, "timestamp[us, tz=UTC]"),
    ({**STRING, "format": "email"}, "string"),
    (DECIMAL, "decimal128(9, 2)"),
    ({**DECIMAL, "type": ["string", "null"]}, "decimal128(9, 2)"),
    ({**INTEGER, "minimum": 0, "maximum": 2**64}, "decimal128(20, 0)"),
    ({**INTEGER, "format": "int32"}, "int64"),
    ({"type": ["integer", "number", "null"]}, "double"),
    ({"enum": ["a", None]}, "string"),
    ({"const": 5}, "int64"),
    (INTEGERS, "map<string, int64>"),
    ({"type": "object", "additionalProperties": STRINGS}, "map<string, list<element: string>>"),
    ({"type": "array", "items": INTEGERS}, "list<element: map<string, int64>>"),
    ({"anyOf": [{"$ref": "#/$defs/small"}, {"type": "null"}]}, "int64"),
    ({"$ref": "#/$defs/b~1c%20d"}, "bool"),
]


@pytest.mark.parametrize(("its", "kind"), COLUMNS)
def test_the_column_follows_from_the_schema(its: Any, kind: str) -> None:
    assert column_of(schema_of(its, **{"$defs": {**DEFINITIONS, "b/c d": {"type": "boolean"}}})) == kind


def test_maps_of_any_depth_become_columns() -> None:
    inner = {"type": "object", "properties": {"at": {**STRING, "format": "date"}, "m": INTEGERS}}
    its = {"type": "object", "additionalProperties": {"type": ["array", "null"], "items": inner}}
    values = [
        '{"a": {"k": [{"at": "2026-11-16", "m": {"x": 1}}, {"m": {}}], "l": [], "n": null}, "b": {"p": {"x": 1.5}}}',
        '{"a": {}, "b": null}',
        "{}",
    ]
    box = {"type": ["object", "null"], "properties": {"p": {"type": "object", "additionalProperties": NUMBER}}}
    schema = json.dumps({"type": "object", "properties": {"a": its, "b": box, "c": STRING}})
    rows = decoded(schema, values)
    assert [row["_error"] for row in rows] == [None] * 3
    first = [{"at": datetime.date(2026, 11, 16), "m": [("x", 1)]}, {"at": None, "m": []}]
    assert rows[0]["a"] == [("k", first), ("l", []), ("n", None)]
    assert [row["b"] for row in rows] == [{"p": [("x", 1.5)]}, None, None]
    assert [row["a"] for row in rows[1:]] == [[], None]


def test_decimals_are_exact() -> None:
    texts = ["0.1", "12345678901234567890.12", "-7"]
    wide = {**DECIMAL, "precision": 38}
    rows = decoded(schema_of(wide), [f'{{"a": {text}}}' for text in texts])
    assert [row["a"] for row in rows] == [Decimal(text) for text in texts]


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "prefixItems",
        "additionalItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "$dynamicRef",
        "$recursiveRef",
        "$recursiveAnchor",
        "divisibleBy",
    ],
)
def test_a_keyword_that_is_not_honoured_is_refused_by_its_name_and_place(keyword: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"\$\.a\[\]: keyword '{keyword.replace('$', '.')}' is not supported"):
        JsonValues(schema_of({"type": "array", "items": {**STRING, keyword: {}}}))


def test_annotations_change_nothing() -> None:
    notes = {
        "$comment": "c",
        "title": "t",
        "description": "d",
        "default": 5,
        "examples": [1],
        "deprecated": True,
        "readOnly": True,
        "contentEncoding": "base64",
        "x-own": {"not": 1},
        "connect.index": 0,
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://x.example/order"}
    [row] = decoded(schema_of({**STRING, **notes}, **head), ['{"a": "x"}'])
    assert (row["a"], row["_error"]) == ("x", None)


REFUSED: list[tuple[Any, str]] = [
    (True, r"\$\.a: the schema True"),
    ({}, r"\$\.a: type None cannot be a column"),
    ({"type": "text"}, r"\$\.a: type 'text' is not one of JSON"),
    ({"type": "null"}, r"\$\.a: type 'null' cannot be a column"),
    ({"type": ["string", "integer"]}, r"\$\.a: type \['string', 'integer'\]"),
    ({"type": "object"}, r"\$\.a: an object cannot be a column without properties"),
    ({"type": "array"}, r"\$\.a: an array cannot be a column without items"),
    ({"type": "array", "items": [STRING]}, r"\$\.a\[\]: the schema \["),
    ({"type": "object", "properties": {"x": STRING}, "additionalProperties": STRING}, "'additionalProperties'"),
    ({"type": "object", "properties": {"x": STRING}, "minProperties": 1}, "'minProperties'"),
    ({"type": "object", "properties": {"x": STRING}, "required": ["y"]}, r"\$\.a\.required"),
    ({"anyOf": [STRING, INTEGER]}, r"\$\.a: 'anyOf' with other alternatives"),
    ({"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]}, "'oneOf' with null"),
    ({"allOf": [STRING, INTEGER]}, "no value is of type"),
    ({"allOf": [{**STRING, "pattern": "a"}, {"pattern": "b"}]}, "'pattern' is given twice"),
    (
        {"allOf": [{"type": "object", "additionalProperties": False}, {"properties": {"x": STRING}}]},
        "'additionalProperties' beside the property 'x'",
    ),
    ({"$ref": "#/$defs/nowhere"}, r"'\$ref' '#/\$defs/nowhere' leads nowhere"),
    ({"$ref": "other.json#/x"}, "must be one within the schema"),
    ({"$ref": "#/$defs/node"}, r"\$\.a\.next: '\$ref' '#/\$defs/node' contains itself"),
    ({"$ref": "#/$defs/loop"}, "contains itself"),
    ({**STRING, "pattern": "(?=x)"}, r"\$\.a: keyword 'pattern' cannot be matched"),
    ({**STRING, "pattern": 5}, "'pattern' must be a text"),
    ({**INTEGER, "minimum": "3"}, r"\$\.a: keyword 'minimum' must be a number"),
    ({**INTEGER, "multipleOf": 0}, "'multipleOf' must be a number"),
    ({**STRING, "format": "date", "maxLength": 10}, "'maxLength' cannot be checked beside format 'date'"),
    ({**STRING, "format": "date", "enum": ["2026-01-01"]}, "'enum': is not supported for a column of type date32"),
    ({"enum": []}, "'enum' must be a list"),
    ({"enum": [[1]]}, "an array cannot be a column without items"),
    ({"type": "array", "items": STRINGS, "uniqueItems": True}, "'uniqueItems' is only supported"),
    ({"type": "number", "format": "decimal"}, "a decimal needs 'precision'"),
    ({**DECIMAL, "precision": 39}, "a decimal needs 'precision'"),
    ({**INTEGER, "precision": 5}, "'precision' is only for"),
    ({**STRING, "$id": "https://x.example/a"}, r"'\$id' below the root"),
    ({"type": "object", "properties": {'x"y': STRING}}, "quote"),
    ({**STRING, "maxLenght": 5}, r"\$\.a: keyword 'maxLenght' is not one of JSON Schema"),
]
NODES = {
    "node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}},
    "loop": {"$ref": "#/$defs/loop"},
}


@pytest.mark.parametrize(("its", "reason"), REFUSED)
def test_a_schema_that_cannot_be_honoured_is_refused_by_its_place(its: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        JsonValues(schema_of(its, **{"$defs": NODES}))


def test_up_to_draft_7_keywords_beside_a_reference_have_no_effect() -> None:
    its = {"$ref": "#/definitions/small", "maximum": 1}
    for draft, good in (("http://json-schema.org/draft-07/schema#", True), ("x/draft/2020-12/schema", False)):
        schema = schema_of(its, **{"$schema": draft, "definitions": DEFINITIONS})
        [row] = decoded(schema, ['{"a": 2}'])
        assert (row["_error"] is None) == good


def test_the_root_may_be_a_reference() -> None:
    schema = json.dumps({"$ref": "#/definitions/Order", "definitions": {"Order": json.loads(schema_of(INTEGER))}})
    assert decoded(schema, ['{"a": 5}'])[0]["a"] == 5


def test_references_that_multiply_are_refused() -> None:
    definitions: dict[str, Any] = {"d0": STRING}
    for n in range(1, 15):
        properties = {name: {"$ref": f"#/$defs/d{n - 1}"} for name in "abcd"}
        definitions[f"d{n}"] = {"type": "object", "properties": properties}
    with pytest.raises(InvalidArgument, match="more than 10000 places"):
        JsonValues(schema_of({"$ref": "#/$defs/d14"}, **{"$defs": definitions}))


WIDE = json.dumps(
    {
        "type": "object",
        "properties": {
            "n": {**INTEGER, "minimum": 0},
            "d": DECIMAL,
            "m": {"type": "object", "additionalProperties": {"type": ["integer", "null"], "maximum": 5}},
            "l": {"type": "array", "items": {"type": "object", "properties": {"x": {**STRING, "maxLength": 1}}}},
            "t": {**STRING, "format": "date"},
        },
        "required": ["n"],
    }
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(["", "x", "xy", "2026-01-02"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "k", "n"]), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["n", "d", "m", "l", "t", "z"]), ANY, max_size=4), max_size=5))
def test_what_a_value_becomes_does_not_depend_on_its_neighbours(objects: list[Any]) -> None:
    texts = ['{"n": 1}', *(json.dumps(one) for one in objects), '{"n": 2, "m": {"k": 3}}']
    together = [{**row, "offset": 0} for row in decoded(WIDE, texts)]
    # repr, because NaN is not equal to itself
    assert repr(together) == repr([row for text in texts for row in decoded(WIDE, [text])])
    assert together[0]["_error"] is None
    assert together[-1]["m"] == [("k", 3)]


def test_broken_rules_do_not_slow_the_others_down(monkeypatch: pytest.MonkeyPatch) -> None:
    parses, parse = list[int](), JsonValues.parse

    def counted(self: JsonValues, values: pa.BinaryArray) -> pa.StructArray:
        parses.append(len(values))
        return parse(self, values)

    monkeypatch.setattr(JsonValues, "parse", counted)
    rows = decoded(schema_of({**INTEGER, "maximum": 3}, required=["a"]), ['{"a": 1}', '{"a": 4}', "{}"] * 50)
    assert [row["_error"] is None for row in rows] == [True, False, False] * 50
    assert parses == [150]
