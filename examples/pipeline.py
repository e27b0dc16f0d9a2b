"""Orders arrive by HTTP, a Spark stream sums them, the log is compacted, and exported as an Iceberg table.

    .venv/bin/python examples/pipeline.py        (`make demo`)

Everything runs on this machine, in a temporary directory and on free ports: a broker on LMDB and local files, and one
Spark session. At the end it prints what the same requests and bytes would have cost on S3.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import llog
import llog.spark
from llog.pipeline.compact.round import CompactReport
from llog.pipeline.export.iceberg import open_catalogue
from llog.settings import Settings
from llog.spark import jobs
from llog.spark.source.exported import iceberg_dataframe
from llog.stores.objects.pricing import S3_STANDARD_US_EAST_1, measure_footprint
from llog.wiring import Use, opened_log

ORDERS, PER_MINUTE = "orders", "orders_per_minute"
PARTITIONS, REQUESTS, ORDERS_PER_REQUEST = 4, 50, 100
MINUTES = 5
TABLE = "shop.orders"
FIELDS = {"customer": "string", "item": "string", "cents": "integer"}
SCHEMA = json.dumps({"type": "object", "properties": {name: {"type": kind} for name, kind in FIELDS.items()}})


def say(step: str, result: str) -> None:
    print(f"\n\033[1m{step}\033[0m\n   {result}" if sys.stdout.isatty() else f"\n{step}\n   {result}", flush=True)


# -- 1. a broker, and orders over HTTP -------------------------------------------------------------------------------


@contextmanager
def broker(log: Path) -> Iterator[str]:
    """A separate process, as in production. Spark uses the stores, not the broker."""
    command = [sys.executable, "-m", "llog", "broker", "--port", "0", "--kafka-port", "0"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                yield found[0].rstrip("/")
                break
        else:
            raise RuntimeError(f"the broker did not start:\n{log.read_text()}")
    finally:
        process.terminate()
        process.wait(30)


def post(url: str, content: object) -> Any:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def order(chance: random.Random, at_ms: int) -> dict[str, object]:
    customer = chance.choice(["ada", "bob", "cyd", "dan"])
    value = {
        "customer": customer,
        "item": chance.choice(["apple", "pear", "plum"]),
        "cents": chance.randrange(50, 500),
    }
    return {"key": customer, "value": json.dumps(value), "timestamp_ms": at_ms}


def send_orders(url: str) -> int:
    """Orders of `MINUTES` minutes, and one request of the next minute, so that the stream closes its windows."""
    chance = random.Random(7)
    began_ms = int(time.time() * 1_000) // 60_000 * 60_000 - MINUTES * 60_000
    sent = 0
    for number in range(REQUESTS + 1):
        at_ms = began_ms + number * MINUTES * 60_000 // REQUESTS
        orders = [[order(chance, at_ms) for _ in range(ORDERS_PER_REQUEST // PARTITIONS)] for _ in range(PARTITIONS)]
        batches = [{"topic": ORDERS, "partition": n, "records": records} for n, records in enumerate(orders)]
        answer = post(f"{url}/produce", {"topic_partitions": batches})
        sent += sum(result["count"] for result in answer["results"])
    return sent


# -- 2. a stream -----------------------------------------------------------------------------------------------------


def add_up(spark: SparkSession, checkpoint: Path) -> int:
    """Cents per minute, from one topic to another; exactly once, even if the stream is killed and restarted."""
    fields = ", ".join(f"{name} {'int' if kind == 'integer' else 'string'}" for name, kind in FIELDS.items())
    orders = (
        spark.readStream.format("llog")
        .option("subscribe", ORDERS)
        .option("startingOffsets", "earliest")
        .option("groupId", "adding-up")
        .load()
        .withWatermark("timestamp", "0 seconds")
        .select("timestamp", F.from_json(F.col("value").cast("string"), fields).alias("order"))
    )
    sums = orders.groupBy(F.window("timestamp", "1 minute").alias("minute")).agg(
        F.count("*").alias("orders"), F.sum("order.cents").alias("cents")
    )
    query = (
        sums.select(
            F.date_format("minute.start", "HH:mm").alias("key"), F.to_json(F.struct("orders", "cents")).alias("value")
        )
        .writeStream.format("llog")
        .option("topic", PER_MINUTE)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(query.recentProgress)


# -- 3. what it would have cost --------------------------------------------------------------------------------------


def requests_of(url: str) -> dict[str, int]:
    """The broker's requests to its object store, by operation."""
    with urllib.request.urlopen(f"{url}/metrics") as page:
        counted = json.load(page)["s3"]["operations"]
    return {name: int(operation["requests"]) for name, operation in counted.items()}


async def bill(by_broker: dict[str, int], compacted: CompactReport, settings: Settings) -> str:
    """Every object was put once and none was removed, so the jobs put what the broker did not. The GETs of the stream,
    of the export and of readers of the table are left out: other processes count them."""
    async with opened_log(settings, segments=Use.PUT) as opened:
        assert opened.context.segments is not None
        stored = await measure_footprint(opened.context.segments)
    by_jobs = {"put": stored.object_count - by_broker["put"], "get": compacted.objects_read}
    prices = S3_STANDARD_US_EAST_1
    monthly = prices.storage_usd_per_month(stored.stored_bytes)
    return (
        f"the broker, {request_counts(by_broker)}: {prices.requests_usd(by_broker):.6f} USD\n"
        f"   Spark's jobs, {request_counts(by_jobs)} (of compaction): {prices.requests_usd(by_jobs):.6f} USD\n"
        f"   keeping {stored.object_count} objects of {stored.stored_bytes / 1e6:.2f} MB: {monthly:.6f} USD a month"
    )


def request_counts(requests: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.upper()}" for name, count in sorted(requests.items(), reverse=True) if count)


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="llog-demo-") as name:
        directory = Path(name)
        # Ignore the stores that this shell names. The broker, this program and Spark all use this directory.
        for variable in [name for name in os.environ if name.startswith("LLOG_") and name != "LLOG_SPARK_MASTER"]:
            del os.environ[variable]
        os.environ["LLOG_DATA_DIR"] = str(directory / "data")
        settings = Settings.from_env()
        with broker(directory / "broker.log") as url:
            say("1. Orders arrive by HTTP", f"{send_orders(url)} orders in {PARTITIONS} partitions, at {url}")
            spark = llog.spark.session(settings)
            try:
                compacted = show_pipeline(spark, settings, directory)
            finally:
                spark.stop()
            say("6. What it would have cost on S3", asyncio.run(bill(requests_of(url), compacted, settings)))
    print(f"\ndone in {time.perf_counter() - began:.0f} s")


def show_pipeline(spark: SparkSession, settings: Settings, directory: Path) -> CompactReport:
    say("2. A stream adds them up, from topic to topic", f"{add_up(spark, directory / 'checkpoint')} batches")
    minutes = llog.scan(PER_MINUTE, columns=["key", "value"]).to_arrow().sort_by("key").to_pylist()
    for minute in minutes:
        print(f"   {minute['key'].decode()}  {minute['value'].decode()}")

    compacted = jobs.compact(spark=spark)
    say(
        "3. Compaction: from shared blobs to a segment per partition",
        f"{compacted.objects_read} blobs read once each, {sum(log.runs for log in compacted.logs)} segments written",
    )
    exported = jobs.export(ORDERS, f"iceberg:{TABLE}", decode="json", schema=SCHEMA, spark=spark)
    say(
        "4. An Iceberg table appears",
        f"{TABLE}: {exported.files} files, {exported.records} rows, offsets in its snapshot",
    )

    table = open_catalogue(settings).load_table(TABLE)
    iceberg_dataframe(spark, table).createOrReplaceTempView("orders")
    question = (
        "select customer, count(*) as orders, sum(cents) as cents from orders group by customer order by customer"
    )
    say("5. Spark SQL and DuckDB read it", question)
    by_spark = [tuple(row) for row in spark.sql(question).collect()]
    orders = table.scan().to_arrow()
    by_duckdb = duckdb.sql(question).fetchall()
    print(f"   Spark SQL  {by_spark}\n   DuckDB     {by_duckdb}   (over {orders.num_rows} rows)")
    assert [tuple(map(int, row[1:])) for row in by_spark] == [tuple(map(int, row[1:])) for row in by_duckdb]
    return compacted


if __name__ == "__main__":
    main()
