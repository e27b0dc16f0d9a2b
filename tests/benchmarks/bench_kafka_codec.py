"""The Kafka codec against kio on the same bytes: the messages that cost most on a broker.

Both sides only compute, so CPU seconds are compared: a round that loses the core for a while is judged alike.
"""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from kio.serial import entity_reader, entity_writer

from llog.kafka.codec import decode, encode, encode_bytes
from llog.kafka.codec.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from llog.kafka.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from llog.kafka.codec.table import messages
from tests.benchmarks.harness import Cost, Duel, benchmark
from tests.unit.kafka.codec.kio_values import entity_class

PARTITIONS: Final = 16
RECORDS: Final = bytes(64 * 1024)
TOPIC_ID: Final = bytes(range(16))


def _repeated(call: Callable[[], Any], times: int) -> Callable[[], Cost]:
    def run() -> Cost:
        start = time.process_time()
        for _ in range(times):
            call()
        return Cost(time.process_time() - start)

    return run


def _kio_writer(message: msgspec.Struct, version: int) -> Callable[[], bytes]:
    """kio's way to write what our codec wrote; the bytes are the same."""
    entity_type = entity_class(messages()[type(message).__name__], version)
    entity, _ = entity_reader(entity_type)(encode_bytes(message, version), 0)
    write = entity_writer(entity_type)

    def written() -> bytes:
        buffer = io.BytesIO()
        write(buffer, entity)
        return buffer.getvalue()

    assert written() == encode_bytes(message, version)
    return written


@benchmark("kafka_produce_decode", against="kio's native reader (16 partitions of 64 KiB)", at_least=1.5)
@asynccontextmanager
async def kafka_produce_decode() -> AsyncIterator[Duel]:
    """Produce v12 as a broker receives it: ours leaves records in the frame, kio copies them."""
    version, repeat = 12, 1_000
    data = [PartitionProduceData(index=i, records=RECORDS) for i in range(PARTITIONS)]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData("orders", partition_data=data)])
    frame = bytearray(encode_bytes(request, version))
    view, data_of_kio = memoryview(frame), bytes(frame)
    read = entity_reader(entity_class(messages()["ProduceRequest"], version))
    ours = _repeated(lambda: decode(ProduceRequest, version, view), repeat)
    yield Duel(ours, _repeated(lambda: read(data_of_kio, 0), repeat), repeat, "requests", per="CPU-s")


@benchmark("kafka_fetch_encode", against="kio (16 partitions of 64 KiB)", at_least=4.0)
@asynccontextmanager
async def kafka_fetch_encode() -> AsyncIterator[Duel]:
    """An answer to Fetch v17 as a broker sends it: ours passes views of records on, kio copies them."""
    version, repeat = 17, 200
    partitions = [
        PartitionData(i, 0, 10**9, 10**9, 0, aborted_transactions=None, records=memoryview(RECORDS))
        for i in range(PARTITIONS)
    ]
    answer = FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)])
    ours = _repeated(lambda: encode(answer, version), repeat)
    yield Duel(ours, _repeated(_kio_writer(answer, version), repeat), repeat, "answers", per="CPU-s")


@benchmark("kafka_metadata_encode", against="kio (1,000 partitions)", at_least=4.0)
@asynccontextmanager
async def kafka_metadata_encode() -> AsyncIterator[Duel]:
    version, repeat = 12, 20
    partitions = [
        MetadataResponsePartition(
            partition_index=i, leader_id=i % 3, leader_epoch=0, replica_nodes=[i % 3], isr_nodes=[i % 3]
        )
        for i in range(1_000)
    ]
    answer = MetadataResponse(
        brokers=[MetadataResponseBroker(i, f"10.0.0.{i}", 9092) for i in range(3)],
        cluster_id="cluster",
        controller_id=1,
        topics=[MetadataResponseTopic(name="orders", topic_id=TOPIC_ID, partitions=partitions)],
    )
    ours = _repeated(lambda: encode(answer, version), repeat)
    yield Duel(ours, _repeated(_kio_writer(answer, version), repeat), repeat, "answers", per="CPU-s")
