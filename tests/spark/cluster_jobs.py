"""Every job of the pipeline, and the data source, on a cluster of two executors with Oxia and S3.

`test_cluster` starts it as a program, in an environment that names the servers and the kind of cluster (`clusters`) and
is watched (`cluster_watch`). After
each step the Python reader must give what was written, byte for byte; in the end nothing may be left over, and no
process of an executor may have come near a metadata store. Then it is shown that this would have been noticed.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import llog.spark
from llog.errors import ExportRefused
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.pipeline.audit.job import audit
from llog.pipeline.compact.job import CompactOptions, compact
from llog.pipeline.compact.plan import SegmentRules, Sizing
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.export.job import export
from llog.pipeline.export.parquet import ParquetTarget, parquet_files
from llog.pipeline.export.plan import Sizes
from llog.pipeline.retain import retain_logs
from llog.pipeline.vacuum.job import vacuum
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.spark.source.exported import parquet_dataframe
from llog.wiring import OpenedLog
from tests.spark.cluster_keys import clean_by_key
from tests.spark.cluster_misuse import misuse
from tests.spark.cluster_stage import GRACE_MS, Books, fill, opened_here, settings_here
from tests.spark.cluster_tables import Tables
from tests.spark.cluster_watch import DIRECTORY, by_executor, notes, peers, touches
from tests.spark.clusters import EXECUTORS, cluster_here
from tests.unit.pipeline.compact.compact_stage import entries_of
from tests.unit.pipeline.mixed_log import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS: Final = [*(Log("orders", n) for n in range(4)), *(Log("visits", n) for n in range(2)), Log("ages", 0)]
AGES: Final = Log("ages", 0)
HOUR_MS: Final = 3_600_000
OPTIONS: Final = CompactOptions(
    rules=SegmentRules(target_bytes=8_000),
    sizing=Sizing(2, window_bytes_min=40_000, window_bytes_max=40_000),
    merge_bytes=200_000,
    merge_inputs_min=3,
)


class Run:
    """One driver and its cluster."""

    def __init__(self, settings: Settings, spark: SparkSession, opened: OpenedLog) -> None:
        self.settings, self.spark, self.opened = settings, spark, opened
        self.runner = SparkTasks(spark, settings)
        self.books = Books()
        self.tables = Tables(spark, settings, Path(settings.data_dir))
        self.facts: dict[str, object] = {}
        self._asked_oxia: set[int | None] = set()
        self._asked_s3: set[int | None] = set()

    async def step(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do it, compare every log with what was written, and look who is connected to what."""
        began = time.monotonic()
        await work()
        self._asked_oxia |= set(peers(_port_of(self.settings.metadata_url)).values())
        self._asked_s3 |= set(peers(_port_of(str(self.settings.s3_endpoint_url))).values())
        await self.books.check(self.opened, name)
        print(f"STEP {name} {time.monotonic() - began:.1f} s", flush=True)

    # -- what is in the logs -------------------------------------------------------------------------------------------
    async def first_records(self) -> None:
        context = self.opened.context
        await create_topic(context, "orders", partitions=4)
        await create_topic(context, "visits", partitions=2)
        await create_topic(context, "ages", partitions=1, config={"retention.ms": str(HOUR_MS)})
        await fill(self.settings, self.books, LOGS, seed=1, appends=12, age_ms={"ages": 2 * HOUR_MS})

    async def more_records(self) -> None:
        await fill(self.settings, self.books, LOGS, seed=2, appends=8, age_ms={"ages": 0})

    # -- jobs ----------------------------------------------------------------------------------------------------------
    async def compact(self) -> None:
        report = await compact(self.opened.context, self.runner, options=OPTIONS, merge=True)
        assert not report.failed, report.failed
        assert report.count("compacted") >= len(LOGS), report.logs
        assert report.objects_read == report.objects_planned, "each object is read once"
        levels: Counter[int] = Counter()
        for log in LOGS:
            entries = await entries_of(self.opened.context, log)
            assert {entry.value.type for entry in entries} == {"COMPACTED"}
            levels.update(entry.value.level for entry in entries)
        self.facts["levels"] = sorted(levels)
        self.facts["compaction tasks"] = report.tasks

    async def retain(self) -> None:
        """Of the topic whose first records are older than it keeps them, those go."""
        oldest_us = (time.time_ns() // 1_000_000 - HOUR_MS) * 1_000
        first_young = next(row.offset for row in self.books.rows[AGES] if row.timestamp_us > oldest_us)
        assert first_young > 1
        report = await retain_logs(self.opened.context, LOGS)
        assert report.failed == 0
        [moved] = report.logs
        assert (moved.topic, moved.log_start_offset) == ("ages", first_young)
        self.books.forget_below(AGES, first_young)

    async def export(self, name: str) -> None:
        """Into targets of that name, which are new: so all of the topic, as it lies now."""
        context, sizes = self.opened.context, Sizes(split_bytes=64 * 1024)
        store = await self.opened.objects.at(f"{self.settings.objects_url}/exports/{name}")
        parquet = ParquetTarget(store, "orders")
        report = await export(context, self.runner, "orders", parquet, sizes=sizes)
        catalogue, schema = open_catalogue(self.settings), Decoder(Decoding()).schema
        table = await IcebergTarget.open(catalogue, f"shop.{name}", schema, context.random_bits)
        again = await export(context, self.runner, "orders", table, sizes=sizes)
        assert report.records == again.records > 0
        found = []
        for uri in await parquet_files(store, "orders"):
            data = await store.get(store.name_of(uri))
            rows = pq.read_table(io.BytesIO(bytes(data)))
            partition = int(uri.partition("/partition=")[2].partition("/")[0])
            found += rows_of(rows.append_column("partition", pa.array([partition] * rows.num_rows, pa.int32())))
        wanted = self.books.of("orders")
        assert sorted(found, key=lambda row: row[:3]) == wanted, "Parquet"
        assert rows_of(catalogue.load_table(f"shop.{name}").scan().to_arrow()) == wanted, "Iceberg"
        # Spark itself comes without a file system for buckets, and says so.
        with pytest.raises(ExportRefused, match="hadoop-aws"):
            await parquet_dataframe(self.spark, store, "orders")
        self.facts["exported"] = len(wanted)

    async def vacuum(self) -> None:
        """What nothing names goes; segments are marked first, and go a grace later."""
        context = self.opened.context
        await asyncio.sleep(GRACE_MS / 1_000 + 2)
        planned = await vacuum(context, self.runner, dry_run=True)
        first = await vacuum(context, self.runner)
        await asyncio.sleep(GRACE_MS / 1_000 + 2)
        second = await vacuum(context, self.runner)
        assert planned.blobs_deleted >= first.blobs_deleted > 0
        assert first.segments_deleted + second.segments_deleted > 0
        for report in (first, second):
            kept = report.kept_unreadable, report.kept_unknown_log, report.kept_unchecked
            assert kept == (0, 0, 0), report
        self.facts["vacuumed"] = [first.blobs_deleted, first.segments_deleted + second.segments_deleted]

    async def audit_between(self) -> None:
        report = await audit(self.opened.context, self.runner)
        assert report.clean, report

    async def audit_at_last(self) -> None:
        report = await audit(self.opened.context, self.runner)
        assert report.clean, report
        assert report.findings == [], report.findings
        await self.books.check_deep(self.opened)

    # -- who did what --------------------------------------------------------------------------------------------------
    def nobody_asked(self) -> None:
        """Nothing of the executors touched a metadata store, and they did the work: the object store knows them."""
        found = notes(Path(os.environ[DIRECTORY]))
        groups = by_executor(found)
        executors = groups.keys() - {None}
        assert len(executors) == EXECUTORS, groups
        assert all(len(groups[executor]) >= 2 for executor in executors), "a daemon and its workers"
        assert [note for note in touches(found) if note.executor is not None] == []
        drivers = {note.name for note in touches(found) if note.executor is None}
        assert {"grpc", "llog.stores.metadata.oxia"} <= drivers, "the same watch sees what the driver imports"
        assert self._asked_oxia == {None}, "connections to Oxia are the driver's"
        assert executors <= self._asked_s3, "the object store is asked by executors"
        self.facts["executors"] = len(executors)
        self.facts["processes of executors"] = sum(len(groups[executor]) for executor in executors)


async def main(directory: Path) -> dict[str, object]:
    with cluster_here() as cluster:
        return await jobs_on(cluster.master, settings_here(directory))


async def jobs_on(master: str, settings: Settings) -> dict[str, object]:
    config = {
        # What a machine of the cluster says in its environment must not matter either.
        "spark.executorEnv.LLOG_OBJECTS_URL": "s3://nobody",
        "spark.executor.memory": "512m",
    }
    spark = await asyncio.to_thread(llog.spark.session, settings, master=master, config=config)
    async with opened_here(settings) as opened:
        run = Run(settings, spark, opened)
        tables = run.tables
        await run.step("first records", run.first_records)
        await run.step("batch read", lambda: tables.read(run.books))
        await run.step("stream", lambda: tables.stream(run.books))
        await run.step("compact", run.compact)
        await run.step("more records", run.more_records)
        await run.step("retain", run.retain)
        await run.step("batch read of segments and blobs", lambda: tables.read(run.books))
        await run.step("stream, restarted", lambda: tables.stream(run.books))
        await run.step("export", lambda: run.export("blobs"))
        await run.step("batch write", lambda: tables.write(run.books))
        await run.step("stream into a topic", lambda: tables.stream_into(run.books))
        await run.step("key compaction", lambda: clean_by_key(opened, run.runner, settings, OPTIONS))
        await run.step("audit", run.audit_between)
        await run.step("compact again", run.compact)
        await run.step("export of segments", lambda: run.export("segments"))
        await run.step("vacuum", run.vacuum)
        await run.step("batch read at last", lambda: tables.read(run.books))
        await run.step("audit at last", run.audit_at_last)
        run.nobody_asked()
        run.facts["misuse"] = await misuse(run.runner, tables, opened)
        await run.runner.close()
    await asyncio.to_thread(spark.stop)
    return run.facts


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2].strip("/"))


if __name__ == "__main__":
    print("FACTS " + json.dumps(asyncio.run(main(Path(sys.argv[1])))), flush=True)
    os._exit(0)
