"""The payload bytes that brokers count: those of the values, as a client of either front end counts them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

import llog

RECORD_BATCH_HEADER_BYTES = 61


class Counted(NamedTuple):
    appended: int
    append_records: int
    encoded: int
    consumed: int
    consume_records: int


class Broker:
    def __init__(self, embedded: Any) -> None:
        self.http, self.bootstrap = httpx.Client(base_url=embedded.url, timeout=30), embedded.bootstrap

    def counted(self) -> Counted:
        page = self.http.get("/metrics").raise_for_status().json()
        log, consume = page["log"], page["consume"]
        return Counted(
            log["append_payload_bytes"],
            log["append_records"],
            log["append_bytes"],
            sum(consume["payload_bytes"].values()),
            sum(consume["records"].values()),
        )

    def since(self, before: Counted) -> Counted:
        return Counted._make(now - then for now, then in zip(self.counted(), before, strict=True))

    def http_produce(self, topic: str, records: list[Any], **fields: int) -> int:
        """The first record's offset."""
        body = {"topic_partitions": [{"topic": topic, "partition": 0, "records": records, **fields}]}
        [result] = self.http.post("/produce", json=body).raise_for_status().json()["results"]
        assert result["ok"]
        return int(result["start_offset"])

    def http_consume(self, topic: str, offset: int) -> int:
        body = {"topic_partitions": [{"topic": topic, "partition": 0, "fetch_offset": offset}]}
        [result] = self.http.post("/consume", json=body).raise_for_status().json()["results"]
        return len(result["records"])

    def kafka_produce(
        self, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], codec: str = "none"
    ) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 50, "compression.type": codec})
        for key, value in records:
            producer.produce(topic, value, key, partition=0)
        assert producer.flush(30) == 0

    def kafka_consume(self, topic: str, count: int) -> list[bytes | None]:
        options = {"bootstrap.servers": self.bootstrap, "group.id": "g", "enable.auto.commit": False}
        with closing(Consumer(options)) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            messages = consumer.consume(count, timeout=15)
        return [message.value() for message in messages]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with llog.embedded(memory=True) as embedded:
        yield Broker(embedded)


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t{uuid4().hex}"
    broker.http.post("/topics", json={"topic": name, "partitions": 1}).raise_for_status()
    return name


@pytest.mark.parametrize("count", [3, 400], ids=["in Python", "by kernels"])
def test_http_counts_the_values_of_plain_records(broker: Broker, topic: str, count: int) -> None:
    before = broker.counted()
    records = ["x" * (number % 100 + 100) for number in range(count)]
    start_offset = broker.http_produce(topic, records)
    assert broker.http_consume(topic, start_offset) == count
    since, size = broker.since(before), sum(map(len, records))
    assert (since.appended, since.append_records) == (since.consumed, since.consume_records) == (size, count)
    assert since.encoded > size


def test_http_leaves_out_keys_and_headers_and_decodes_base64(broker: Broker, topic: str) -> None:
    before = broker.counted()
    start_offset = broker.http_produce(
        topic,
        [
            {"key": "k" * 50, "value": "äö", "headers": {"name": "a header"}},
            {"base64": base64.b64encode(bytes(1_000)).decode()},
            {"key": "gone", "value": None},
        ],
    )
    assert broker.http_consume(topic, start_offset) == 3
    since = broker.since(before)
    assert since.appended == since.consumed == 4 + 1_000


def test_http_counts_only_the_records_from_the_wanted_offset_on(broker: Broker, topic: str) -> None:
    start_offset = broker.http_produce(topic, ["a" * 10, "b" * 20, "c" * 30])
    before = broker.counted()
    assert broker.http_consume(topic, start_offset + 1) == 2
    assert broker.since(before).consumed == 50


def test_kafka_counts_the_values_of_records_that_are_not_compressed(broker: Broker, topic: str) -> None:
    before = broker.counted()
    records = [(b"key", b"v" * (number + 1)) for number in range(200)] + [(None, None)]
    broker.kafka_produce(topic, records)
    assert len(broker.kafka_consume(topic, len(records))) == len(records)
    since, size = broker.since(before), sum(len(value or b"") for _, value in records)
    assert (since.appended, since.append_records) == (since.consumed, since.consume_records) == (size, len(records))


def test_kafka_counts_a_compressed_batch_without_its_header(broker: Broker, topic: str) -> None:
    before = broker.counted()
    broker.kafka_produce(topic, [(None, b"v" * 1_000)] * 100, codec="zstd")
    assert len(broker.kafka_consume(topic, 100)) == 100
    since = broker.since(before)
    batches, rest = divmod(since.encoded - since.appended, RECORD_BATCH_HEADER_BYTES)
    assert (rest, since.appended) == (0, since.consumed)
    assert 1 <= batches <= 100
    assert since.appended < 100 * 1_000


def test_a_repeat_of_an_idempotent_producer_counts_once(broker: Broker, topic: str) -> None:
    before = broker.counted()
    for _ in range(2):
        broker.http_produce(topic, ["x" * 70], producer_id=9, epoch=0, sequence=0)
    assert broker.since(before)[:2] == (70, 1)
