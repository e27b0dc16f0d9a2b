"""Targets whose columns change: added and wider ones are taken in, others are refused by name."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from llog.errors import ExportRefused
from llog.log.topics.admin import create_topic
from llog.pipeline.export.decode import Decoding
from llog.pipeline.export.evolution import evolved, packed, unpacked
from llog.pipeline.export.job import ExportReport, export
from llog.pipeline.export.parquet import committed
from llog.pipeline.runtime.tasks import LocalTasks, TaskTools
from tests.unit.pipeline.export.exporting import KINDS, Exporting, target_of
from tests.unit.pipeline.export.test_export_avro import record


def money(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


def place(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Place", "fields": [{"name": name, "type": kind} for name, kind in fields]}


OLD = record(
    ("id", "int"),
    ("price", money(5)),
    ("size", "float"),
    ("where", place(("x", "int"))),
    ("all", {"type": "array", "items": {**place(("x", "int")), "name": "Other"}}),
    ("by", {"type": "map", "values": "int"}),
)
NEW = record(
    ("note", "string"),
    ("id", "long"),
    ("price", money(12)),
    ("size", "double"),
    ("where", place(("y", "string"), ("x", "long"))),
    ("all", {"type": "array", "items": {**place(("x", "long"), ("y", "string")), "name": "Other"}}),
    ("by", {"type": "map", "values": "long"}),
    ("tags", {"type": "array", "items": "string"}),
)
OLD_ROW = {
    "id": 1,
    "price": Decimal("1.50"),
    "size": 0.5,
    "where": {"x": 1},
    "all": [{"x": 1}],
    "by": {"k": 1},
}
NEW_ROW = {
    "note": "n",
    "id": 2**40,
    "price": Decimal("1234567890.50"),
    "size": 0.1,
    "where": {"y": "s", "x": 2**40},
    "all": [{"x": 2**40, "y": "s"}],
    "by": {"k": 2**40},
    "tags": ["t"],
}


def encoded(schema: Any, datum: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), datum)
    return sink.getvalue()


async def run(exporting: Exporting, kind: str, schema: Any, **options: Any) -> ExportReport:
    decoding = Decoding("avro", json.dumps(schema))
    return await exporting.run(await target_of(exporting, kind, decoding), decoding=decoding, **options)


def newest_schema(exporting: Exporting) -> pa.Schema:
    return pq.read_schema(exporting.directory / "parquet" / "orders" / "_common_metadata")


def rows_of(exporting: Exporting, kind: str) -> list[dict[str, Any]]:
    if kind == "iceberg":
        table = exporting.table().scan().to_arrow()
    else:
        schema = newest_schema(exporting).append(pa.field("partition", pa.int32()))
        table = ds.dataset(exporting.directory / "parquet" / "orders", schema=schema, partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["offset"])


@pytest.mark.parametrize("kind", KINDS)
async def test_columns_are_added_and_made_wider_and_readers_see_all_records(exporting: Exporting, kind: str) -> None:
    await exporting.write(2, days=1, value=lambda _: encoded(OLD, OLD_ROW))
    assert (await run(exporting, kind, OLD)).bad_records == 0
    await exporting.write(2, days=1, value=lambda _: encoded(NEW, NEW_ROW))
    assert (await run(exporting, kind, NEW)).bad_records == 0
    old, _, new, _ = rows_of(exporting, kind)
    assert (old["id"], old["price"], old["size"], old["note"], old["tags"]) == (1, Decimal("1.50"), 0.5, None, None)
    assert (old["where"], old["all"], old["by"]) == ({"x": 1, "y": None}, [{"x": 1, "y": None}], [("k", 1)])
    assert {name: new[name] for name in NEW_ROW} == {**NEW_ROW, "by": [("k", 2**40)]}
    await exporting.write(2, days=1, value=lambda _: encoded(NEW, NEW_ROW))
    assert (await run(exporting, kind, NEW)).records == 2
    assert len(rows_of(exporting, kind)) == 6


async def test_duckdb_reads_old_and_new_files_by_name(exporting: Exporting) -> None:
    for schema, row in ((OLD, OLD_ROW), (NEW, NEW_ROW)):
        await exporting.write(2, days=1, value=lambda _, schema=schema, row=row: encoded(schema, row))
        await run(exporting, "parquet", schema)
    files = f"{exporting.directory}/parquet/orders/**/*.parquet"
    found = duckdb.connect().read_parquet(files, hive_partitioning=True, union_by_name=True)
    assert found.aggregate("sum(id), count(note), count(*), sum(price)").fetchall() == [
        (2 * (2**40 + 1), 2, 4, Decimal("2469135784.00"))
    ]


async def test_a_table_gets_its_columns_with_the_records_and_not_without_them(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that dies between its tasks and its commit leaves the table as it was."""
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, "iceberg", OLD)
    before = exporting.table().schema()
    await exporting.write(2, value=lambda _: encoded(NEW, NEW_ROW))

    class Dies(LocalTasks):
        async def run(self, *arguments: Any, **named: Any) -> Any:
            await super().run(*arguments, **named)
            raise KeyboardInterrupt

    decoding = Decoding("avro", json.dumps(NEW))
    tools = TaskTools(exporting.context.find_object, exporting.open_store)
    target = await exporting.iceberg(decoding)
    with pytest.raises(KeyboardInterrupt):
        await export(exporting.context, Dies(tools), "orders", target, decoding=decoding)
    assert exporting.table().schema() == before
    assert len(rows_of(exporting, "iceberg")) == 2
    assert (await run(exporting, "iceberg", NEW)).records == 2
    table = exporting.table()
    assert (len(table.schemas()), len(table.snapshots())) == (2, 2)
    assert len(rows_of(exporting, "iceberg")) == 4


async def test_a_plan_with_the_old_columns_is_finished_as_it_was_made_before_columns_are_added(
    exporting: Exporting,
) -> None:
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))

    class Dies(LocalTasks):
        async def run(self, *arguments: Any, **named: Any) -> Any:
            await super().run(*arguments, **named)
            raise KeyboardInterrupt

    tools = TaskTools(exporting.context.find_object, exporting.open_store)
    decoding = Decoding("avro", json.dumps(OLD))
    with pytest.raises(KeyboardInterrupt):
        await export(exporting.context, Dies(tools), "orders", await exporting.parquet(), decoding=decoding)
    await exporting.write(2, value=lambda _: encoded(NEW, NEW_ROW))
    report = await run(exporting, "parquet", NEW)
    assert (report.resumed, report.commits, report.records, report.bad_records) == (1, 2, 4, 0)
    assert [row["note"] for row in rows_of(exporting, "parquet")] == [None, None, "n", "n"]
    first, second = await committed(await exporting.open_store(f"file://{exporting.directory}/parquet"), "orders")
    assert len(second.subject.columns) == len(first.subject.columns) + 2
    # A driver with the older schema would leave the new columns empty.
    with pytest.raises(ExportRefused, match=r"its column note \(string\) is not in the schema any more"):
        await run(exporting, "parquet", OLD)


CHANGES = [
    ("id", "string", "its column id is int32, but the schema says string"),
    ("id", "double", "its column id is int32, but the schema says double"),
    ("size", "int", "its column size is float, but the schema says int32"),
    ("price", money(4), r"its column price is decimal128\(5, 2\), but the schema says decimal128\(4, 2\)"),
    ("price", {**money(7), "scale": 3}, "its column price is"),
    ("where", place(("x", "string")), r"its column where\.x is int32, but the schema says string"),
    ("where", place(("y", "int")), r"its column where\.x \(int32\) is not in the schema any more"),
    ("where", "string", "its column where is struct"),
    ("all", {"type": "array", "items": "int"}, r"its column all\[\] is struct"),
    ("by", {"type": "map", "values": "string"}, r"its column by\{\} is int32, but the schema says string"),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_incompatible_change_is_refused_by_the_columns_name_and_writes_nothing(
    exporting: Exporting, kind: str
) -> None:
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, kind, OLD)
    await exporting.write(2)
    files = sorted(path for path in exporting.directory.rglob("*") if path.is_file())
    for name, changed, reason in CHANGES:
        fields = [{**field, "type": changed} if field["name"] == name else field for field in OLD["fields"]]
        with pytest.raises(ExportRefused, match=f"{reason}.*another target") as refused:
            await run(exporting, kind, {**OLD, "fields": fields})
        assert "\n" not in str(refused.value)
    with pytest.raises(ExportRefused, match=r"its column id \(int32\) is not in the schema any more; keep it there"):
        await run(exporting, kind, {**OLD, "fields": OLD["fields"][1:]})
    assert sorted(path for path in exporting.directory.rglob("*") if path.is_file()) == files


async def test_what_others_did_to_the_table_is_respected(exporting: Exporting) -> None:
    from pyiceberg.types import LongType, StringType

    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, "iceberg", OLD)
    with exporting.table().update_schema() as update:
        update.add_column("loaded_by", StringType())
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    assert (await run(exporting, "iceberg", OLD)).records == 2
    assert [row["loaded_by"] for row in rows_of(exporting, "iceberg")] == [None] * 4
    twin = [*OLD["fields"], {"name": "Loaded_By", "type": "string"}]
    with pytest.raises(ExportRefused, match="column Loaded_By differs from its column loaded_by only in upper and"):
        await run(exporting, "iceberg", {**OLD, "fields": twin})
    # Meanwhile another export, of a newer schema, made a column wider.
    with exporting.table().update_schema() as update:
        update.update_column("id", LongType())
    with pytest.raises(ExportRefused, match="its column id is int64, but the schema says int32"):
        await run(exporting, "iceberg", OLD)
    with exporting.table().update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", StringType(), required=True)
    with pytest.raises(ExportRefused, match="its column must is required"):
        await run(exporting, "iceberg", NEW)


async def test_a_column_that_was_required_becomes_optional(exporting: Exporting) -> None:
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, "iceberg", OLD)
    with exporting.table().update_schema(allow_incompatible_changes=True) as update:
        update.update_column("id", required=True)
    assert exporting.table().schema().find_field("id").required
    await exporting.write(2, value=lambda _: b"\xff")
    assert (await run(exporting, "iceberg", OLD)).bad_records == 2
    assert not exporting.table().schema().find_field("id").required
    assert [row["id"] for row in rows_of(exporting, "iceberg")] == [1, 1, None, None]


async def test_a_column_that_another_writer_adds_meanwhile_is_no_conflict(exporting: Exporting) -> None:
    from pyiceberg.types import StringType

    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, "iceberg", OLD)
    await exporting.write(2, value=lambda _: encoded(NEW, NEW_ROW))
    decoding = Decoding("avro", json.dumps(NEW))
    slow = await exporting.iceberg(decoding)
    commit = slow.commit

    async def after_another(*arguments: Any) -> bool:
        with exporting.table().update_schema() as update:
            update.add_column("note", StringType())
        return await commit(*arguments)

    slow.commit = after_another  # type: ignore[method-assign, assignment]
    report = await exporting.run(slow, decoding=decoding)
    assert (report.conflicts, report.commits) == (0, 1)
    assert [row["note"] for row in rows_of(exporting, "iceberg")] == [None, None, "n", "n"]


async def test_a_second_topic_adds_its_columns_to_the_table_of_the_first(exporting: Exporting) -> None:
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, "iceberg", OLD)
    await create_topic(exporting.context, "returns", partitions=1)
    decoding = Decoding("avro", json.dumps(record(("reason", "string"))))
    from llog.formats.records.encode import encode_records
    from llog.log.append.append import Appender, EncodedGroup
    from llog.log.keys import Log

    body = encode_records([encoded(record(("reason", "string")), {"reason": "torn"})], timestamps_ms=[0])
    await Appender(exporting.context).append([EncodedGroup(Log("returns", 0), 1, "kafka-v2", [body], 0)])
    target = await exporting.iceberg(decoding)
    await export(exporting.context, exporting.runner(), "returns", target, decoding=decoding)
    await run(exporting, "iceberg", OLD)
    rows = exporting.table().scan().to_arrow().to_pylist()
    assert sorted((row["topic"], row["id"], row["reason"]) for row in rows if row["topic"] == "returns") == [
        ("returns", None, "torn")
    ]
    assert len(rows) == 3


async def test_a_directory_of_an_older_release_keeps_its_columns(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits have no schema to compare with."""
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    with monkeypatch.context() as older:
        older.setattr("llog.pipeline.export.job.packed", lambda _: "")
        older.setattr("llog.pipeline.export.plan.packed", lambda _: "")
        older.setattr("llog.pipeline.export.parquet.evolved_subject", lambda _title, wanted, _held: wanted)
        await run(exporting, "parquet", OLD)
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    with pytest.raises(ExportRefused, match=r"its column all is .*older release"):
        await run(exporting, "parquet", NEW)
    assert (await run(exporting, "parquet", OLD)).records == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_options_that_take_columns_away_are_refused_and_others_add_columns(
    exporting: Exporting, kind: str
) -> None:
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    await run(exporting, kind, OLD)
    await exporting.write(2, value=lambda _: encoded(OLD, OLD_ROW))
    aside = Decoding("avro", json.dumps(OLD), on_error="quarantine")
    with pytest.raises(ExportRefused, match=r"its column _error .*; export with --on-error column as before"):
        await exporting.run(await target_of(exporting, kind, aside), decoding=aside)


async def test_a_directory_without_changes_has_no_extra_file(exporting: Exporting) -> None:
    for _ in range(2):
        await exporting.write(2)
        await exporting.run(await exporting.parquet())
    assert not list(exporting.directory.rglob("_common_metadata"))


def test_a_schema_survives_as_text() -> None:
    schema = pa.schema([("a, b: c", pa.struct([("x>", pa.list_(pa.int64()))])), ("t", pa.timestamp("us", tz="UTC"))])
    assert unpacked(packed(schema)).equals(schema)


def test_an_evolved_schema_keeps_the_order_of_the_target() -> None:
    held, wanted = (
        pa.schema([("a", pa.int32()), ("b", pa.string())]),
        pa.schema([("c", pa.string()), ("b", pa.string()), ("a", pa.int64())]),
    )
    both = evolved("x", held, wanted)
    assert both.equals(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())]))
    assert evolved("x", both, wanted).equals(both)
