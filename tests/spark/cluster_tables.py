"""The data source `llog` on a cluster: what is read and written through Spark, against what the logs must hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llog.spark
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.settings import Settings
from llog.wiring import opened_log
from tests.spark.cluster_stage import Books, source_options, without_places
from tests.unit.pipeline.mixed_log import rows_of, rows_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = ("ages", "orders", "visits")
STREAMED = ("topic", "partition", "offset", "value")
STREAM_SECONDS_MAX = 120


class Tables:
    def __init__(self, spark: SparkSession, settings: Settings, directory: Path) -> None:
        self.spark, self.settings, self.directory = spark, settings, directory
        self.options = source_options(settings)

    # -- reading -------------------------------------------------------------------------------------------------------
    def frame(self, *topics: str, **options: str) -> DataFrame:
        named = {"subscribe": ",".join(topics)} if topics else {}
        wanted = {**named, "splitBytes": "64KiB", **options}
        return self.spark.read.format("llog").options(**self.options, **wanted).load()

    async def read(self, books: Books) -> None:
        """All records, and some by options that narrow the read."""
        assert await asyncio.to_thread(lambda: rows_of(self.frame(*TOPICS).toArrow())) == books.of(*TOPICS)
        narrowed = {"assign": '{"orders": [2]}', "startingOffsets": '{"orders": {"2": 9}}'}
        some = await asyncio.to_thread(lambda: rows_of(self.frame(**narrowed).toArrow()))
        assert some == [row for row in books.rows[Log("orders", 2)] if row.offset >= 9]

    async def stream(self, books: Books) -> None:
        """From where the checkpoint stands to the end, into Parquet: in all every record once."""
        await asyncio.to_thread(self._stream)
        found = await asyncio.to_thread(lambda: self.spark.read.parquet(f"{self.directory}/streamed").toArrow())
        rows = zip(*(found.column(name).to_pylist() for name in STREAMED), strict=True)
        wanted = [(row.topic, row.partition, row.offset, row.value) for row in books.of("orders", "visits")]
        assert Counter(rows) == Counter(wanted)

    def _stream(self) -> None:
        stream = self._reading("orders,visits").select(*STREAMED)
        writing = stream.writeStream.format("parquet").option("path", f"{self.directory}/streamed")
        _to_the_end(writing.option("checkpointLocation", f"{self.directory}/checkpoint"))

    def _reading(self, topics: str) -> Any:
        options = {**self.options, "subscribe": topics, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "700"}
        return self.spark.readStream.format("llog").options(**options).load()

    # -- writing -------------------------------------------------------------------------------------------------------
    async def write(self, books: Books) -> None:
        """A table into a topic, and once more under the same id: that adds nothing."""
        rows = self.frame("orders").drop("topic")
        target = {**self.options, "topic": "copied", "queryId": "nightly", "compression": "lz4"}
        await self._create("copied")
        for frame in (rows, rows.repartition(5)):
            await asyncio.to_thread(self._append, frame, target)
        await self._take_over(books, "copied")

    def _append(self, frame: Any, target: Mapping[str, str]) -> None:
        llog.spark.register(self.spark)  # in this thread
        frame.write.format("llog").mode("append").options(**target).save()

    async def stream_into(self, books: Books) -> None:
        """A stream into a topic, over a restart that has forgotten its last commit."""
        await self._create("streamed")
        await asyncio.to_thread(self._stream_into)
        forget_last_commit(self.directory / "into")
        await asyncio.to_thread(self._stream_into)
        await self._take_over(books, "streamed")

    def _stream_into(self) -> None:
        writing = self._reading("orders").drop("topic").writeStream.format("llog").options(**self.options)
        _to_the_end(writing.option("topic", "streamed").option("checkpointLocation", f"{self.directory}/into"))

    async def _create(self, topic: str) -> None:
        """With the partitions that the rows name: a write adds none."""
        async with opened_log(self.settings) as opened:
            await create_topic(opened.context, topic, partitions=4)

    async def _take_over(self, books: Books, topic: str) -> None:
        """A copy of `orders` must hold its records, each once; from then on it must stay as it is."""
        logs = [Log(topic, partition) for partition in range(4)]
        async with opened_log(self.settings) as opened:
            found = await rows_read(opened, logs)
        assert without_places(found) == without_places(books.of("orders")), topic
        for log in logs:
            books.rows[log] = [row for row in found if row.partition == log.partition]


def _to_the_end(writing: Any) -> None:
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(STREAM_SECONDS_MAX), "the stream does not end"
    assert query.exception() is None


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died before it could note its last batch."""
    last = max(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
