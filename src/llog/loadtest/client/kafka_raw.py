"""The raw Kafka engine: prepared Produce frames, and of their answers the error codes.

A frame holds one batch of format 2 for each partition. For each sending the engine writes partitions, topic id, times,
producer fields and stamps into it and computes the checksums. With compression, batches are made anew each time.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from llog.errors import LoadTestError
from llog.formats.buffers import crc32c
from llog.formats.records.compression import compress
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import CRC_START, HEADER_BYTES, PREFIX_BYTES, Codec
from llog.kafka.codec import decode, encode_bytes, request_header_version
from llog.kafka.codec.messages.headers import RequestHeader
from llog.kafka.codec.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from llog.kafka.error_codes import ErrorCode
from llog.loadtest.client.stamp import DIGITS, Longs, Octets, parse_stamps, stamp_places, write_stamps
from llog.loadtest.client.wire import (
    ACCEPTED,
    BINARY,
    Connecting,
    Frame,
    FramePool,
    Identity,
    Outcome,
    Request,
    Stream,
    Verdict,
    gravest,
    key_digits,
    places,
    prepared_values,
)
from llog.loadtest.scenario.model import Records

PRODUCE_VERSION: Final = 13
METADATA_VERSION: Final = 12
INIT_PRODUCER_ID_VERSION: Final = 4
PRODUCE_KEY, METADATA_KEY, INIT_PRODUCER_ID_KEY = 0, 3, 22
CLIENT_ID: Final = "llog-loadtest"

_SIZE: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = CRC_START - _CRC.size
_FIELDS: Final = struct.Struct(">qqqhi")
"""Of a batch: first and last timestamp, producer id, epoch, first sequence."""
_FIELDS_AT: Final = 27
_LENGTH_AND_MORE: Final = struct.Struct(">iibIh")
"""Of a batch behind its base offset: length, leader epoch, format, checksum, attributes."""
_LENGTH_AT: Final = 8
_ANSWER_BODY: Final = 9
"""Size, correlation id and an empty set of tagged fields precede the message."""
_NO_RUN: Final = "0" * 8
_TOPIC_ID: Final = b"topic id is here"

_VERDICTS: Final = {
    **dict.fromkeys((ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER), Verdict.ACCEPTED),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.EARLIER_MISSING,
    **dict.fromkeys(
        (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.UNKNOWN_PRODUCER_ID,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.PRODUCER_FENCED,
        ),
        Verdict.FORGOTTEN,
    ),
    **dict.fromkeys(
        (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.BROKER_NOT_AVAILABLE,
            ErrorCode.REPLICA_NOT_AVAILABLE,
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ),
        Verdict.RETRY,
    ),
}


class _Shape(NamedTuple):
    partitions: int
    batch_records: int


class _Layout(NamedTuple):
    content: bytes
    stamps: Longs
    keys: Longs
    topic_id_at: int
    partitions: Longs
    """Places of the partition numbers, a row for each batch."""
    fields: Longs
    """Places of the producer fields and times, a row for each batch."""
    batches: list[tuple[int, int]]
    """Begin and end of each batch."""


class KafkaWire:
    def __init__(self, run: str, records: Records, topics: list[str], timeout_s: float) -> None:
        self._run, self._records, self._topics = run, records, topics
        self._timeout_ms = round(timeout_s * 1_000)
        self._codec = Codec[records.compression.upper()]
        self._topic_ids: list[bytes] = []
        self._layouts: dict[_Shape, _Layout] = {}
        self._pool = FramePool(self._new_frame)

    def frame(self, stream: Stream) -> Frame:
        return self._pool.take(_Shape(len(stream.plan.group.partitions), stream.plan.batch_records))

    def give_back(self, frame: Frame) -> None:
        self._pool.give_back(frame)

    def fill(self, request: Request, producer: int) -> None:
        stream, frame = request.stream, request.frame
        body, memory, layout = frame.body, memoryview(frame.memory), self._layouts[frame.shape]
        topic_id, timestamp_ms = self._topic_ids[stream.plan.group.topic], int(request.due_s * 1_000)
        memory[layout.topic_id_at : layout.topic_id_at + len(topic_id)] = topic_id
        body[layout.partitions] = _big_endian(stream.partitions)
        fields = _FIELDS.pack(timestamp_ms, timestamp_ms, *request.identity, request.broker_sequence)
        body[layout.fields] = np.frombuffer(fields, np.uint8)
        if len(layout.keys):
            body[layout.keys] = key_digits(self._records.keys, len(layout.keys))
        write_stamps(
            body,
            layout.stamps,
            self._run,
            producer,
            stream.plan.group.topic,
            stream.partitions,
            request.sequence,
            round(request.due_s * 1e6),
        )
        if self._codec is not Codec.NONE:
            batches = [_compressed(memory[begin:end], self._codec) for begin, end in layout.batches]
            request.data = _produce_frame(topic_id, stream.plan.group.partitions, batches, self._timeout_ms)
            return
        for begin, end in layout.batches:
            _CRC.pack_into(memory, begin + _CRC_AT, crc32c(memory[begin + CRC_START : end]))

    def measure(self, data: bytearray) -> tuple[int, int] | None:
        if len(data) < _SIZE.size:
            return None
        [size] = _SIZE.unpack_from(data)
        if size < _ANSWER_BODY - _SIZE.size:
            raise LoadTestError(f"a Kafka answer of {size} bytes")
        return _ANSWER_BODY, _SIZE.size + size

    def outcome(self, data: bytearray, begin: int, end: int) -> Outcome:
        message = decode(ProduceResponse, PRODUCE_VERSION, bytes(data[begin:end]))
        codes = {partition.error_code for topic in message.responses for partition in topic.partition_responses}
        return gravest(map(_outcome, codes))

    async def prepare(self, connection: Connecting) -> None:
        wanted = [MetadataRequestTopic(name=name) for name in self._topics]
        request = MetadataRequest(wanted, allow_auto_topic_creation=False)
        message = decode(
            MetadataResponse,
            METADATA_VERSION,
            await connection.ask(_frame(METADATA_KEY, METADATA_VERSION, encode_bytes(request, METADATA_VERSION))),
        )
        ids = {topic.name: topic.topic_id for topic in message.topics if not topic.error_code}
        for name in self._topics:
            if name not in ids:
                raise LoadTestError(f"topic {name!r} does not exist; `llog loadtest precreate` creates it")
        self._topic_ids = [bytes(ids[name]) for name in self._topics]

    async def identify(self, connection: Connecting) -> Identity:
        version = INIT_PRODUCER_ID_VERSION
        request = encode_bytes(InitProducerIdRequest(transactional_id=None), version)
        answer = await connection.ask(_frame(INIT_PRODUCER_ID_KEY, version, request))
        message = decode(InitProducerIdResponse, version, answer)
        if message.error_code:
            raise ConnectionError(f"no producer id: {_name(message.error_code)}")
        return Identity(message.producer_id, message.producer_epoch)

    async def probe(self, connection: Connecting) -> None:
        request = MetadataRequest([], allow_auto_topic_creation=False)
        await connection.ask(_frame(METADATA_KEY, METADATA_VERSION, encode_bytes(request, METADATA_VERSION)))

    def _new_frame(self, shape: _Shape) -> Frame:
        layout = self._layouts.get(shape)
        if layout is None:
            layout = self._layouts[shape] = _layout(shape, self._records, self._timeout_ms)
        return Frame(shape, layout.content)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _outcome(code: int) -> Outcome:
    name = _name(code)
    verdict = _VERDICTS.get(ErrorCode[name], Verdict.REFUSED) if name in ErrorCode.__members__ else Verdict.REFUSED
    return ACCEPTED if verdict is Verdict.ACCEPTED else Outcome(verdict, name)


def _big_endian(numbers: Longs) -> Octets:
    return numbers.astype(">i4").view(np.uint8).reshape(-1, 4)


def _frame(key: int, version: int, body: bytes) -> bytes:
    head = encode_bytes(RequestHeader(key, version, 0, CLIENT_ID), request_header_version(key, version))
    return _SIZE.pack(len(head) + len(body)) + head + body


def _produce_frame(topic_id: bytes, partitions: tuple[int, ...], batches: list[bytes], timeout_ms: int) -> bytes:
    data = [PartitionProduceData(number, batch) for number, batch in zip(partitions, batches, strict=True)]
    topic = TopicProduceData(topic_id=topic_id, partition_data=data)
    request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic])
    return _frame(PRODUCE_KEY, PRODUCE_VERSION, encode_bytes(request, PRODUCE_VERSION))


def _compressed(batch: memoryview, codec: Codec) -> bytes:
    """An uncompressed batch, compressed. Its checksum is computed here."""
    packed = bytearray(batch[:HEADER_BYTES]) + compress(codec, batch[HEADER_BYTES:])
    _, leader_epoch, magic, _, attributes = _LENGTH_AND_MORE.unpack_from(packed, _LENGTH_AT)
    fields = (len(packed) - PREFIX_BYTES, leader_epoch, magic, 0, attributes | codec)
    _LENGTH_AND_MORE.pack_into(packed, _LENGTH_AT, *fields)
    _CRC.pack_into(packed, _CRC_AT, crc32c(memoryview(packed)[CRC_START:]))
    return bytes(packed)


def _layout(shape: _Shape, records: Records, timeout_ms: int) -> _Layout:
    values = prepared_values(records, shape.batch_records, BINARY)
    keys = [b"0" * DIGITS] * len(values) if records.keys else None
    batch = bytes(encode_records([*values], keys=keys, timestamps_ms=0))
    content = _produce_frame(_TOPIC_ID, tuple(range(shape.partitions)), [batch] * shape.partitions, timeout_ms)
    begins: list[int] = []
    at = content.index(_TOPIC_ID)
    while len(begins) < shape.partitions:
        at = content.index(batch, at)
        begins.append(at)
        at += len(batch)
    starts = np.array(begins, np.int64)
    # A compact length, one more than the batch's, is between the partition's number and the batch.
    number_distance = 4 + ((len(batch) + 1).bit_length() + 6) // 7
    positions = parse_stamps(content, _NO_RUN).position
    # The value's length, a zigzag varint, is between key and value.
    key_distance = DIGITS + ((records.bytes << 1).bit_length() + 6) // 7
    return _Layout(
        content,
        stamp_places(positions),
        places(positions - key_distance if records.keys else positions[:0], DIGITS),
        content.index(_TOPIC_ID),
        places(starts - number_distance, 4),
        places(starts + _FIELDS_AT, _FIELDS.size),
        [(begin, begin + len(batch)) for begin in begins],
    )
