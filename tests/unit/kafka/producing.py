"""Produce requests to the handler of a broker whose stores are in memory, without a socket."""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from llog.broker.broker import Broker
from llog.broker.cluster import ClusterView, Node
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import CRC_START, Codec
from llog.kafka.apis.handler import Call, Client
from llog.kafka.apis.produce import HANDLER
from llog.kafka.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from llog.kafka.services import KafkaServices
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.admin import create_topic
from llog.settings import Settings

LATEST = 13
BY_NAME = 12


def batch(
    *values: bytes | None, keys: Sequence[bytes | None] | None = None, at_ms: Any = None, **fields: Any
) -> bytearray:
    """One batch of a producer, its records at the present or at the given timestamps."""
    timestamps_ms = now_ms() if at_ms is None else at_ms
    return bytearray(encode_records(list(values), keys=keys, timestamps_ms=timestamps_ms, **fields))


def now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


def summed(data: bytearray) -> bytearray:
    """The batch with a checksum that fits its bytes."""
    from llog.formats.buffers import crc32c

    data[CRC_START - 4 : CRC_START] = crc32c(data[CRC_START:]).to_bytes(4, "big")
    return data


def request(
    *partitions: tuple[str | bytes, int, Any],
    acks: int = -1,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Records for (topic or topic id, partition)."""
    topics = [
        TopicProduceData(
            name=topic if isinstance(topic, str) else "",
            topic_id=topic if isinstance(topic, bytes) else bytes(16),
            partition_data=[PartitionProduceData(index, records)],
        )
        for topic, index, records in partitions
    ]
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


class Producing:
    def __init__(self, broker: Broker, services: KafkaServices) -> None:
        self.broker, self.services = broker, services
        self.client = Client("127.0.0.1", 1, "127.0.0.1:9092")

    async def topic(self, name: str = "orders", partitions: int = 1, **config: str) -> bytes:
        """Create a topic; returns its id."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        created = await create_topic(self.broker.context, name, partitions=partitions, config=named, first_offset=0)
        self.broker.topics.forget(name)
        [known] = (await self.broker.topics.find([name])).values()
        assert not isinstance(known, Exception)
        assert known.record.topic_id == created.record.topic_id
        return known.id_bytes

    def send(self, message: ProduceRequest, version: int = BY_NAME, client: Client | None = None) -> Any:
        return HANDLER.handle(Call(self.services, client or self.client, 0, version, "test", message))

    async def ask(self, message: ProduceRequest, version: int = BY_NAME) -> ProduceResponse:
        answer = self.send(message, version)
        answer = await answer if inspect.isawaitable(answer) else answer
        assert isinstance(answer, ProduceResponse)
        return answer

    async def ask_one(
        self, records: Any, version: int = BY_NAME, topic: str | bytes = "orders"
    ) -> PartitionProduceResponse:
        [answered] = (await self.ask(request((topic, 0, records)), version)).responses
        [partition] = answered.partition_responses
        return partition

    async def contents(self, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
        log = Log(topic, partition)
        return [record.payload async for run in iter_runs(self.broker.context, log, 0) for record in run.records()]


@asynccontextmanager
async def producing(**overrides: Any) -> AsyncIterator[Producing]:
    name = f"memory://produce-{random.getrandbits(48):x}"
    settings = Settings.from_env({}, **({"metadata_url": name, "objects_url": name} | overrides))
    broker = await Broker.open(settings, warm=False)
    try:
        cluster = ClusterView("test-cluster", Node(1, "127.0.0.1", 9092))
        yield Producing(broker, KafkaServices(broker, cluster, broker.topics))
    finally:
        await broker.close()


__all__ = ["BY_NAME", "LATEST", "Codec", "Producing", "batch", "now_ms", "producing", "request", "summed"]
