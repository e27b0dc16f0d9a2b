"""The data source and jobs through a Spark Connect server in another process: `… connect_jobs DIRECTORY`.

`test_connect` starts the server and names it in the environment. This process has no JVM; what it tells Spark goes
through gRPC, and everything of the data source runs at the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

import llog.spark
from llog.errors import InvalidArgument
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.job import compact
from llog.pipeline.export.job import export
from llog.pipeline.export.parquet import ParquetTarget
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.spark.sessions.session import is_connect, sizing_of
from llog.spark.source.exported import parquet_dataframe
from tests.spark.cluster_jobs import OPTIONS
from tests.spark.cluster_keys import clean_by_key
from tests.spark.cluster_stage import Books, fill, opened_here
from tests.spark.cluster_tables import Tables
from tests.unit.pipeline.mixed_log import rows_of

REMOTE: Final = "TEST_CONNECT_REMOTE"
LOGS: Final = [*(Log("orders", n) for n in range(4)), Log("visits", 0), Log("ages", 0)]


async def main(directory: Path) -> dict[str, object]:
    from pyspark import SparkContext

    settings = Settings.from_env({}, data_dir=directory)
    remote = os.environ[REMOTE]
    spark = await asyncio.to_thread(llog.spark.session, settings, master=remote)
    books, tables = Books(), Tables(spark, settings, directory)
    async with opened_here(settings) as opened:
        await create_topic(opened.context, "orders", partitions=4)
        await fill(settings, books, LOGS, seed=1, appends=6, age_ms={})
        await books.check(opened, "as written")
        await tables.read(books)
        await tables.stream(books)
        runner = SparkTasks(spark, settings)
        report = await compact(opened.context, runner, options=OPTIONS, merge=True)
        assert not report.failed, report.failed
        await books.check(opened, "after compaction")
        await fill(settings, books, LOGS, seed=2, appends=6, age_ms={})
        await books.check(opened, "with more")
        await tables.read(books)
        await tables.stream(books)
        await tables.write(books)
        await tables.stream_into(books)
        await clean_by_key(opened, runner, settings, OPTIONS)
        store = await opened.objects.at(f"file://{directory}/exports")
        exported = await export(opened.context, runner, "orders", ParquetTarget(store, "orders"))
        frame = await parquet_dataframe(spark, store, "orders")
        assert await asyncio.to_thread(lambda: rows_of(frame.toArrow())) == books.of("orders")
        looked = await audit(opened.context, runner)
        assert looked.clean, looked
        await books.check(opened, "at last")
        await refusals(tables, settings, remote)
        await runner.close()
        return {
            "connect": is_connect(spark),
            "jvm": SparkContext._gateway is not None,
            "cores": sizing_of(spark).cores,
            "exported": exported.records == len(books.of("orders")),
        }


async def refusals(tables: Tables, settings: Settings, remote: str) -> None:
    """What is wrong is named, as it is on any session."""
    with pytest.raises(Exception, match="nowhere: no such topic"):
        await asyncio.to_thread(tables.frame("nowhere").count)
    rows = tables.spark.range(1).selectExpr("1 value").write.format("llog").mode("append").options(**tables.options)
    with pytest.raises(Exception, match="value: the column is int, but must be string or binary"):
        await asyncio.to_thread(rows.option("topic", "t").save)
    texts = tables.spark.range(1).selectExpr("'v' value").write.format("llog").options(**tables.options, topic="orders")
    with pytest.raises(Exception, match="a topic cannot be a table of Spark's catalogue, and nothing was written"):
        await asyncio.to_thread(texts.saveAsTable, "made")
    assert not await asyncio.to_thread(tables.spark.catalog.tableExists, "made")
    names = await asyncio.to_thread(llog.spark.views, tables.spark, "orders", options=tables.options)
    counted = await asyncio.to_thread(lambda: tables.spark.table(names[0]).count())
    assert counted == await asyncio.to_thread(lambda: tables.frame("orders").count())
    with pytest.raises(InvalidArgument, match="this process has a session on"):
        llog.spark.session(settings, master="local[2]")
    assert llog.spark.session(settings, master=remote) is tables.spark


if __name__ == "__main__":
    print("FACTS " + json.dumps(asyncio.run(main(Path(sys.argv[1])))), flush=True)
    os._exit(0)
