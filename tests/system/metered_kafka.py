"""The Kafka part of a metered cluster's load: one client that produces, fetches and asks in vain, one that is refused.

async with metered_kafka(port) as kafka:
    await kafka.round()
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from llog.kafka.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from llog.kafka.error_codes import ErrorCode
from tests.kafka_client import KafkaClient
from tests.samples import batch_bytes

TOPIC: Final = "events"
NOT_A_REQUEST: Final = (2).to_bytes(4, "big") + b"??"
"""A frame too short for a header."""


@asynccontextmanager
async def metered_kafka(port: int) -> AsyncIterator[MeteredKafka]:
    async with KafkaClient.connected(port) as client:
        assert (await client.ask(ApiVersionsRequest("test", "1"), 3)).error_code == ErrorCode.NONE
        [topic] = (await client.ask(CreateTopicsRequest([CreatableTopic(TOPIC, 1, 1)], 60_000), 7)).topics
        assert topic.error_code == ErrorCode.NONE, topic
        yield MeteredKafka(port, client)


class MeteredKafka:
    def __init__(self, port: int, client: KafkaClient) -> None:
        self._port, self._client = port, client

    async def round(self) -> None:
        data = PartitionProduceData(0, batch_bytes(0, 3))
        request = ProduceRequest(None, -1, 60_000, [TopicProduceData(TOPIC, partition_data=[data])])
        [produced] = (await self._client.ask(request, 11)).responses[0].partition_responses
        if produced.error_code == ErrorCode.NONE:  # else there was no room
            assert await self._fetch(TOPIC, produced.base_offset) == ErrorCode.NONE
        assert await self._fetch("nothing", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async with KafkaClient.connected(self._port) as refused:
            refused.writer.write(NOT_A_REQUEST)
            assert await refused.ended()

    async def _fetch(self, topic: str, offset: int) -> int:
        """The error of the answer."""
        wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=10_000)
        request = FetchRequest(max_wait_ms=0, max_bytes=10_000, topics=[FetchTopic(topic, partitions=[wanted])])
        [partition] = (await self._client.ask(request, 12)).responses[0].partitions
        return int(partition.error_code)
