"""Fetch over Kafka without a client library: requests are columns of numbers, answers are scanned where they arrive.

A request names all partitions that the client reads from this broker, which may be thousands. Its entries have one
length in Fetch 13 (topics by id), so numpy writes offsets into all of them at once.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from llog.kafka.codec import Api, apis, decode, encode, request_header_version
from llog.kafka.codec.codec import encode_bytes
from llog.kafka.codec.messages.headers import RequestHeader
from llog.kafka.codec.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from llog.kafka.codec.runtime import varint
from llog.kafka.error_codes import ErrorCode
from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume.connection import Connection, measure_frame
from llog.loadtest.client.consume.link import Asking, BrokerRefuses, Link, Read
from llog.loadtest.client.consume.places import UNKNOWN, Longs
from llog.loadtest.scenario.model import Consumers

ANSWER_TIMEOUT_S: Final = 10.0
"""Beyond the wait that a request asks for; a paused broker is left after it."""
CLIENT_ID: Final = "llog-loadtest"
FETCH_VERSION: Final = 13
METADATA_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
LATEST: Final = -1
EARLIEST: Final = -2

_FETCH: Final = 1
_SIZE: Final = struct.Struct(">i")
_FETCH_HEAD: Final = struct.Struct(">iiiibii")
"""replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch."""
_ENTRY: Final = np.dtype(
    [
        ("partition", ">i4"),
        ("current_leader_epoch", ">i4"),
        ("fetch_offset", ">i8"),
        ("last_fetched_epoch", ">i4"),
        ("log_start_offset", ">i8"),
        ("partition_max_bytes", ">i4"),
        ("tags", "u1"),
    ]
)
_NO_FORGOTTEN_NO_RACK_NO_TAGS: Final = b"\x01\x01\x00"
_ANSWER_HEAD_BYTES: Final = 5
"""Correlation id and no tags."""
_LEAVE_BROKER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER})


class KafkaEngine:
    async def connect(self, broker: BrokerPlace, asking: Asking) -> Link:
        connection = await Connection.open(broker.kafka_host, broker.kafka_port, measure_frame)
        link = KafkaLink(connection, asking)
        try:
            await link.learn_topic_ids()
        except BaseException:
            link.close()
            raise
        return link


class KafkaLink:
    def __init__(self, connection: Connection, asking: Asking) -> None:
        self._connection, self._asking = connection, asking
        self._correlation_id = 0
        self._topic_ids: list[bytes] = []

    def close(self) -> None:
        self._connection.close()

    async def learn_topic_ids(self) -> None:
        topics = [MetadataRequestTopic(name=name) for name in self._asking.topics]
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        answer = await self._ask(request, METADATA_VERSION)
        ids = {topic.name: topic.topic_id for topic in answer.topics if topic.error_code == ErrorCode.NONE}
        absent = [name for name in self._asking.topics if name not in ids]
        if absent:
            raise BrokerRefuses("no such topic", absent[0])
        self._topic_ids = [ids[name] for name in self._asking.topics]

    async def read(self, rows: Longs) -> Read:
        places, consumers = self._asking.places, self._asking.consumers
        self._correlation_id += 1
        body = fetch_body(
            rows, places.topics[rows], places.numbers[rows], places.offsets[rows], self._topic_ids, consumers
        )
        request = [_head(_FETCH, FETCH_VERSION, self._correlation_id, sum(map(len, body))), *body]
        frame, begin = await self._connection.ask(request, consumers.max_wait_ms / 1_000 + ANSWER_TIMEOUT_S)
        fetched = self._asking.scanner.fetched(frame, begin + _ANSWER_HEAD_BYTES, places, b"".join(self._topic_ids))
        if fetched.error:
            raise BrokerRefuses(_name(fetched.error))
        failed = np.flatnonzero(fetched.errors)
        if not len(failed):
            nothing = failed.astype(np.int64)
            return Read(fetched.rows, fetched.next_offsets, fetched.high_watermarks, nothing, nothing, {})
        codes = Counter(fetched.errors[failed].tolist())
        for code in _LEAVE_BROKER & set(codes):
            raise BrokerRefuses(_name(code))
        sound, outside = fetched.errors == 0, fetched.errors == ErrorCode.OFFSET_OUT_OF_RANGE
        return Read(
            fetched.rows[sound],
            fetched.next_offsets[sound],
            fetched.high_watermarks[sound],
            fetched.rows[outside],
            fetched.log_starts[outside],
            {_name(code): count for code, count in codes.items() if code != ErrorCode.OFFSET_OUT_OF_RANGE},
        )

    async def ends(self, rows: Longs) -> Longs:
        latest, earliest = await self._offsets(rows, LATEST), await self._offsets(rows, EARLIEST)
        # An empty log is read to its end from the beginning, wherever its offsets begin.
        ends: Longs = np.where(latest == earliest, np.minimum(latest, 0), latest)
        return ends

    async def _offsets(self, rows: Longs, timestamp: int) -> Longs:
        places = self._asking.places
        wanted = list(zip(places.topics[rows].tolist(), places.numbers[rows].tolist(), strict=True))
        topics: dict[int, list[ListOffsetsPartition]] = {}
        for topic, number in wanted:
            topics.setdefault(topic, []).append(ListOffsetsPartition(number, timestamp=timestamp))
        named = [ListOffsetsTopic(self._asking.topics[topic], asked) for topic, asked in topics.items()]
        answer = await self._ask(ListOffsetsRequest(-1, topics=named), LIST_OFFSETS_VERSION)
        offsets = {
            (topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code == ErrorCode.NONE
        }
        return np.array([offsets.get((self._asking.topics[topic], number), UNKNOWN) for topic, number in wanted])

    async def _ask(self, request: Struct, version: int) -> Any:
        api = _api_of(request)
        self._correlation_id += 1
        body = encode(request, version)
        head = _head(api.key, version, self._correlation_id, sum(memoryview(part).nbytes for part in body))
        frame, begin = await self._connection.ask([head, *body], ANSWER_TIMEOUT_S)
        at = begin + _SIZE.size + api.response_header_version(version)  # no tagged fields in it
        return decode(api.response, version, bytes(frame[at:]))


def fetch_body(
    rows: Longs, topics: Longs, numbers: Longs, offsets: Longs, topic_ids: Sequence[bytes], consumers: Consumers
) -> list[bytes]:
    """The body of a Fetch request (version 13) for these partitions, in their order within each topic; topics are in
    the order of their first partitions."""
    head = _FETCH_HEAD.pack(-1, consumers.max_wait_ms, consumers.min_bytes, consumers.max_bytes, 0, 0, -1)
    entries = np.zeros(len(rows), _ENTRY)
    entries["partition"], entries["fetch_offset"] = numbers, offsets
    entries["current_leader_epoch"] = entries["last_fetched_epoch"] = entries["log_start_offset"] = -1
    entries["partition_max_bytes"] = consumers.partition_max_bytes
    found, firsts = np.unique(topics, return_index=True)
    ordered = found[np.argsort(firsts)].tolist()
    parts = [head, varint(len(ordered) + 1)]
    for topic in ordered:
        own = entries[topics == topic] if len(ordered) > 1 else entries
        parts += [topic_ids[topic], varint(len(own) + 1), own.tobytes(), b"\x00"]
    return [*parts, _NO_FORGOTTEN_NO_RACK_NO_TAGS]


def _head(key: int, version: int, correlation_id: int, body_bytes: int) -> bytes:
    head = encode_bytes(RequestHeader(key, version, correlation_id, CLIENT_ID), request_header_version(key, version))
    return _SIZE.pack(len(head) + body_bytes) + head


def _api_of(request: Struct) -> Api:
    [api] = (api for api in apis().values() if api.name + "Request" == type(request).__name__)
    return api


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
