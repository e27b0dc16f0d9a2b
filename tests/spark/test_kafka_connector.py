"""Spark's own Kafka connector, unmodified, reads from the broker and writes to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llog.testing.kafka_server import java_packages
from llog.testing.servers import ServerUnavailable
from tests.clients.http_calls import unused_topic
from tests.clients.kafka.brokers import KafkaBroker, kafka_broker
from tests.clients.kafka.client_suite import mixed_records
from tests.clients.kafka.confluent_driver import ConfluentDriver
from tests.clients.kafka.driver import CODECS, Fetched, How, Sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.server]


@pytest.fixture(scope="module")
def broker(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[KafkaBroker]:
    try:
        java_packages("spark-kafka")
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with kafka_broker(request.config.getoption("--kafka"), tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def client(broker: KafkaBroker) -> Iterator[ConfluentDriver]:
    with ConfluentDriver(broker) as driver:
        yield driver


@pytest.fixture
def topic() -> str:
    return unused_topic()


def read(spark: SparkSession, broker: KafkaBroker, topic: str, **options: str) -> DataFrame:
    reading = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    return reading.option("subscribe", topic).option("includeHeaders", "true").options(**options).load()


def rows_of(frame: DataFrame) -> list[Fetched]:
    rows = frame.selectExpr("*", "unix_millis(timestamp) time_ms").collect()
    found = [
        Fetched(
            row.partition,
            row.offset,
            _bytes(row.value),
            _bytes(row.key),
            tuple((header.key, _bytes(header.value)) for header in row.headers or ()),
            row.time_ms,
            row.timestampType == 1,
        )
        for row in rows
    ]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def test_spark_reads_what_kafka_clients_wrote(
    spark: SparkSession, broker: KafkaBroker, client: ConfluentDriver, topic: str, rng: random.Random
) -> None:
    client.create(topic, 2)
    sent: list[Sent] = []
    for codec in CODECS:
        batch = [record for partition in (0, 1) for record in mixed_records(rng, 20, partition)]
        client.produce(topic, batch, How(codec, linger_ms=20))
        sent += batch
    found = rows_of(read(spark, broker, topic))
    for partition in (0, 1):
        own = [record for record in found if record.partition == partition]
        assert [record.offset for record in own] == list(range(100))
        assert [record.as_sent() for record in own] == [record for record in sent if record.partition == partition]
    limited = read(
        spark, broker, topic,
        startingOffsets=f'{{"{topic}": {{"0": 10, "1": -2}}}}', endingOffsets=f'{{"{topic}": {{"0": 30, "1": 5}}}}',
    )  # fmt: skip
    assert rows_of(limited) == [
        r for r in found if (r.partition == 0 and 10 <= r.offset < 30) or (r.partition == 1 and r.offset < 5)
    ]


def test_kafka_clients_read_what_spark_wrote(
    spark: SparkSession, broker: KafkaBroker, client: ConfluentDriver, topic: str
) -> None:
    client.create(topic, 2)
    rows = spark.range(500).selectExpr(
        "cast(id % 2 as int) partition",
        "if(id % 7 = 0, null, concat('key-', id)) key",
        "if(id % 5 = 0, null, cast(concat('wert-ü-', id) as binary)) value",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) headers",
    )
    writing = rows.write.format("kafka").option("kafka.bootstrap.servers", broker.address).option("topic", topic)
    writing.option("includeHeaders", "true").option("kafka.compression.type", "lz4").save()
    found = client.fetch(topic, {0: 0, 1: 0}, 500)
    expected = {
        number: (
            number % 2,
            None if number % 7 == 0 else f"key-{number}".encode(),
            None if number % 5 == 0 else f"wert-ü-{number}".encode(),
        )
        for number in range(500)
    }
    assert {
        int(record.headers[0][1] or b""): (record.partition, record.key, record.value) for record in found
    } == expected


def test_a_stream_copies_a_topic_exactly_as_far_as_it_is(
    spark: SparkSession, broker: KafkaBroker, client: ConfluentDriver, topic: str, tmp_path: Path
) -> None:
    """Twice: the second run goes on where the checkpoint of the first ends."""
    copy = unused_topic()
    client.create(topic, 2)
    client.create(copy, 2)

    def run() -> None:
        reading = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
        records = reading.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writing = records.select("partition", "key", "value").writeStream.format("kafka").option("topic", copy)
        writing = writing.option("kafka.bootstrap.servers", broker.address).trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    for round_ in range(2):
        client.produce(topic, [Sent(b"%d" % (100 * round_ + n), partition=n % 2) for n in range(100)])
        run()
    found = client.fetch(copy, {0: 0, 1: 0}, 200)
    for partition in (0, 1):
        values = [int(record.value or b"") for record in found if record.partition == partition]
        assert values == list(range(partition, 200, 2))
