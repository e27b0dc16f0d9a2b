"""Scanning a topic with Spark, against Spark's own Parquet reader on the same rows; and without Spark."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import llog
import llog.spark
from llog.errors import JavaUnusable, SparkNotInstalled
from llog.log.append.append import Appender
from llog.log.keys import Log
from llog.pipeline.compact.once import compact_once
from llog.settings import Settings
from llog.testing.servers import ServerUnavailable
from llog.wiring import Use, opened_log
from tests.benchmarks.harness import Duel, benchmark
from tests.benchmarks.log_setup import append_all, group, is_trial, record_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGS = [Log("orders", partition) for partition in range(4)]
BATCH_RECORDS = 1_000
VALUE_BYTES = 1_000
MEGABYTES = 4 if is_trial() else 1_024 if os.environ.get("LLOG_SOAK") == "1" else 512


@asynccontextmanager
async def scanned_topic() -> AsyncIterator[tuple[Settings, Path]]:
    """Uncompressed records of 1 kB in segments, and the same rows as uncompressed Parquet files of 64 MB."""
    with tempfile.TemporaryDirectory(prefix="llog-bench-") as directory:
        settings = Settings.from_env(
            {}, metadata_url=f"lmdb://{directory}/metadata", objects_url=f"file://{directory}/objects"
        )
        async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
            appender = Appender(opened.context)
            for _ in range(MEGABYTES // len(LOGS)):
                # Every value is another: dictionaries would make a small file of repeated ones.
                batches = [record_batch(BATCH_RECORDS, VALUE_BYTES) for _ in LOGS]
                groups = [group(log, batch, BATCH_RECORDS) for log, batch in zip(LOGS, batches, strict=True)]
                await append_all(appender, groups)
            await appender.close()
            for log in LOGS:
                while await compact_once(opened.context, log):
                    pass
        parquet = Path(directory) / "parquet"
        await asyncio.to_thread(_write_parquet, settings, parquet)
        yield settings, parquet


def _write_parquet(settings: Settings, directory: Path) -> None:
    directory.mkdir()
    gathered, size, files = list[pa.RecordBatch](), 0, 0
    for batch in llog.scan("orders", settings=settings):
        gathered.append(batch)
        size += batch.nbytes
        if size >= 64e6:
            _write_file(gathered, directory / f"{files}.parquet")
            gathered, size, files = [], 0, files + 1
    _write_file(gathered, directory / f"{files}.parquet")


def _write_file(batches: list[pa.RecordBatch], path: Path) -> None:
    if batches:
        # As Spark writes it: dictionaries where they help, pages of a megabyte; only not compressed.
        pq.write_table(pa.Table.from_batches(batches), path, compression="none", row_group_size=1 << 16)


def session() -> SparkSession:
    try:
        # Or the one that another benchmark left.
        spark = llog.spark.session(Settings.from_env({}), app_name="llog-bench")
    except (JavaUnusable, SparkNotInstalled) as error:
        raise ServerUnavailable(str(error)) from error
    return llog.spark.register(spark)


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@benchmark(
    "spark_scan",
    against="Spark reading the same rows from uncompressed Parquet",
    at_least=0.6,
    goal="≥ 880 MB/s, 8 × Spark's Kafka source",
)
@asynccontextmanager
async def spark_scan() -> AsyncIterator[Duel]:
    """All columns of records of 1 kB, to noop; planning included on both sides."""
    async with scanned_topic() as (settings, parquet):
        spark = await asyncio.to_thread(session)
        options = {
            "subscribe": "orders",
            "llog.metadata.url": settings.metadata_url,
            "llog.objects.url": settings.objects_url,
            "llog.wal.url": settings.wal_url,
        }

        def ours() -> None:
            to_nowhere(spark.read.format("llog").options(**options).load())

        def baseline() -> None:
            to_nowhere(spark.read.parquet(str(parquet)))

        rows = spark.read.format("llog").options(**options).load().count()
        assert rows == spark.read.parquet(str(parquet)).count() == MEGABYTES // len(LOGS) * len(LOGS) * BATCH_RECORDS
        for side in (ours, baseline):
            await asyncio.to_thread(side)  # starts workers and compiles code
        try:
            yield Duel(ours, baseline, rows * VALUE_BYTES / 1e6, "MB")
        finally:
            await asyncio.to_thread(spark.stop)


@benchmark("arrow_scan", against="pyarrow reading the same rows from Parquet", at_least=0.3, judged=False)
@asynccontextmanager
async def arrow_scan() -> AsyncIterator[Duel]:
    """`llog.scan` to record batches that are dropped; two threads on both sides."""
    async with scanned_topic() as (settings, parquet):
        pa.set_cpu_count(2)
        files = sorted(parquet.iterdir())

        def ours() -> None:
            for _ in llog.scan("orders", settings=settings, threads=2):
                pass

        def baseline() -> None:
            for path in files:
                for _ in pq.ParquetFile(path).iter_batches(batch_size=4_096):
                    pass

        ours()
        baseline()
        yield Duel(ours, baseline, MEGABYTES // len(LOGS) * len(LOGS) * BATCH_RECORDS * VALUE_BYTES / 1e6, "MB")
