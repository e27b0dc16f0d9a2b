"""The data source `llog`, batch: byte-exact in Spark, options, reuse of a table, errors that name what is wrong."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

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


@pytest.mark.parametrize("pushing", ["false", "true"])
async def test_a_table_or_view_that_is_used_with_several_filters_gives_each_use_its_rows(
    spark: SparkSession, places: Places, opened: OpenedLog, pushing: str
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    rows = await rows_read(opened)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushing)  # a session of the user's may have it
    try:
        frame = places.read(spark)  # Spark plans it once, whichever filters it is used with
        frame.createOrReplaceTempView("reused")
        for condition, expected in {
            "offset = 1": [row for row in rows if row.offset == 1],
            "true": rows,
            "partition = 1 and offset < 9": [row for row in rows if row.partition == 1 and row.offset < 9],
            "topic <> 'orders'": [row for row in rows if row.topic != "orders"],
        }.items():
            assert spark_rows(frame.where(condition)) == expected, condition
            assert spark_rows(spark.sql(f"select * from reused where {condition}")) == expected, condition
        both = frame.where("offset = 1").union(frame.where("partition = 1"))
        assert both.count() == sum((row.offset == 1) + (row.partition == 1) for row in rows)
        joined = (
            "select count(*) from reused a join reused b using (topic, partition) where a.offset = 1 and b.offset = 2"
        )
        wanted = sum(row.offset == 1 and any(_same_log(row, b) and b.offset == 2 for b in rows) for row in rows)
        assert spark.sql(joined).collect()[0][0] == wanted
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def _same_log(one: Row, other: Row) -> bool:
    return (one.topic, one.partition) == (other.topic, other.partition)


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
        ({"subscribe": "orders", "splitBites": "1MiB"}, "splitbites: is not an option of the source llog"),
        ({"subscribe": "orders", "includeHeaders": "yes"}, "includeHeaders: 'yes' must be true or false"),
        (
            {"assign": '{"orders": [0]}', "endingOffsets": '{"orders": {"0": 99999}}'},
            "endingOffsets: orders:0: offset 99999 is outside 1",
        ),
    ],
)
async def test_errors_name_the_option_or_the_offset_in_one_sentence(
    spark: SparkSession, places: Places, opened: OpenedLog, options: dict[str, str], message: str
) -> None:
    await append(opened, [random_group(random.Random(1), log) for log in LOGS])
    with pytest.raises(Exception, match=message) as refused:
        places.read(spark, **options).count()
    assert len(str(refused.value).splitlines()) <= 2, "a sentence and Spark's SQLSTATE"


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
