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
