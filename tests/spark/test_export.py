"""Exports with tasks on Spark, and Spark SQL over the exported data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llog.log.keys import Log
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.export.job import export
from llog.pipeline.export.parquet import ParquetTarget
from llog.pipeline.export.plan import Sizes
from llog.settings import Settings
from llog.wiring import OpenedLog, Use, opened_log
from tests.filling import append, group_of
from tests.unit.pipeline.export.fake_registry import FakeRegistry
from tests.unit.pipeline.export.test_export_avro import framed
from tests.unit.pipeline.export.test_export_registry import NEW, OLD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TAGS = '{"type": "array", "items": {"type": "string"}}'
SCHEMA = f'{{"type": "object", "properties": {{"id": {{"type": "integer"}}, "tags": {TAGS}}}}}'
FIRST_MS = 20_000 * 86_400_000
COUNT = 300


async def fill(opened: OpenedLog) -> None:
    for first in range(0, COUNT, 50):
        numbers, groups = range(first, first + 50), []
        stamps_ms = [FIRST_MS + n * 600_000 for n in numbers]
        for partition in (0, 1):
            values = [b'{"id": %d, "tags": ["%s"]}' % (2 * n + partition, b"x" * 2_000) for n in numbers]
            groups.append(group_of(Log("orders", partition), values, stamps_ms=stamps_ms))
        await append(opened.context, groups)


async def test_spark_writes_an_export_and_reads_it_by_sql(spark: SparkSession, tmp_path: Path) -> None:
    from llog.spark.runner.tasks import SparkTasks
    from llog.spark.source.exported import iceberg_dataframe, parquet_dataframe

    settings = Settings.from_env({}, data_dir=tmp_path)
    decoding, sizes = Decoding("json", SCHEMA), Sizes(split_bytes=200_000)
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        await fill(opened)
        runner = SparkTasks(spark, settings)
        try:
            store = await opened.objects.at(f"file://{tmp_path}/out")
            parquet = ParquetTarget(store, "orders")
            report = await export(opened.context, runner, "orders", parquet, decoding=decoding, sizes=sizes)
            assert (report.records, report.bad_records) == (2 * COUNT, 0)
            assert report.tasks > 2
            catalogue = open_catalogue(settings)
            schema = Decoder(decoding).schema
            iceberg = await IcebergTarget.open(catalogue, "shop.orders", schema, opened.context.random_bits)
            again = await export(opened.context, runner, "orders", iceberg, decoding=decoding, sizes=sizes)
            assert again.records == 2 * COUNT
        finally:
            await runner.close()
        table = catalogue.load_table("shop.orders")
        wanted = (2 * COUNT, 2 * COUNT, sum(range(2 * COUNT)), 3)
        question = "count(*), count(DISTINCT partition, offset), sum(id), count(DISTINCT date(timestamp)) FROM exported"
        for frame in (iceberg_dataframe(spark, table), await parquet_dataframe(spark, store, "orders")):
            frame.createOrReplaceTempView("exported")
            assert tuple(spark.sql(f"SELECT {question}").first() or ()) == wanted
            assert frame.schema["timestamp"].dataType.simpleString() == "timestamp"
            assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
        # The plain directory, with its partitions as columns.
        hive = spark.read.parquet(f"{tmp_path}/out/orders")
        assert hive.where("date = '2024-10-05' AND partition = 1").count() == 144


def order(number: int) -> bytes:
    schema_id, schema = (8, NEW) if number % 2 else (7, OLD)
    return framed(schema_id, schema, {"id": number, "item": f"i{number}", "note": "n"})


async def test_tasks_on_spark_read_values_by_schemas_that_only_the_driver_can_fetch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And Spark reads what was exported before and after the columns changed."""
    from llog.spark import jobs
    from llog.spark.source.exported import iceberg_dataframe, parquet_dataframe

    async def write(opened: OpenedLog, values: list[bytes]) -> None:
        group = group_of(Log("orders", 0), values, stamps_ms=[FIRST_MS + n for n in range(len(values))])
        await append(opened.context, [group])

    with FakeRegistry("Bearer t0k") as registry:
        registry.add(7, OLD)
        environment = {"LLOG_SCHEMA_REGISTRY_URL": registry.url, "LLOG_SCHEMA_REGISTRY_TOKEN": "t0k"}
        settings = Settings.from_env(environment, data_dir=tmp_path)
        async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
            await write(opened, [order(n) for n in range(0, 20, 2)])
            for to in ("iceberg:shop.orders", f"parquet:{tmp_path}/out"):
                report = jobs.export("orders", to, decode="avro-confluent", spark=spark, settings=settings)
                assert (report.records, report.bad_records) == (10, 0)
            registry.add(8, NEW)
            await write(opened, [order(n) for n in range(20)])
            for to in ("iceberg:shop.orders", f"parquet:{tmp_path}/out"):
                report = jobs.export("orders", to, decode="avro-confluent", spark=spark, settings=settings)
                assert (report.records, report.bad_records) == (20, 0)
        table = open_catalogue(settings).load_table("shop.orders")
        async with opened_log(settings) as opened:
            store = await opened.objects.at(f"file://{tmp_path}/out")
            frames = [iceberg_dataframe(spark, table), await parquet_dataframe(spark, store, "orders")]
            frames.append(spark.read.parquet(f"{tmp_path}/out/orders"))
            for frame in frames:
                assert frame.schema["id"].dataType.simpleString() == "bigint"
                found = [(row["id"], row["item"], row["note"]) for row in frame.collect()]
                old = [(n, f"i{n}", None) for n in range(0, 20, 2)]
                new = [(n, f"i{n}", "n" if n % 2 else None) for n in range(20)]
                assert sorted(found, key=str) == sorted([*old, *new], key=str)
