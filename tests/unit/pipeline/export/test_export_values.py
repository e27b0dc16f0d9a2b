"""Values as columns, bad ones among them; and who reads what was exported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llog.errors import (
    ExportFailed,
    ExportNotInstalled,
    InvalidArgument,
)
from llog.pipeline.export.decode import QUARANTINE_SCHEMA, Decoder, Decoding
from llog.pipeline.export.iceberg import open_catalogue, progress_of, table_files
from llog.pipeline.export.parquet import parquet_files
from tests.unit.pipeline.export.exporting import DAY_0_MS, KINDS, ORDER_SCHEMA, Exporting, target_of


def order(number: int) -> bytes | None:
    if number % 10 == 3:
        return b"not json"
    return None if number % 10 == 7 else json.dumps({"id": number, "item": f"i{number}", "more": [1]}).encode()


@pytest.mark.parametrize("kind", KINDS)
async def test_values_become_columns_and_bad_ones_keep_their_bytes_and_the_reason(
    exporting: Exporting, kind: str
) -> None:
    await exporting.write(30, value=order)
    decoding = Decoding("json", ORDER_SCHEMA)
    report = await exporting.run(await target_of(exporting, kind, decoding), decoding=decoding)
    assert (report.records, report.bad_records) == (30, 3)
    if kind == "iceberg":
        rows = exporting.table().scan().to_arrow().sort_by("offset").to_pylist()
    else:
        files = [
            f.removeprefix("file://") for f in await parquet_files(exporting.opened[report.target[8:-7]], "orders")
        ]
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(rows) == 30
    for row in rows:
        number = row["offset"] - 1
        if number % 10 == 3:
            assert (row["id"], row["_raw_value"], row["_error"]) == (None, b"not json", "not a JSON object")
        elif number % 10 == 7:
            assert (row["id"], row["_raw_value"], row["_error"]) == (None, None, None)
        else:
            assert (row["id"], row["item"], row["_error"]) == (number, f"i{number}", None)


@pytest.mark.parametrize("kind", KINDS)
async def test_bad_values_go_into_quarantine_when_asked_and_are_counted_and_named(
    exporting: Exporting, kind: str
) -> None:
    await exporting.write(30, value=order)
    decoding = Decoding("json", ORDER_SCHEMA, on_error="quarantine")
    target = await target_of(exporting, kind, decoding)
    report = await exporting.run(target, decoding=decoding)
    assert (report.records, report.bad_records) == (30, 3)
    root = Path(target.paths().store_url.removeprefix("file://"))
    tables = [pq.read_table(root / name, partitioning=None) for name in report.quarantine_files]
    fields = [field for field in QUARANTINE_SCHEMA if kind == "iceberg" or field.name != "partition"]
    assert all(table.schema.equals(pa.schema(fields)) for table in tables)
    bad = [row for table in tables for row in table.to_pylist()]
    assert sorted((row["offset"], row["value"]) for row in bad) == [(n + 1, b"not json") for n in (3, 13, 23)]
    if kind == "iceberg":
        said = progress_of(exporting.table(), "orders")
        assert said is not None
        assert list(said.quarantine) == report.quarantine_files
        assert exporting.table().scan().to_arrow().num_rows == 27


async def test_a_bad_value_ends_the_export_when_asked_and_names_its_place(exporting: Exporting) -> None:
    await exporting.write(30, value=order)
    decoding = Decoding("json", ORDER_SCHEMA, on_error="fail")
    with pytest.raises(ExportFailed, match="orders:0 offset 4"):
        await exporting.run(await exporting.parquet(), decoding=decoding)
    assert not list((exporting.directory / "parquet" / "orders").rglob("*.parquet"))


async def test_a_plan_that_ended_at_a_bad_value_goes_on_with_quarantine(exporting: Exporting) -> None:
    await exporting.write(30, value=order)
    stops, aside = (Decoding("json", ORDER_SCHEMA, on_error=how) for how in ("fail", "quarantine"))
    with pytest.raises(ExportFailed):
        await exporting.run(await exporting.parquet(), decoding=stops)
    report = await exporting.run(await exporting.parquet(), decoding=aside)
    assert (report.resumed, report.records, report.bad_records) == (1, 30, 3)


async def test_a_round_of_nothing_but_quarantine_still_moves_the_offsets(exporting: Exporting) -> None:
    await exporting.write(5, value=lambda n: b"bad")
    decoding = Decoding("json", ORDER_SCHEMA, on_error="quarantine")
    assert (await exporting.run(await exporting.iceberg(decoding), decoding=decoding)).bad_records == 5
    again = await exporting.run(await exporting.iceberg(decoding), decoding=decoding)
    assert (again.records, again.commits) == (0, 0)


@pytest.mark.parametrize("package", ["pyiceberg", "fastavro"])
async def test_a_package_that_is_missing_is_named_with_what_to_install(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "llog.pipeline.export.iceberg_files", raising=False)
    avro = Decoding("avro", '"string"')
    with pytest.raises(ExportNotInstalled, match=r"leaderless-log\[export\]") as missing:
        open_catalogue(exporting.settings) if package == "pyiceberg" else Decoder(avro)
    assert missing.value.package == package


async def test_duckdb_reads_the_files_and_the_table(exporting: Exporting) -> None:
    await exporting.write(40)
    for kind in KINDS:
        await exporting.run(await target_of(exporting, kind))
    connection = duckdb.connect()
    store = await exporting.open_store(f"file://{exporting.directory}/parquet")
    question = 'count(*), count(distinct "offset"), min("partition"), max(epoch_ms("timestamp"))'
    answer = (40, 40, 0, DAY_0_MS + 86_400_000 + 39)
    files = [file.removeprefix("file://") for file in await parquet_files(store, "orders")]
    exported = connection.read_parquet(files, hive_partitioning=True, union_by_name=True)
    assert exported.aggregate(question).fetchall() == [answer]
    table = exporting.table()
    files = [file.removeprefix("file://") for file in table_files(table)]
    exported = connection.read_parquet(files, hive_partitioning=False, union_by_name=True)
    assert exported.aggregate(question).fetchall() == [answer]
    assert connection.from_arrow(table.scan().to_arrow()).aggregate(question).fetchall() == [answer]
    some = table.scan(row_filter="offset > 30", selected_fields=("offset",)).to_arrow()
    assert connection.from_arrow(some).aggregate("count(*)").fetchall() == [(10,)]


async def test_a_directory_with_hive_partitions_is_read_as_it_stands(exporting: Exporting) -> None:
    await exporting.write(40)
    await exporting.run(await exporting.parquet())
    found = duckdb.connect().read_parquet(f"{exporting.directory}/parquet/orders/**/*.parquet", hive_partitioning=True)
    assert found.aggregate("count(*), count(distinct date)").fetchall() == [(40, 2)]
    whole = pq.read_table(exporting.directory / "parquet" / "orders")
    assert set(whole["partition"].to_pylist()) == {0}
    assert whole.num_rows == 40


async def test_a_date_of_the_records_own_is_not_hidden_by_the_directories(exporting: Exporting) -> None:
    await exporting.write(1, value=lambda _: b'{"Date": "1999-12-31"}')
    schema = '{"type": "object", "properties": {"Date": {"type": "string"}}}'
    decoding = Decoding("json", schema)
    with pytest.raises(InvalidArgument, match="set a prefix"):
        await exporting.run(await exporting.parquet(), decoding=decoding)
    await exporting.run(await exporting.parquet(), decoding=decoding, by_date=False)
    [row] = pq.read_table(exporting.directory / "parquet" / "orders").to_pylist()
    assert row["Date"] == "1999-12-31"
