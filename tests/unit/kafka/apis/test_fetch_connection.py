"""Fetch over a connection: what was produced comes back as views, memory is given back, polls end with the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llog.broker.tail.cache import TailHit
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import BatchRule
from llog.kafka.codec.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from tests.kafka_client import KafkaClient
from tests.patience import until
from tests.unit.kafka.apis.fetching import LONG_POLL_MS
from tests.unit.kafka.serving import ServedKafka, serve

PARTITIONS = 4


def produce(kafka: ServedKafka, payload: bytes) -> ProduceRequest:
    records = bytes(encode_records([payload] * 3, timestamps_ms=kafka.broker.context.now_ms()))
    data = [PartitionProduceData(partition, records) for partition in range(PARTITIONS)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData("orders", partition_data=data)])


def fetch(offset: int, **fields: Any) -> FetchRequest:
    partitions = [
        FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20) for partition in range(PARTITIONS)
    ]
    return FetchRequest(topics=[FetchTopic("orders", partitions=partitions)], **fields)


async def append(client: KafkaClient, kafka: ServedKafka, payload: bytes) -> None:
    answer = await client.ask(produce(kafka, payload), 9)
    assert [one.error_code for one in answer.responses[0].partition_responses] == [0] * PARTITIONS


def values(answer: FetchResponse) -> list[list[tuple[int, bytes | None]]]:
    found = []
    for partition in answer.responses[0].partitions:
        assert partition.error_code == 0
        columns = decode_records(bytes(partition.records or b""), "answer", rule=BatchRule.COMPACTED)  # type: ignore[arg-type]
        found.append(list(zip(columns.offsets.tolist(), columns.values.tolist(), strict=True)))
    return found


@pytest.mark.parametrize("payload_bytes", [10, 50_000])
async def test_what_kafka_clients_produce_is_fetched_from_the_frames_that_brought_it(payload_bytes: int) -> None:
    async with serve(tail_cache_max_bytes=64 << 20, tail_refresh_ms=10_000) as kafka, kafka.client() as client:
        await create_topic(kafka.broker.context, "orders", partitions=PARTITIONS, first_offset=0)
        for start in (0, 3):
            await append(client, kafka, b"%d" % start * payload_bytes)
        rows = [(offset, b"%d" % (offset // 3 * 3) * payload_bytes) for offset in range(6)]
        for _ in range(2):
            assert values(await client.ask(fetch(0, max_bytes=64 << 20), 12)) == [rows] * PARTITIONS
        found = kafka.broker._cache.lookup(Log("orders", 1), 0, 1 << 20)
        assert isinstance(found, TailHit)
        assert not any(item.copied for item in found.batches), "no byte of a frame was copied"
        assert all(item.chunk is None for item in found.batches)


async def test_memory_of_answers_is_given_back_when_they_were_taken() -> None:
    async with serve() as kafka, kafka.client() as client:
        await create_topic(kafka.broker.context, "orders", partitions=PARTITIONS, first_offset=0)
        await append(client, kafka, b"x" * 100_000)
        for _ in range(3):
            assert len(values(await client.ask(fetch(0, max_bytes=64 << 20), 12))[0]) == 3
        await until(lambda: kafka.server.context.front_end.used == 0, "answers that were taken hold nothing")


async def test_the_poll_of_a_client_that_is_gone_ends() -> None:
    async with serve() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=PARTITIONS, first_offset=0)
        watch = kafka.broker._consume.watch
        async with kafka.client() as client:
            poll = client.send(fetch(0, max_wait_ms=LONG_POLL_MS, min_bytes=1), 12)
            await until(lambda: watch.waiter_count == 1, "the poll waits")
            poll.cancel()
        await until(lambda: watch.waiter_count == 0, "nothing waits for the client")


async def test_a_poll_of_one_connection_is_woken_by_a_produce_of_another() -> None:
    async with serve() as kafka, kafka.client() as consumer, kafka.client() as producer:
        await create_topic(kafka.broker.context, "orders", partitions=PARTITIONS, first_offset=0)
        watch = kafka.broker._consume.watch
        poll = asyncio.ensure_future(consumer.ask(fetch(0, max_wait_ms=LONG_POLL_MS, min_bytes=1), 12))
        await until(lambda: watch.waiter_count == 1, "the poll waits")
        await append(producer, kafka, b"x")
        assert any(rows for rows in values(await poll))
