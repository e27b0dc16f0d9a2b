"""Fuzz target: requests of every API and version, from bytes through handler and broker to the bytes of the answer.

The broker has its stores in memory and a topic with records. A frame may be refused with `FormatError`; other errors,
an answer that cannot be encoded, and a handler that does not end are failures.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from typing import Any

from msgspec import Struct

from llog.errors import RequestRefused
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import Codec
from llog.kafka.apis.handler import Client
from llog.kafka.apis.handlers import handlers
from llog.kafka.codec import apis, decode, encode_bytes, request_header_version
from llog.kafka.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from llog.kafka.codec.messages.headers import RequestHeader
from llog.kafka.codec.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from llog.kafka.dispatch import Dispatcher, Request
from llog.kafka.services import KafkaServices
from tests.fuzz.fuzz_kafka import SEEDS as RANDOM_SEEDS
from tests.unit.kafka.serving import ServedKafka, serve

TOPIC = "fuzzed"
ID = b"the id of TOPIC!"
"""Stands for the topic's id, which differs from session to session."""
INPUTS_PER_SESSION = 20_000
"""Then the broker is replaced: some inputs create topics."""
TURNS_MAX = 200
"""Of the loop, for a long poll; then it is cancelled."""
SECONDS_MAX = 60
"""For any other handler."""


class Session:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()  # uvloop's takes longer to start and stop than a request
        self.inputs = 0
        self._serving = serve(batch_max_delay_ms=0, topic_partitions_max=16)
        self.kafka: ServedKafka = self.loop.run_until_complete(self._serving.__aenter__())
        services: KafkaServices = self.kafka.services
        self.dispatcher = Dispatcher(services, handlers())
        self.client = Client("127.0.0.1", 1, "127.0.0.1:9092")
        self.topic_id = self.loop.run_until_complete(self._topic_id())

    async def _topic_id(self) -> bytes:
        request = self.read(frame_of(CreateTopicsRequest([CreatableTopic(TOPIC, 4, 1)], 10_000), 7))
        answer = await self.answer(request)
        assert [topic.error_code for topic in answer.topics] == [0]
        return bytes(answer.topics[0].topic_id)

    def take(self, data: bytes) -> None:
        self.inputs += 1
        request = self.read(bytearray(data.replace(ID, self.topic_id)))
        self.loop.run_until_complete(self.answer(request))

    def read(self, frame: bytearray) -> Request:
        return self.dispatcher.read(frame, self.client, lambda: None, lambda _: True)

    async def answer(self, request: Request) -> Any:
        try:
            message = request.handle(request.call)
            if inspect.isawaitable(message):
                message = await self._settled(message, request.handler.ends_with_client)
        except RequestRefused:  # it wants no acknowledgement, so its connection ends
            return None
        if message is not None:
            assert isinstance(message, Struct)
            buffers = request.answer(message)
            assert sum(len(buffer) for buffer in buffers) == int.from_bytes(buffers[0][:4], "big") + 4
        return message

    async def _settled(self, awaitable: Any, is_poll: bool) -> Any:
        future = asyncio.ensure_future(awaitable)
        for _ in range(TURNS_MAX):
            if future.done():
                return future.result()
            await asyncio.sleep(0)
        if not is_poll:
            return await asyncio.wait_for(future, SECONDS_MAX)
        future.cancel()
        await asyncio.wait([future])
        return None

    def close(self) -> None:
        self.loop.run_until_complete(self._serving.__aexit__(None, None, None))
        self.loop.close()


_session: Session | None = None


def requests(data: bytes) -> None:
    """A frame as a connection cuts it out of its stream."""
    global _session
    if _session is not None and _session.inputs >= INPUTS_PER_SESSION:
        _session.close()
        _session = None
    if _session is None:
        _session = Session()
    _session.take(data)


requests.allocation_slack = 64 * 1024 * 1024  # type: ignore[attr-defined]  # some create topics, or a new broker


# -- seeds -------------------------------------------------------------------------------------------------------------


def frame_of(message: Struct, version: int) -> bytearray:
    name = type(message).__name__.removesuffix("Request")
    [key] = (key for key, api in apis().items() if api.name == name)
    header = encode_bytes(RequestHeader(key, version, 7, "client"), request_header_version(key, version))
    return bytearray(header + encode_bytes(message, version))


def _named(rng: random.Random, value: Any) -> Any:
    """The message with the names and numbers of the topic that exists, mostly."""
    if isinstance(value, list):
        return [_named(rng, one) for one in value]
    if not isinstance(value, Struct):
        return value
    fields: dict[str, Any] = {}
    for field in value.__struct_fields__:
        old = getattr(value, field)
        if field in ("topic", "name", "resource_name") and rng.random() < 0.9:
            fields[field] = TOPIC
        elif field == "topic_id":
            fields[field] = ID
        elif field in ("partition", "index", "partition_index") and isinstance(old, int):
            fields[field] = rng.randrange(4)
        elif field in ("max_wait_ms", "session_id", "timeout_ms"):
            fields[field] = 0
        elif field == "fetch_offset":
            fields[field] = rng.randrange(-1, 3)
        elif field == "partitions" and old and isinstance(old[0], int):
            fields[field] = [rng.randrange(4) for _ in old]
        else:
            fields[field] = _named(rng, old)
    return type(value)(**fields)


def _real_seeds() -> list[bytes]:
    rng = random.Random(16)
    seeds: list[bytes] = []
    for seed in RANDOM_SEEDS["kafka_requests"]:
        key, version = int.from_bytes(seed[:2], "big"), int.from_bytes(seed[2:4], "big")
        handler = handlers().get(key)
        if handler is None or version not in handler.served:
            continue
        body = len(encode_bytes(RequestHeader(key, version, 7, "client"), request_header_version(key, version)))
        for _ in range(2):
            named = _named(rng, decode(apis()[key].request, version, seed, body))
            try:
                seeds.append(bytes(frame_of(named, version)))
            except Exception:  # this version has no such field
                seeds.append(seed)
    for version in range(3, 14):
        for codec in Codec:
            partitions = [PartitionProduceData(n, _batch(rng, codec)) for n in range(2)]
            topic = TopicProduceData(TOPIC if version < 13 else "", ID if version >= 13 else bytes(16), partitions)
            seeds.append(bytes(frame_of(ProduceRequest(None, rng.choice([-1, 1]), 1_000, [topic]), version)))
    return seeds


def _batch(rng: random.Random, codec: Codec) -> bytes:
    values: list[bytes | None] = [rng.randbytes(rng.randrange(100)) for _ in range(rng.randrange(1, 10))]
    return bytes(encode_records(values, timestamps_ms=1_700_000_000_000, codec=codec))


TARGETS = {"kafka_dispatch": requests}
SEEDS = {"kafka_dispatch": _real_seeds()}
