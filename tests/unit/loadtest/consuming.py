"""What tests of the consumers share: stamped records in batches, answers of brokers, and a driver's place to stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec, patch_offsets, walk
from llog.kafka.codec import encode_bytes
from llog.kafka.codec.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from llog.loadtest.client.consume.places import Place, Places
from llog.loadtest.client.stamp import run_hash, stamp

RUN: Final = run_hash("20260101T000000Z-test")
TOPIC_ID: Final = bytes(range(16))
VALUE_BYTES: Final = 128
DUE_US: Final = 1_750_000_000_000_000


def value(partition: int, sequence: int, *, producer: int = 3, topic: int = 0, run: str = RUN) -> bytes:
    return stamp(run, producer, topic, partition, sequence, DUE_US).ljust(VALUE_BYTES, b"x")


def batch(offset: int, values: Sequence[bytes], codec: Codec = Codec.NONE) -> bytes:
    encoded = bytearray(encode_records(values, keys=[b"key"] * len(values), timestamps_ms=5, codec=codec))
    patch_offsets(encoded, walk(encoded, "test"), offset, 0)
    return bytes(encoded)


def fetch_answer(partitions: Mapping[int, bytes], *, error: int = 0, high_watermark: int = 1_000) -> memoryview:
    """The body of a Fetch answer, version 13."""
    rows = [
        PartitionData(number, error, high_watermark, high_watermark, 7, records=records)
        for number, records in partitions.items()
    ]
    topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)]
    return memoryview(encode_bytes(FetchResponse(responses=topics), 13))


def places(count: int, readers: tuple[int, ...] = (0,)) -> Places:
    return Places([Place(0, partition, readers) for partition in range(count)], [count])
