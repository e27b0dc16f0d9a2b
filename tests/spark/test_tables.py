"""Topics and Spark's catalogue: a command that would create a table is refused before it writes; views show topics."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import llog.spark
from llog.errors import InvalidArgument, TopicNotFound
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.wiring import OpenedLog
from tests.spark.places import Places
from tests.unit.pipeline.mixed_log import append, random_group, rows_of, rows_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NO_TABLE = r"a topic cannot be a table of Spark's catalogue, and nothing was written; .*\.save\(\).*llog\.spark\.views"
NO_OPTIONS = r"Spark passes no options of a table: write by df\.write\.format"
ONLY_APPEND = r"overwrite is not possible: .* write by df\.write\.format"


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("ada", "apple")], "key string, value string").coalesce(1)


async def _written(opened: OpenedLog) -> tuple[int, int]:
    """Records and objects of the cluster."""
    assert opened.context.wal is not None
    objects = [meta async for meta in opened.context.wal.list(opened.context.keys.blobs())]
    return len(await rows_read(opened, [Log("orders", 0)])), len(objects)


_COMMANDS: dict[str, tuple[Callable[[DataFrame, dict[str, str]], object], str]] = {
    "saveAsTable": (lambda rows, options: rows.write.format("llog").options(**options).saveAsTable("made"), NO_TABLE),
    "saveAsTable, append": (
        lambda rows, options: rows.write.format("llog").options(**options).mode("append").saveAsTable("made"),
        NO_TABLE,
    ),
    "saveAsTable, overwrite": (
        lambda rows, options: rows.write.format("llog").options(**options).mode("overwrite").saveAsTable("made"),
        ONLY_APPEND,
    ),
    "create": (lambda rows, options: rows.writeTo("made").using("llog").options(**options).create(), NO_TABLE),
    "createOrReplace": (
        lambda rows, options: rows.writeTo("made").using("llog").options(**options).createOrReplace(),
        ONLY_APPEND,
    ),
    "CREATE TABLE AS SELECT": (
        lambda rows, options: rows.sparkSession.sql("create table made using llog as select * from some_rows"),
        NO_OPTIONS,
    ),
    "CREATE TABLE": (
        lambda rows, options: rows.sparkSession.sql("create table made using llog options (subscribe 'orders')"),
        NO_TABLE,
    ),
}


@pytest.mark.parametrize("command", _COMMANDS)
async def test_a_command_that_creates_a_table_is_refused_and_leaves_nothing(
    spark: SparkSession, places: Places, opened: OpenedLog, rows: DataFrame, command: str
) -> None:
    await append(opened, [random_group(random.Random(1), Log("orders", 0))])
    before = await _written(opened)
    rows.createOrReplaceTempView("some_rows")
    perform, message = _COMMANDS[command]
    with pytest.raises(Exception, match=message) as refused:
        perform(rows, {**places.options, "topic": "orders"})
    assert len(str(refused.value).splitlines()) <= 2, "a sentence and Spark's SQLSTATE"
    assert await _written(opened) == before
    assert not spark.catalog.tableExists("made")


async def test_a_plain_write_and_one_of_a_stream_s_batch_function_are_not_taken_for_tables(
    spark: SparkSession, places: Places, opened: OpenedLog, rows: DataFrame
) -> None:
    options = {**places.options, "topic": "orders"}
    rows.cache().write.format("llog").options(**options).mode("append").save()

    def write(batch: DataFrame, number: int) -> None:
        again = {"queryId": "copy", "batchId": str(number)}
        batch.select("key", "value").write.format("llog").options(**options, **again).mode("append").save()

    reading = spark.readStream.format("llog").options(**places.options, subscribe="orders", startingOffsets="earliest")
    reading.load().writeStream.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert len(await rows_read(opened, [Log("orders", 0)])) == 2


async def test_views_show_every_topic_or_those_named(spark: SparkSession, places: Places, opened: OpenedLog) -> None:
    logs = [Log("orders", 0), Log("visits.v-2", 0)]
    await append(opened, [random_group(random.Random(1), log) for log in logs])
    assert llog.spark.views(spark, options=places.options) == ["orders", "visits.v-2"]
    for log in logs:
        shown = spark.sql(f"select * from `{log.topic}`")
        assert rows_of(shown.toArrow()) == await rows_read(opened, [log])
    await append(opened, [random_group(random.Random(2), logs[0])])
    assert llog.spark.views(spark, "orders", options={**places.options, "includeHeaders": "false"}) == ["orders"]
    assert spark.table("orders").count() == len(await rows_read(opened, [logs[0]])), "a new view shows later records"
    assert "headers" not in spark.table("orders").columns


async def test_views_that_cannot_all_be_created_are_refused_before_the_first(
    spark: SparkSession, places: Places, opened: OpenedLog
) -> None:
    await append(opened, [random_group(random.Random(1), Log("single", 0))])
    with pytest.raises(TopicNotFound, match="nowhere"):
        llog.spark.views(spark, "single", "nowhere", options=places.options)
    await create_topic(opened.context, "Single", partitions=1)
    with pytest.raises(InvalidArgument, match="topics: the views of Single and single would have the same name"):
        llog.spark.views(spark, options=places.options)
    with pytest.raises(InvalidArgument, match="assign: each view reads one topic"):
        llog.spark.views(spark, options={**places.options, "assign": "{}"})
    with pytest.raises(InvalidArgument, match=r"splitbites: .*did you mean splitBytes"):
        llog.spark.views(spark, options={**places.options, "splitBites": "1MiB"})
    assert not spark.catalog.tableExists("single")
    assert llog.spark.views(spark, "single", options=places.options) == ["single"]
