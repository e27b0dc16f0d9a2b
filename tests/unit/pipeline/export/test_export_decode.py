"""Values as columns: types by the schema alone, each row of its own value, bad ones kept with the reason."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import ExportFailed, InvalidArgument, ValueTooLarge
from llog.formats.arrow import SCHEMA
from llog.limits import EXPORT_SCHEMA_BYTES_MAX
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.json_values import JsonValues
from tests.unit.pipeline.export.exporting import raw_rows

JSON_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "who": {"type": "object", "properties": {"name": {"type": "string"}, "vip": {"type": "boolean"}}},
        },
        "required": ["id"],
    }
)
AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "where", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]}},
        {"name": "before", "type": ["null", "Place"]},
    ],
}
UTC = datetime.UTC


def decoded(decoding: Decoding, values: list[bytes | None]) -> list[dict[str, Any]]:
    batch = raw_rows([(0, offset, value) for offset, value in enumerate(values)])
    rows: list[dict[str, Any]] = Decoder(decoding).decode(batch).batch.to_pylist()
    return rows


def avro(datum: dict[str, Any], schema: dict[str, Any] = AVRO_SCHEMA) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), datum)
    return sink.getvalue()


def test_raw_values_are_handed_on_as_they_are() -> None:
    batch = raw_rows([(0, 1, b"x"), (0, 2, None)])
    decoder = Decoder(Decoding())
    assert decoder.schema == SCHEMA
    assert decoder.decode(batch) == (batch, None, 0)


def test_json_fields_become_columns_of_the_schemas_types() -> None:
    value = {"id": 1, "price": 2, "at": "2026-11-16T08:00:00.5Z", "tags": ["a"], "who": {"vip": True}, "else": {}}
    decoder = Decoder(Decoding("json", JSON_SCHEMA))
    assert [str(field.type) for field in decoder.schema][7:] == [
        "int64",
        "double",
        "timestamp[us, tz=UTC]",
        "list<element: string>",
        "struct<name: string, vip: bool>",
        "string",
        "binary",
    ]
    [row] = decoded(Decoding("json", JSON_SCHEMA), [json.dumps(value, indent=2).encode()])
    assert (row["id"], row["price"], row["tags"]) == (1, 2.0, ["a"])
    assert row["at"] == datetime.datetime(2026, 11, 16, 8, 0, 0, 500_000, UTC)
    assert row["who"] == {"name": None, "vip": True}
    assert (row["_error"], row["_raw_value"]) == (None, None)


def test_a_json_timestamp_may_be_finer_than_its_column_or_far_away() -> None:
    texts = ["2026-11-16T08:00:00.123456789Z", "9999-12-31T23:59:59.5Z", "2026-11-16T08:00:00.1234567+02:00"]
    values: list[bytes | None] = [json.dumps({"id": 1, "at": text}).encode() for text in texts]
    assert [row["at"] for row in decoded(Decoding("json", JSON_SCHEMA), values)] == [
        datetime.datetime(2026, 11, 16, 8, 0, 0, 123_456, UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 500_000, UTC),
        datetime.datetime(2026, 11, 16, 6, 0, 0, 123_456, UTC),
    ]


BAD_JSON = [
    b"",
    b"  ",
    b"nope",
    b"[1]",
    b"1",
    b'{"id": 1',
    b'{"id": "1"}',
    b'{"id": 1.5}',
    b'{"id": 99999999999999999999}',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1} {"id": 2}',
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 1},"x":{}',
    b'{"id": 1, "id": 2}',
    b'{"id": 1, "who": {"name": "\xff"}}',
    b'{"id": 1, "who": {"name": "a\nb"}}',
    b'{"id": 1, "at": "yesterday"}',
    b'{"id": {"id": 1}',
    b'{"id": 1}\x00}',
    b'{"price": 1}',
    b'{"id": null}',
]


@pytest.mark.parametrize("bad", BAD_JSON)
def test_a_value_that_is_not_of_the_schema_is_kept_with_its_bytes_and_its_neighbours_are_not_touched(
    bad: bytes,
) -> None:
    values: list[bytes | None] = [b'{"id": 1}', bad, b'{"id": 3}', None, b' {"id": 5}\n']
    rows = decoded(Decoding("json", JSON_SCHEMA), values)
    assert [row["id"] for row in rows] == [1, None, 3, None, 5]
    assert [row["_raw_value"] for row in rows] == [None, bad, None, None, None]
    assert rows[1]["_error"]
    assert [row["_error"] for row in (rows[0], rows[2], rows[3], rows[4])] == [None] * 4


def test_a_required_field_may_be_null_where_the_schema_says_so_but_not_missing() -> None:
    fields = {"id": {"type": "integer"}, "note": {"type": ["string", "null"]}}
    schema = json.dumps({"type": "object", "properties": fields, "required": ["id", "note"]})
    values: list[bytes | None] = [
        b'{"id": 1, "note": null}',
        b'{"id": 2}',
        b' {"note": "x", "id": 3}',
        b'{"note": null}',
    ]
    rows = decoded(Decoding("json", schema), values)
    assert [(row["id"], row["note"]) for row in rows] == [(1, None), (None, None), (3, "x"), (None, None)]
    assert [row["_error"] is None for row in rows] == [True, False, True, False]
    assert "note" in rows[1]["_error"]


PIECES = st.sampled_from(
    [*BAD_JSON, b'{"id": 7}', b'{"id": 8, "tags": []}', b'{"id":', b"9}", b'{"id": 1, "x": [{}', b"]}"]
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["", "2026-01-01", "2026-01-01T10Z", "2026-01-01 10:00:00.123456789", "2026/01/01", "1760000000"]),
    st.lists(st.one_of(st.none(), st.text(max_size=2), st.integers()), max_size=2),
    st.dictionaries(st.sampled_from(["name", "vip", "x"]), st.one_of(st.none(), st.booleans(), st.text()), max_size=3),
)
OBJECTS = st.dictionaries(st.sampled_from(["id", "price", "at", "tags", "who", "else", "ü"]), ANYTHING, max_size=5)


@settings(max_examples=100, deadline=None)
@given(OBJECTS, st.integers(0, 200), st.sampled_from(["", "}", "{", ",", '"', "\\", "0", "\n", "'", "Inf", "\ud7ff"]))
def test_what_is_refused_at_a_glance_is_bad_among_good_values_too(found: Any, place: int, typo: str) -> None:
    values, text = JsonValues(JSON_SCHEMA), json.dumps(found, ensure_ascii=False)
    place %= len(text)
    for value in (text, text[:place] + typo + text[place + 1 :]):
        data = value.encode(errors="surrogatepass")
        array = pa.array([b'{"id": 1}', data], pa.binary())
        if values.refused(data) is not None:
            try:
                rows = values.parse(array)
            except (ValueError, pa.ArrowException):
                continue
            assert values.checked(array, rows).keys() == {1}


def test_bad_values_do_not_slow_their_neighbours_down(monkeypatch: pytest.MonkeyPatch) -> None:
    parses, parse = list[int](), JsonValues.parse

    def counted(self: JsonValues, values: pa.BinaryArray) -> pa.StructArray:
        parses.append(len(values))
        return parse(self, values)

    monkeypatch.setattr(JsonValues, "parse", counted)
    bad = [b'{"id": "7"}', b"text", b'{"price": 1}', b"{'id': 1}", b'{"id": 1, "at": "16.11.2026"}']
    rows = decoded(Decoding("json", JSON_SCHEMA), [b'{"id": 1}', *bad] * 50)
    assert [row["_error"] is None for row in rows] == [True, *[False] * len(bad)] * 50
    assert parses == [300, 50]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(PIECES, st.none()), max_size=12))
def test_what_a_value_becomes_does_not_depend_on_its_neighbours(values: list[bytes | None]) -> None:
    decoding = Decoding("json", JSON_SCHEMA)
    together = [{**row, "offset": 0} for row in decoded(decoding, values)]
    assert together == [row for value in values for row in decoded(decoding, [value])]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=8))
def test_arbitrary_bytes_are_never_lost(values: list[bytes]) -> None:
    rows = decoded(Decoding("json", JSON_SCHEMA), list(values))
    assert [row["_raw_value"] if row["_error"] else value for row, value in zip(rows, values, strict=True)] == values


def test_quarantine_takes_bad_rows_out_and_fail_names_the_first() -> None:
    batch = raw_rows([(3, 10, b'{"id": 1}'), (3, 11, b"bad"), (3, 12, None)])
    good, rejected, bad_count = Decoder(Decoding("json", JSON_SCHEMA, "quarantine")).decode(batch)
    assert (good["offset"].to_pylist(), bad_count) == ([10, 12], 1)
    assert rejected is not None
    assert rejected.select(["offset", "value", "_error"]).to_pylist() == [
        {"offset": 11, "value": b"bad", "_error": "not a JSON object"}
    ]
    with pytest.raises(ExportFailed, match="orders:3 offset 11"):
        Decoder(Decoding("json", JSON_SCHEMA, "fail")).decode(batch)


def test_avro_values_become_columns() -> None:
    datum = {
        "id": 5,
        "item": None,
        "price": decimal.Decimal("12.34"),
        "at": datetime.datetime(2026, 11, 16, tzinfo=UTC),
        "kind": "OLD",
        "tags": ["a", "b"],
        "counts": {"x": 1},
        "where": {"x": 1.5},
        "before": None,
    }
    plain = Decoding("avro", json.dumps(AVRO_SCHEMA))
    [row] = decoded(plain, [avro(datum)])
    assert {name: row[name] for name in datum} == {**datum, "counts": [("x", 1)]}
    assert pa.types.is_decimal128(Decoder(plain).schema.field("price").type)
    for bad in (avro(datum)[:-1], avro(datum) + b"\0", b"", b"\xff" * 40):
        [row] = decoded(plain, [bad])
        assert (row["id"], row["_raw_value"]) == (None, bad)
        assert row["_error"]


def test_avro_uuids_are_texts_and_local_timestamps_have_no_zone() -> None:
    fields = [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "other", "type": ["null", {"type": "array", "items": {"type": "string", "logicalType": "uuid"}}]},
        {"name": "at", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "text", "type": "string", "logicalType": "uuid"},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    one, at = uuid.uuid4(), datetime.datetime(2026, 11, 16, 8)
    data = io.BytesIO()
    datum = {"id": one, "other": [one], "at": at, "text": "none"}
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), datum)
    [row] = decoded(Decoding("avro", json.dumps(schema)), [data.getvalue()])
    assert (row["_error"], row["id"], row["other"]) == (None, str(one), [str(one)])
    assert (row["at"], row["text"]) == (at, "none")


@pytest.mark.parametrize(
    ("schema", "datum"),
    [
        ({"type": "int", "logicalType": "timestamp-millis"}, 5),
        ({"type": "string", "logicalType": "date"}, "2026-11-16"),
        ({"type": "string", "logicalType": "decimal", "precision": 4}, "1.5"),
    ],
)
def test_a_logical_type_on_another_type_than_its_own_is_passed_over(schema: dict[str, Any], datum: Any) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema["type"]}]}
    [row] = decoded(Decoding("avro", json.dumps(record)), [avro({"a": datum}, plain)])
    assert (row["a"], row["_error"]) == (datum, None)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_arbitrary_bytes_as_avro_end_in_an_error_and_not_in_a_fall(values: list[bytes]) -> None:
    rows = decoded(Decoding("avro", json.dumps(AVRO_SCHEMA)), list(values))
    assert all(row["_error"] is None or row["_raw_value"] == value for row, value in zip(rows, values, strict=True))


@pytest.mark.parametrize(
    ("kind", "schema", "named"),
    [
        ("json", "{", "not JSON"),
        ("json", '{"type": "string"}', "object"),
        ("json", '{"type": "object"}', "object"),
        ("json", '{"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}', r"\$\.a\.b"),
        ("json", '{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', r"\$\.a"),
        ("json", '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}', "required"),
        ("json", '{"type": "object", "properties": {"a": {"type": "string"}}, "required": [["a"]]}', "required"),
        ("json", '{"type": "object", "properties": {"a": {"type": "string"}, "A": {"type": "string"}}}', "'a' and 'A'"),
        (
            "json",
            '{"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object", "properties": '
            '{"a": {"type": "string"}, "A": {"type": "string"}}}}}}',
            r"\$\.l: 'a' and 'A'",
        ),
        ("avro", "{", "not JSON"),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "'a' and 'a'",
        ),
        ("avro", '{"type": "nonsense"}', "Avro"),
        ("avro", '"string"', "record"),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            r"\$\.a: a union",
        ),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "bytes", '
            '"logicalType": "decimal", "precision": 40}}]}',
            r"\$\.a: a decimal",
        ),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "bytes", '
            '"logicalType": "decimal"}}]}',
            r"\$\.a: a decimal",
        ),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "bytes", '
            '"logicalType": "decimal", "precision": 0}}]}',
            r"\$\.a: a decimal",
        ),
        (
            "avro",
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "record", "name": "E", '
            '"fields": []}}]}',
            r"\$\.a: a record without",
        ),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused_by_its_place(kind: Any, schema: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        Decoder(Decoding(kind, schema))


@pytest.mark.parametrize("name", ["offset", "Offset", "topic"])
def test_names_that_are_taken_are_refused_and_a_prefix_tells_them_apart(name: str) -> None:
    schema = json.dumps({"type": "object", "properties": {name: {"type": "string"}}})
    with pytest.raises(InvalidArgument, match=f"'{name}'"):
        Decoder(Decoding("json", schema))
    assert f"v_{name}" in Decoder(Decoding("json", schema, prefix="v_")).schema.names


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        Decoding("json")
    with pytest.raises(InvalidArgument):
        Decoding("raw", "{}")
    with pytest.raises(ValueTooLarge):
        Decoding("json", " " * (EXPORT_SCHEMA_BYTES_MAX + 1))
    deep: Any = {"type": "string"}
    for _ in range(20):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidArgument, match="deep"):
        JsonValues(json.dumps({"type": "object", "properties": {"a": deep}}))
