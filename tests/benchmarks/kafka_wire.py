"""Kafka requests over a bare blocking socket: frames made beforehand, and one request at a time for administration.

The same bytes go to every server that is measured. Frames carry batches without a producer id, so that they can be sent
again and again unchanged.
"""

from __future__ import annotations

import random
import socket
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from llog.formats.records.encode import encode_records
from llog.kafka.codec import apis, decode, encode_bytes, request_header_version
from llog.kafka.codec.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from llog.kafka.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from llog.kafka.codec.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from llog.kafka.codec.messages.headers import RequestHeader
from llog.kafka.codec.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

CLIENT_ID: Final = "bench"
TIMEOUT_MS: Final = 60_000
# The newest versions that both servers have: topics by id.
PRODUCE_VERSION: Final = 13
FETCH_VERSION: Final = 17
CREATE_VERSION: Final = 7
DELETE_VERSION: Final = 6
METADATA_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 6
PRODUCE_KEY, FETCH_KEY, LIST_OFFSETS_KEY, METADATA_KEY, CREATE_KEY, DELETE_KEY = 0, 1, 2, 3, 19, 20
LATEST: Final = -1
# What a Java consumer asks for.
FETCH_BYTES_MAX: Final = 50 << 20
PARTITION_BYTES_MAX: Final = 1 << 20
ANSWER_BODY: Final = 5
"""Correlation id and an empty set of tagged fields precede the message."""

_SIZE: Final = struct.Struct(">i")


def request_frame(key: int, version: int, message: msgspec.Struct, correlation_id: int = 0) -> bytes:
    """Size, header and message."""
    header = RequestHeader(key, version, correlation_id, CLIENT_ID)
    head, body = encode_bytes(header, request_header_version(key, version)), encode_bytes(message, version)
    return _SIZE.pack(len(head) + len(body)) + head + body


def record_batch(records: int, record_bytes: int, *, seed: int) -> bytes:
    """A batch of records that do not compress, stamped now (a broker may refuse other times)."""
    noise = random.Random(seed).randbytes(record_bytes + records)
    values: list[bytes | None] = [noise[number : number + record_bytes] for number in range(records)]
    return bytes(encode_records(values, timestamps_ms=time.time_ns() // 1_000_000))


def produce_frame(topic_id: bytes, batches: Mapping[int, bytes]) -> bytes:
    """One batch for each of these partitions, acks=all."""
    data = [PartitionProduceData(partition, batch) for partition, batch in batches.items()]
    request = ProduceRequest(
        acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=data)]
    )
    return request_frame(PRODUCE_KEY, PRODUCE_VERSION, request)


def fetch_frame(topic_id: bytes, offsets: Mapping[int, int]) -> bytes:
    partitions = [
        FetchPartition(partition, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX)
        for partition, offset in offsets.items()
    ]
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        topics=[FetchTopic(topic_id=topic_id, partitions=partitions)],
    )
    return request_frame(FETCH_KEY, FETCH_VERSION, request)


def check_produced(answer: memoryview | bytes) -> None:
    """Every partition took its batch."""
    message = decode(ProduceResponse, PRODUCE_VERSION, answer, ANSWER_BODY)
    for topic in message.responses:
        for partition in topic.partition_responses:
            assert not partition.error_code, f"partition {partition.index}: {partition}"


def fetched(answer: memoryview) -> dict[int, int]:
    """Bytes of records by partition."""
    message = decode(FetchResponse, FETCH_VERSION, answer, ANSWER_BODY)
    assert not message.error_code, message
    found: dict[int, int] = {}
    for topic in message.responses:
        for partition in topic.partitions:
            assert not partition.error_code, f"partition {partition.partition_index}: error {partition.error_code}"
            records = partition.records
            assert records is None or isinstance(records, bytes | memoryview)
            found[partition.partition_index] = len(records or b"")
    return found


class KafkaSocket:
    """One connection; answers come in the order of requests."""

    def __init__(self, port: int, *, memory_bytes: int = 1 << 20) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_MS / 1_000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._memory = bytearray(memory_bytes)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next answer behind its size; valid until the next call."""
        [size] = _SIZE.unpack(self._take(_SIZE.size))
        return self._take(size)

    def _take(self, count: int) -> memoryview:
        if count > len(self._memory):
            self._memory = bytearray(2 * count)
        view, taken = memoryview(self._memory)[:count], 0
        while taken < count:
            received = self._socket.recv_into(view[taken:])
            if not received:
                raise ConnectionError("the server closed the connection")
            taken += received
        return view

    def ask(self, key: int, version: int, message: msgspec.Struct) -> Any:
        self.send(request_frame(key, version, message))
        return decode(apis()[key].response, version, bytes(self.receive()), ANSWER_BODY)

    def create_topic(self, partitions: int, configs: Mapping[str, str] | None = None) -> tuple[str, bytes]:
        """A new name and its id."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        wanted = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name, partitions, 1, configs=wanted)
        answer = self.ask(CREATE_KEY, CREATE_VERSION, CreateTopicsRequest([topic], TIMEOUT_MS))
        [created] = answer.topics
        assert not created.error_code, created
        self._wait_led(name)
        return name, bytes(created.topic_id)

    def _wait_led(self, name: str) -> None:
        """Kafka answers before its broker knows the new topic, and knows it before it leads its partitions."""
        deadline = time.monotonic() + TIMEOUT_MS / 1_000
        while time.monotonic() < deadline:
            answer = self.ask(METADATA_KEY, METADATA_VERSION, MetadataRequest([MetadataRequestTopic(name=name)]))
            [topic] = answer.topics
            known = not topic.error_code and not any(partition.error_code for partition in topic.partitions)
            if known and self._is_led(name, len(topic.partitions)):
                return
            time.sleep(0.02)
        raise TimeoutError(f"{name} has no leaders")

    def _is_led(self, name: str, partitions: int) -> bool:
        wanted = [ListOffsetsPartition(number, timestamp=LATEST) for number in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name, wanted)])
        [topic] = self.ask(LIST_OFFSETS_KEY, LIST_OFFSETS_VERSION, request).topics
        return not any(partition.error_code for partition in topic.partitions)

    def delete_topics(self, names: Sequence[str]) -> None:
        wanted = [DeleteTopicState(name=name) for name in names]
        answer = self.ask(DELETE_KEY, DELETE_VERSION, DeleteTopicsRequest(topics=wanted, timeout_ms=TIMEOUT_MS))
        assert not any(deleted.error_code for deleted in answer.responses), answer

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
