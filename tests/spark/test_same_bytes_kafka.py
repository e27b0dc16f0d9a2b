"""One log, every front end: what Kafka clients wrote is read to the byte over HTTP, by the Python reader, `llog
consume`, `llog.scan` and Spark, and what those wrote is read to the byte by Kafka clients; before, during and after
compaction."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from llog.log.keys import Log
from llog.settings import Settings
from llog.spark.runner.tasks import SparkTasks
from llog.wiring import Use, opened_log
from tests.clients.kafka.brokers import KafkaBroker, our_broker
from tests.clients.kafka.client_suite import mixed_records
from tests.clients.kafka.confluent_driver import ConfluentDriver
from tests.clients.kafka.driver import CODECS, LATEST, How
from tests.spark.four_readers import MIXED, FourReaders, produce_mix
from tests.spark.test_same_bytes import Cluster
from tests.system.broker_process import run_llog
from tests.unit.pipeline.mixed_log import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SOAK = os.environ.get("LLOG_SOAK") == "1"
SEEDS = range(5 if SOAK else 1)


class Sixth(NamedTuple):
    """A record as `llog consume` shows it: without the kind of its time."""

    row: Row

    @classmethod
    def of(cls, row: Row) -> Sixth:
        return cls(row._replace(timestamp_type=0))


class SixReaders(FourReaders):
    """HTTP, the Python reader, `llog.scan`, Spark; and a Kafka client and `llog consume`."""

    def __init__(self, *arguments: Any, kafka: ConfluentDriver, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.kafka = kafka

    async def agree_on(self, expected: Sequence[Row], logs: Sequence[Log]) -> None:
        await super().agree_on(expected, logs)
        assert await asyncio.to_thread(self.by_kafka, logs) == expected
        assert await asyncio.to_thread(self.by_command, logs) == [Sixth.of(row) for row in expected]

    def by_kafka(self, logs: Sequence[Log]) -> list[Row]:
        rows = []
        for log in logs:
            end = self.kafka.offset_at(*log, LATEST)
            assert end is not None
            for record in self.kafka.fetch(log.topic, {log.partition: self.first_offset}, end - self.first_offset):
                time_us = record.timestamp_ms * 1_000
                kind = int(record.is_append_time)
                rows.append(Row(*log, record.offset, record.key, record.value, time_us, kind, record.headers))
        return rows

    def by_command(self, logs: Sequence[Log]) -> list[Sixth]:
        rows = []
        urls = ("metadata_url", "objects_url", "wal_url")
        settings = {f"LLOG_{name.upper()}": str(getattr(self.settings, name)) for name in urls}
        for topic in dict.fromkeys(log.topic for log in logs):
            ended = run_llog("consume", topic, "--json", settings=settings)
            assert ended.returncode == 0, ended.stderr
            rows += [_row(json.loads(line)) for line in ended.stdout.split("\n") if line]
        return [Sixth(row) for row in rows if Log(row.topic, row.partition) in logs]


def _row(record: dict[str, Any]) -> Row:
    headers = tuple((name, _bytes(value)) for name, value in record["headers"])
    place = (record["topic"], record["partition"], record["offset"])
    return Row(*place, _bytes(record["key"]), _bytes(record["payload"]), record["timestamp_ms"] * 1_000, 0, headers)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)


async def produce_by_kafka(readers: SixReaders, rng: random.Random) -> list[Row]:
    """Into each of the mixed logs, with every codec; the rows that the client was promised."""
    rows = []
    for log in MIXED:
        for codec in CODECS:
            sent = mixed_records(rng, rng.randint(5, 30), log.partition)
            how = How(codec, idempotent=rng.random() < 0.5, linger_ms=rng.choice([0, 20]))
            offsets = await asyncio.to_thread(readers.kafka.produce, log.topic, sent, how)
            for record, offset in zip(sent, offsets, strict=True):
                assert record.timestamp_ms is not None
                time_us = record.timestamp_ms * 1_000
                rows.append(Row(*log, offset, record.key, record.value, time_us, 0, record.headers))
    return rows


@asynccontextmanager
async def started(spark: SparkSession, directory: Path) -> AsyncIterator[tuple[Cluster, SixReaders]]:
    """A broker that never compacts, its topics made by a Kafka client, and jobs on Spark that compact on request."""
    settings = Settings.from_env({"LLOG_DATA_DIR": str(directory / "data")})
    with our_broker(directory) as broker, ConfluentDriver(KafkaBroker(broker.address)) as kafka:
        assert broker.ours is not None
        kafka.create("orders", 2)
        kafka.create("visits", 1)
        async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
            readers = SixReaders(spark, settings, opened, broker.ours.http, kafka=kafka, first_offset=0)
            runner = SparkTasks(spark, settings)
            yield Cluster(readers, opened.context, runner), readers
            await runner.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_front_end_gives_the_same_bytes_whatever_compaction_does(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with started(spark, tmp_path) as (cluster, readers):
        expected: list[Row] = []
        for _ in range(2):  # the second time on top of segments
            promised = await produce_by_kafka(readers, rng)
            await produce_mix(readers, rng, rounds=6)
            promised += await produce_by_kafka(readers, rng)
            before, expected = expected, await readers.by_reader(MIXED)
            assert set(before) <= set(expected), "nothing that was read is gone"
            assert set(promised) <= set(expected), "every record is at the offset that its client was told"
            await readers.agree_on(expected, MIXED)

            async with cluster.looking(lambda: readers.agree_on(expected, MIXED), rng) as watched:  # noqa: B023
                assert await watched.compact() > 0
            await readers.agree_on(expected, MIXED)
            while await cluster.compact(merge=True):
                pass
            await readers.agree_on(expected, MIXED)
