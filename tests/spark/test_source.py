"""The data source `llog`, batch: byte-exact in Spark, options, filters, errors that name what is wrong."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.wiring import OpenedLog
from tests.spark.places import Places
from tests.unit.pipeline.mixed_log import (
    LOGS,
    Row,
    append,
    random_group,
    rows_of,
    rows_read,
    write_history,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def spark_rows(frame: DataFrame) -> list[Row]:
    return rows_of(frame.toArrow())


async def test_spark_gives_what_the_reader_gives_before_and_after_compaction(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    await write_history(opened, random.Random(1), appends=25)
    for _ in range(2):
        assert spark_rows(places.read(spark)) == await rows_read(opened)
        for log in LOGS:
            while await compact_once(opened.context, log):
                pass
    frame = places.read(spark, splitBytes="64KiB", minPartitions=9)
    assert frame.rdd.getNumPartitions() >= 9
    assert spark_rows(frame) == await rows_read(opened)


async def test_columns_are_those_of_the_kafka_source(spark: SparkSession, places: Places, opened: OpenedLog) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    frame = places.read(spark)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert places.read(spark, includeHeaders="false").columns == frame.columns[:-1]
    some = spark.read.format("llog").schema("value binary, offset bigint").options(**places.options)
    narrow = some.option("subscribe", "visits").load()
    expected = [(row.value, row.offset) for row in await rows_read(opened, [Log("visits", 0)])]
    assert sorted((bytes(r.value) if r.value is not None else None, r.offset) for r in narrow.collect()) == sorted(
        expected, key=lambda pair: (pair[0], pair[1])
    )


async def test_filters_on_offset_partition_and_timestamp_are_exact(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    await write_history(opened, random.Random(5), appends=12)
    rows = await rows_read(opened)
    middle = sorted(row.timestamp_us for row in rows)[len(rows) // 2]
    instant = datetime.fromtimestamp(middle / 1e6, UTC).strftime("timestamp'%Y-%m-%d %H:%M:%S.%f UTC'")
    conditions: dict[str, Any] = {
        "offset >= 7 and offset < 31 and partition in (0, 7)": lambda r: 7 <= r.offset < 31 and r.partition == 0,
        f"timestamp > {instant}": lambda r: r.timestamp_us > middle,
        f"timestamp <= {instant} and value is not null": lambda r: r.timestamp_us <= middle and r.value is not None,
    }
    if os.environ.get("LLOG_SOAK") == "1":
        conditions |= {
            "offset = 3 and topic = 'orders'": lambda r: r.offset == 3 and r.topic == "orders",
            "partition > 0": lambda r: r.partition > 0,
            "offset in (2, 9, 12)": lambda r: r.offset in (2, 9, 12),
            "topic <> 'orders'": lambda r: r.topic != "orders",
            "offset < 0": lambda r: False,
        }
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    for condition, keeps in conditions.items():
        frame = places.read(spark, pushFilters="true").where(condition)
        assert spark_rows(frame) == [row for row in rows if keeps(row)], condition
    plan = places.read(spark, pushFilters="true").where("offset >= 7")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, "the source has filtered, Spark need not"


async def test_a_table_that_is_used_with_several_filters_gives_each_use_its_rows(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    rows = await rows_read(opened)
    frame = places.read(spark)  # Spark plans it once, whichever filters it is used with
    assert spark_rows(frame.where("offset = 1")) == [row for row in rows if row.offset == 1]
    assert spark_rows(frame) == rows
    both = frame.where("offset = 1").union(frame.where("partition = 1"))
    assert both.count() == sum((row.offset == 1) + (row.partition == 1) for row in rows)


async def test_a_session_that_pushes_no_filters_reads_the_same(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = places.read(spark).where("partition = 1")
        assert spark_rows(frame) == [row for row in await rows_read(opened) if row.partition == 1]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


async def test_offsets_assignments_and_timestamps_are_understood_as_kafka_s(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    await write_history(opened, random.Random(6), appends=12)
    rows = await rows_read(opened)
    orders = [row for row in rows if (row.topic, row.partition) == ("orders", 0)]
    frame = places.read(
        spark,
        assign='{"orders": [0]}',
        startingOffsets='{"orders": {"0": 4}}',
        endingOffsets='{"orders": {"0": -1}}',
    )
    assert spark_rows(frame) == orders[3:]
    since = sorted(row.timestamp_us for row in orders)[len(orders) // 2] // 1_000
    first = next(i for i, row in enumerate(orders) if row.timestamp_us >= since * 1_000)
    frame = places.read(spark, assign='{"orders": [0]}', startingTimestamp=since)
    assert spark_rows(frame) == orders[first:]
    frame = places.read(spark, assign='{"orders": [0]}', endingOffsetsByTimestamp=f'{{"orders": {{"0": {since}}}}}')
    assert spark_rows(frame) == orders[:first]
    assert spark_rows(places.read(spark, subscribePattern="vis.*")) == [row for row in rows if row.topic == "visits"]
    assert spark_rows(places.read(spark, subscribePattern="none.*")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nowhere"}, "nowhere: no such topic"),
        (
            {"assign": '{"orders": [0]}', "endingOffsets": '{"orders": {"0": 99999}}'},
            "endingOffsets: orders:0: offset 99999 is outside 1",
        ),
    ],
)
async def test_errors_name_the_option_or_the_offset(
    spark: SparkSession, places: Places, opened: OpenedLog, options: dict[str, str], message: str
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    with pytest.raises(Exception, match=message):
        places.read(spark, **options).count()


async def test_lost_records_fail_a_read_unless_told_otherwise(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(1), log)])
    await append(opened, [random_group(random.Random(2), log)])
    rows = await rows_read(opened, [log])
    await delete_records(opened.context, log, 5)
    options = {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 2}}'}
    with pytest.raises(Exception, match=r"startingOffsets: orders:0: offset 2 is lost: the log now begins at offset 5"):
        places.read(spark, **options).count()
    assert spark_rows(places.read(spark, **options, failOnDataLoss="false")) == rows[4:]


async def test_an_executor_plans_again_when_an_object_of_its_split_is_gone(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    log = Log("orders", 0)
    await append(opened, [random_group(random.Random(3), log)])
    expected = await rows_read(opened, [log])
    frame = places.read(spark, subscribe="orders")
    frame.rdd.getNumPartitions()  # plans
    assert await compact_once(opened.context, log) is not None
    assert opened.context.wal is not None
    blobs = [meta.name async for meta in opened.context.wal.list(opened.context.keys.blobs())]
    await opened.context.wal.delete_many(blobs)
    assert spark_rows(frame) == expected
