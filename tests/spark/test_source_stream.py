"""The data source `llog` as a stream: limits, restarts without loss or repeat, AvailableNow, new partitions, groups."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from llog.broker.groups.positions import GroupPositions
from llog.log.cleanup.retention import delete_records
from llog.log.keys import Log
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.wiring import OpenedLog
from tests.patience import until
from tests.spark.places import Places
from tests.unit.pipeline.mixed_log import append, random_group, rows_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytest.importorskip("pyspark")

from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from llog.spark.source.lag import LagListener

pytestmark = pytest.mark.spark
soak = pytest.mark.skipif(
    os.environ.get("LLOG_SOAK") != "1", reason="set LLOG_SOAK=1: without Spark it is tested anyway"
)

ORDERS = Log("orders", 0)
Seen = Counter[tuple[str, int, int]]


class Stream:
    """A query that is started again and again with one checkpoint, and what it wrote."""

    def __init__(self, spark: SparkSession, places: Places, directory: Path, **options: object) -> None:
        self._spark, self._places, self._directory = spark, places, directory
        self._options = {"subscribe": "orders", "startingOffsets": "earliest", **options}

    def run(self, **options: object) -> list[dict[str, Any]]:
        """Reads the current records and ends; returns the progress of its batches."""
        query = self.start(**options)
        assert query.awaitTermination(120)
        return [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]

    def start(self, **options: object) -> StreamingQuery:
        texts = {name: str(value) for name, value in {**self._options, **options}.items()}
        frame = self._spark.readStream.format("llog").options(**self._places.options, **texts).load()
        rows = frame.selectExpr("topic", "partition", "offset")
        writer = rows.writeStream.format("parquet").option("path", f"{self._directory}/rows")
        return writer.option("checkpointLocation", f"{self._directory}/checkpoint").trigger(availableNow=True).start()

    def seen(self) -> Seen:
        return Counter(tuple(row) for row in self._spark.read.parquet(f"{self._directory}/rows").collect())


class Kept(LagListener):
    """The listener, and the largest lag that it showed after each progress."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.registry, self.seen, self.ended = registry, list[float | None](), 0

    def shown(self) -> float | None:
        values = [
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "llog_stream_max_offsets_behind_latest"
        ]
        return max(values, default=None)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        super().onQueryProgress(event)
        self.seen.append(self.shown())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        super().onQueryTerminated(event)
        self.ended += 1


async def written(opened: OpenedLog, seed: int, *logs: Log) -> None:
    await append(opened, [random_group(random.Random(seed), log) for log in logs or [ORDERS]])


async def everything(opened: OpenedLog, *logs: Log, start: int = 1) -> Seen:
    rows = await rows_read(opened, logs or [ORDERS], start=start)
    return Counter((row.topic, row.partition, row.offset) for row in rows)


async def test_a_stream_goes_on_after_restarts_without_loss_or_repeat_and_takes_in_new_partitions(
    spark: SparkSession, places: Places, opened: OpenedLog, tmp_path: Path
) -> None:
    stream = Stream(spark, places, tmp_path, groupId="reports", splitBytes="64KiB")
    await written(opened, 1)
    registry = CollectorRegistry()
    listener = Kept(registry)
    spark.streams.addListener(listener)
    stream.run()
    assert stream.seen() == await everything(opened)
    await written(opened, 2)
    await written(opened, 3, ORDERS, Log("orders", 1))
    await compact_once(opened.context, ORDERS)
    limit = len(await rows_read(opened, [ORDERS])) // 3
    progress = stream.run(maxOffsetsPerTrigger=limit)
    logs = ORDERS, Log("orders", 1)
    assert stream.seen() == await everything(opened, *logs)
    assert len(progress) > 1, "several triggers"
    assert max(batch["numInputRows"] for batch in progress) <= limit + 1, "one more where a share is less than one"
    kept = await GroupPositions(opened.context).fetch("reports")
    ends = {log: max(row.offset for row in await rows_read(opened, [log])) + 1 for log in logs}
    assert {log: at.position.offset for log, at in kept.items() if at is not None} == ends
    [source] = progress[-1]["sources"]
    assert source["endOffset"]["orders"] == {str(log.partition): end for log, end in ends.items()}
    assert source["latestOffset"]["orders"] == source["endOffset"]["orders"], "Spark computes the lag from it"
    first, last = (batch["sources"][0] for batch in (progress[0], progress[-1]))
    behind = [
        first["latestOffset"]["orders"][partition] - reached
        for partition, reached in first["endOffset"]["orders"].items()
    ]
    assert first["latestOffset"]["@lag"] == {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }
    assert max(behind) > 0
    assert last["latestOffset"]["@lag"]["maxOffsetsBehindLatest"] == 0
    await until(lambda: listener.ended == 2, "both runs have ended")
    spark.streams.removeListener(listener)
    assert max(behind) in listener.seen
    assert listener.seen[-1] == 0
    assert listener.shown() is None, "a query that has ended has no lag"


@soak
async def test_a_limit_in_bytes_makes_several_batches(
    spark: SparkSession, places: Places, opened: OpenedLog, tmp_path: Path
) -> None:
    for seed in range(6):
        await written(opened, seed)
    stream = Stream(spark, places, tmp_path, maxBytesPerTrigger="12k")
    progress = stream.run()
    assert len(progress) > 1
    assert stream.seen() == await everything(opened)


@soak
async def test_lost_records_end_a_stream_unless_told_otherwise(
    spark: SparkSession, places: Places, opened: OpenedLog, tmp_path: Path
) -> None:
    stream = Stream(spark, places, tmp_path)
    await written(opened, 1)
    stream.run()
    before = await everything(opened)
    for seed in (2, 3):
        await written(opened, seed)
    lost_to = max(offset for _, _, offset in before) + 3
    await delete_records(opened.context, ORDERS, lost_to)
    with pytest.raises(
        Exception, match=r"the stream's position: orders:0: offset \d+ is lost: the log now begins at offset"
    ):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.seen() == before + await everything(opened, start=lost_to)


@soak
async def test_a_topic_that_was_deleted_and_created_again_is_noticed(
    spark: SparkSession, places: Places, opened: OpenedLog, tmp_path: Path
) -> None:
    stream = Stream(spark, places, tmp_path)
    await written(opened, 1)
    stream.run()
    before = await everything(opened)
    await delete_topic(opened.context, "orders")
    for seed in (2, 3, 4):
        await written(opened, seed)
    with pytest.raises(Exception, match="its topic was deleted and created again"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.seen() == before + await everything(opened), "the new incarnation from its start"


@soak
async def test_an_option_that_makes_no_sense_for_a_stream_is_named(
    spark: SparkSession, places: Places, opened: OpenedLog, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="endingOffsets: a stream has no end"):
        Stream(spark, places, tmp_path, endingOffsets="latest").run()
