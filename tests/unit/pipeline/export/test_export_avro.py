"""Avro values by the id of their writer's schema, as values of the reader's schema."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from typing import Any

import fastavro
import pytest

from llog.errors import InvalidArgument
from llog.pipeline.export.avro import AvroValues
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.schema_ids import EXPORT_SCHEMA_IDS_MAX, WriterSchemas, ids_in
from tests.unit.pipeline.export.exporting import raw_rows

UTC = datetime.UTC
AT = datetime.datetime(2026, 11, 16, 8, 0, 0, 123_000, UTC)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]}


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    """A record of (name, type) or (name, type, default), or of whole fields."""
    named = [
        one if isinstance(one, dict) else dict(zip(("name", "type", "default"), one, strict=False)) for one in fields
    ]
    return {"type": "record", "name": "Order", **more, "fields": named}


def framed(schema_id: int, schema: Any, datum: Any, references: tuple[Any, ...] = ()) -> bytes:
    named: dict[str, Any] = {}
    for one in references:
        fastavro.parse_schema(one, named_schemas=named)
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema, named_schemas=named), datum)
    return b"\0" + schema_id.to_bytes(4, "big") + sink.getvalue()


def rows_of(reader: Any, writers: WriterSchemas | dict[int, Any], values: list[bytes]) -> list[dict[str, Any]]:
    if isinstance(writers, dict):
        writers = WriterSchemas({one: (json.dumps(schema),) for one, schema in writers.items()})
    decoder = Decoder(Decoding("avro-confluent", json.dumps(reader)), writers)
    batch = raw_rows([(0, offset, value) for offset, value in enumerate(values)])
    rows: list[dict[str, Any]] = decoder.decode(batch).batch.to_pylist()
    return rows


def test_each_value_is_read_by_the_schema_that_its_id_names() -> None:
    """The fields of the two are of the same types in another order: read by one schema, values change columns."""
    first, second = (
        record(("item", "string"), ("town", "string")),
        record(("town", "string"), ("item", "string"), ("note", "string")),
    )
    datum = {"item": "pear", "town": "Ulm", "note": "x"}
    rows = rows_of(first, {7: first, 8: second}, [framed(7, first, datum), framed(8, second, datum)])
    assert [(row["item"], row["town"], row["_error"]) for row in rows] == [("pear", "Ulm", None)] * 2


def test_a_value_without_a_known_id_is_bad_with_the_reason_and_its_neighbours_are_not_touched() -> None:
    schema = record(("id", "long"))
    good = framed(7, schema, {"id": 5})
    writers = WriterSchemas({7: (json.dumps(schema),)}, {8: "is not in the schema registry"})
    values = [good, framed(8, schema, {"id": 6}), b"\1" + good[1:], b"\0\0\0", b"", good + b"\0", good]
    rows = rows_of(schema, writers, values)
    assert [row["id"] for row in rows] == [5, *[None] * 5, 5]
    assert [row["_raw_value"] for row in rows] == [None, *values[1:6], None]
    assert rows[1]["_error"] == "schema id 8 is not in the schema registry"
    for row in rows[2:5]:
        assert row["_error"] == "does not begin with a zero byte and a schema id"
    assert "left over" in rows[5]["_error"]


def test_an_id_beyond_the_limit_is_bad_with_the_reason() -> None:
    schema = record(("id", "long"))
    [row] = rows_of(schema, WriterSchemas(full=True), [framed(9, schema, {"id": 1})])
    assert f"more than {EXPORT_SCHEMA_IDS_MAX} ids" in row["_error"]


PROMOTIONS = [
    ("int", "long", 5, 5),
    ("int", "float", 5, 5.0),
    ("int", "double", 5, 5.0),
    ("long", "double", 2**40, float(2**40)),
    ("long", "float", 5, 5.0),
    ("float", "double", 1.5, 1.5),
    ("string", "bytes", "ü", "ü".encode()),
    ("bytes", "string", b"x", "x"),
    ("string", ["null", "string"], "x", "x"),
    (["null", "string"], "string", "x", "x"),
    (["null", "int"], ["null", "long"], None, None),
    (["null", "int"], ["null", "long"], 5, 5),
    (["int", "string"], "string", "x", "x"),
    (["int", "string", "null"], ["null", "double"], 5, 5.0),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1, 2], [1, 2]),
    ({"type": "map", "values": "float"}, {"type": "map", "values": "double"}, {"a": 1.5}, [("a", 1.5)]),
    (PLACE, {**PLACE, "namespace": "other"}, {"x": 1.0}, {"x": 1.0}),
    (
        {"type": "enum", "name": "Kind", "symbols": ["NEW", "LOST"]},
        {"type": "enum", "name": "Kind", "symbols": ["OLD", "NEW"], "default": "OLD"},
        "LOST",
        "OLD",
    ),
    ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
    # The reader's logical type counts, in the writer's unit.
    (MILLIS, MICROS, AT, AT),
    (MICROS, MILLIS, AT, AT),
    ("long", MILLIS, 1_500, datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    ("long", MICROS, 1_500, datetime.datetime(1970, 1, 1, 0, 0, 0, 1_500, UTC)),
    (MILLIS, "long", AT, int(AT.timestamp() * 1_000)),
    (MILLIS, "double", AT, AT.timestamp() * 1_000),
    (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        MICROS,
        AT.replace(tzinfo=None),
        AT,
    ),
    ({"type": "int", "logicalType": "date"}, "int", datetime.date(1970, 1, 3), 2),
    ("int", {"type": "int", "logicalType": "date"}, 2, datetime.date(1970, 1, 3)),
    (
        {"type": "int", "logicalType": "time-millis"},
        {"type": "long", "logicalType": "time-micros"},
        datetime.time(8, 0, 1),
        datetime.time(8, 0, 1),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        decimal.Decimal("12.5"),
        decimal.Decimal("12.500"),
    ),
]


@pytest.mark.parametrize(("written", "read", "datum", "meant"), PROMOTIONS)
def test_a_type_is_read_as_the_readers_type(written: Any, read: Any, datum: Any, meant: Any) -> None:
    writer = record(("before", "string"), ("a", written))
    [row] = rows_of(record(("a", read)), {1: writer}, [framed(1, writer, {"before": "b", "a": datum})])
    assert (row["_error"], row["a"]) == (None, meant)
    assert type(row["a"]) is type(meant)


MISMATCHES = [
    ("long", "int", 5, "$.a: long cannot be read as int"),
    ("string", "int", "5", "$.a: string cannot be read as int"),
    ("double", "float", 1.5, "$.a: double cannot be read as float"),
    ("null", "string", None, "$.a: null cannot be read as string"),
    (["null", "string"], "string", None, "not found in"),
    (["int", "string"], "string", 5, "not found in"),
    ("int", MILLIS, 5, "$.a: int cannot be read as timestamp-millis"),
    (PLACE, {**PLACE, "name": "Town"}, {"x": 1.0}, "$.a: record Place is not Town"),
    (
        PLACE,
        {**PLACE, "fields": [{"name": "y", "type": "double"}]},
        {"x": 1.0},
        "$.a.y: is missing, and the reader's schema has no default for it",
    ),
    (
        {"type": "fixed", "name": "F", "size": 2},
        {"type": "fixed", "name": "F", "size": 3},
        b"ab",
        "$.a: 2 bytes cannot be read as 3",
    ),
    (
        {"type": "enum", "name": "Kind", "symbols": ["NEW", "LOST"]},
        {"type": "enum", "name": "Kind", "symbols": ["NEW"]},
        "LOST",
        "LOST not found",
    ),
    # A number that its column cannot hold is not rounded.
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 1},
        decimal.Decimal("1.125"),
        "",
    ),
]


@pytest.mark.parametrize(("written", "read", "datum", "reason"), MISMATCHES)
def test_a_type_that_cannot_be_read_as_the_readers_is_a_bad_value_with_the_place(
    written: Any, read: Any, datum: Any, reason: str
) -> None:
    writer = record(("a", written))
    [row] = rows_of(record(("a", read)), {1: writer}, [framed(1, writer, {"a": datum})])
    assert row["a"] is None
    assert row["_error"]
    assert reason in row["_error"]


def test_a_decimal_with_more_digits_than_its_precision_is_refused_and_not_rounded() -> None:
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    narrow = {**wide, "precision": 4}
    value = framed(1, record(("a", wide)), {"a": decimal.Decimal("12345.67")})
    [row] = rows_of(record(("a", narrow)), {1: record(("a", narrow))}, [value])
    assert (row["a"], row["_raw_value"]) == (None, value)
    assert row["_error"]


def test_missing_fields_get_the_readers_defaults_as_values_of_their_types() -> None:
    reader = record(
        ("id", "long"),
        ("note", ["null", "string"], None),
        ("count", "int", 3),
        ("raw", "bytes", "\u00ff"),
        ("at", MILLIS, 1_500),
        ("day", {"type": "int", "logicalType": "date"}, 2),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001\u0000"),
        ("tags", {"type": "array", "items": "string"}, ["a"]),
        ("where", {**PLACE, "fields": [{"name": "x", "type": "double", "default": 1}]}, {}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["NEW"]}, "NEW"),
    )
    writer = record(("id", "long"))
    [row] = rows_of(reader, {1: writer}, [framed(1, writer, {"id": 5})])
    assert {name: row[name] for name in (field["name"] for field in reader["fields"])} == {
        "id": 5,
        "note": None,
        "count": 3,
        "raw": b"\xff",
        "at": datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
        "day": datetime.date(1970, 1, 3),
        "price": decimal.Decimal("2.56"),
        "tags": ["a"],
        "where": {"x": 1.0},
        "kind": "NEW",
    }
    assert row["_error"] is None


def test_aliases_rename_records_and_fields_and_a_field_of_the_name_itself_comes_first() -> None:
    old = record(("uid", "int"), ("sum", "double"), ("town", {**PLACE, "name": "Town"}), name="com.old.Purchase")
    new = record(
        {"name": "id", "type": "long", "aliases": ["uid"]},
        {"name": "total", "type": "double", "aliases": ["sum"], "default": 0},
        {"name": "town", "type": {**PLACE, "aliases": ["Town"]}},
        aliases=["com.old.Purchase"],
    )
    value = framed(1, old, {"uid": 5, "sum": 2.5, "town": {"x": 1.0}})
    [row] = rows_of(new, {1: old}, [value])
    assert (row["_error"], row["id"], row["total"], row["town"]) == (None, 5, 2.5, {"x": 1.0})
    both = record(("uid", "int"), ("id", "int"))
    reader = record({"name": "id", "type": "int", "aliases": ["uid"]}, {"name": "uid", "type": "int"})
    [row] = rows_of(reader, {1: both}, [framed(1, both, {"uid": 1, "id": 2})])
    assert (row["id"], row["uid"]) == (2, 1)


def test_a_named_type_that_is_used_again_resolves_each_time() -> None:
    writer = record(("a", PLACE), ("b", ["null", "Place"]), ("c", {"type": "array", "items": "Place"}))
    wide = {**PLACE, "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "int", "default": 9}]}
    reader = record(("c", {"type": "array", "items": wide}), ("b", ["null", "Place"]))
    [row] = rows_of(reader, {1: writer}, [framed(1, writer, {"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}]})])
    assert (row["b"], row["c"]) == ({"x": 2.0, "y": 9}, [{"x": 3.0, "y": 9}])


def test_a_schema_is_read_with_the_schemas_it_refers_to() -> None:
    place = {**PLACE, "namespace": "geo"}
    writer = record(("a", "geo.Place"), namespace="shop")
    value = framed(1, writer, {"a": {"x": 2.5}}, (place,))
    texts = WriterSchemas({1: (json.dumps(place), json.dumps(writer))})
    [row] = rows_of(record(("a", PLACE)), texts, [value])
    assert (row["_error"], row["a"]) == (None, {"x": 2.5})
    [row] = rows_of(record(("a", PLACE)), {1: writer}, [value])
    assert "schema id 1: is not an Avro schema" in row["_error"]
    columns = AvroValues(json.dumps(writer), (json.dumps(place),)).fields
    assert [str(field.type) for field in columns] == ["struct<x: double>"]


HOSTILE = [
    (record(("next", ["null", "Order"])), "contains itself"),
    (record(("a", {"type": "array", "items": "null"})), "take no bytes"),
    (record(("a", {"type": "array", "items": record(name="E")})), "take no bytes"),
    (record(("a", {"type": "fixed", "name": "F", "size": -1})), "size"),
]


@pytest.mark.parametrize(("writer", "reason"), HOSTILE)
def test_a_writers_schema_that_bytes_could_abuse_is_refused(writer: Any, reason: str) -> None:
    """A few bytes would claim billions of items, or nest until the stack overflows."""
    reader = record(("id", "long", 0))
    rows = rows_of(reader, {1: writer}, [b"\0\0\0\0\1" + b"\2" * 200_000, b"\0\0\0\0\1" + b"\xfe\xff\xff\xff\x0f\0"])
    assert [reason in row["_error"] for row in rows] == [True, True]


def test_references_that_multiply_are_refused() -> None:
    fields: list[Any] = [("f0", {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]})]
    for n in range(1, 12):
        inner = [{"name": f"g{m}", "type": f"R{n - 1}"} for m in range(4)]
        fields.append((f"f{n}", {"type": "record", "name": f"R{n}", "fields": inner}))
    with pytest.raises(InvalidArgument, match="types"):
        Decoder(Decoding("avro", json.dumps(record(*fields))))


def test_a_wrong_default_matters_in_the_readers_schema_only() -> None:
    schema = record(("a", "int", "five"))
    [row] = rows_of(record(("a", "int")), {1: schema}, [framed(1, record(("a", "int")), {"a": 5})])
    assert row["a"] == 5
    with pytest.raises(InvalidArgument, match="five"):
        Decoder(Decoding("avro", json.dumps(schema)))


def test_ids_are_found_without_reading_the_values() -> None:
    values = [b"\0\0\0\0\7x", b"\0\0\1\0\0", None, b"", b"\1\0\0\0\3", b"\0\0\0", b"\0\xff\xff\xff\xff", b"\0\0\0\0\7"]
    column = raw_rows([(0, n, value) for n, value in enumerate(values)])["value"]
    assert ids_in(column) == {7, 65_536, 2**32 - 1}
    assert ids_in(column.slice(1, 2)) == {65_536}
    assert ids_in(column.slice(2, 2)) == set()
