"""Bytes that are no requests, versions that are not served, and what it costs their senders: the connection, only."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest

from llog.kafka.apis.handler import Handler
from llog.kafka.codec import Versions, decode
from llog.kafka.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from llog.kafka.codec.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataResponse
from llog.kafka.error_codes import ErrorCode
from tests.fuzz.fuzz_kafka import SEEDS
from tests.fuzz.run import mutate
from tests.kafka_client import ConnectionEnded, KafkaClient, frame_of
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.kafka.net.doubles import METADATA_VERSION, Held, handlers
from tests.unit.kafka.serving import ServedKafka, serve


def head(key: int, version: int, correlation_id: int = 1, client_id: bytes = b"\0\4test") -> bytes:
    return struct.pack(">hhi", key, version, correlation_id) + client_id


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


MALFORMED = {
    "a head that is cut off": sized(head(3, 12)[:9]),
    "a client id longer than its frame": sized(head(3, 12, client_id=b"\x7f\xff")),
    "a client id that is not UTF-8": sized(head(3, 1, client_id=b"\0\2\xff\xff") + bytes(8)),
    "a count that lies": sized(head(3, 1) + b"\x7f\xff\xff\xff"),
    "a negative count": sized(head(3, 1) + b"\xff\xff\xff\xfe"),
    "bytes behind the message": b"".join(frame_of(MetadataRequest(), 4)[1:]).join([b"\0\0\0\x18", b"\0"]),
    "tagged fields without end": sized(head(3, 12) + b"\xff\xff\xff\xff\xff"),
    "another protocol": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 4,
    "TLS": bytes.fromhex("16030100c6010000c20303") + bytes(200),
}
REFUSED = {
    "an API that does not exist": ("unsupported", sized(head(999, 0))),
    "an API that is not served": ("unsupported", sized(head(4, 0) + bytes(40))),
    "a negative API key": ("unsupported", sized(head(-1, 0))),
    "a version without a schema": ("unsupported", sized(head(0, 2) + bytes(20))),
    "a version of the future": ("unsupported", sized(head(3, 99) + bytes(20))),
    "a size of 0": ("size", struct.pack(">i", 0) + bytes(10)),
    "a negative size": ("size", struct.pack(">i", -5) + bytes(10)),
    "a size beyond the limit": ("size", struct.pack(">ih", 100 * 2**20 + 1, 0)),
    "a size beyond the limit of requests without records": ("size", struct.pack(">ih", 9 * 2**20, 3)),
}


async def refusals(kafka: ServedKafka) -> dict[str, int]:
    """Without those that did not happen."""
    counts: dict[str, int] = kafka.broker.metrics.snapshot()["kafka"]["refused"]
    return {reason: count for reason, count in counts.items() if count}


async def send_raw(client: KafkaClient, data: bytes) -> None:
    client.writer.write(data)
    await client.writer.drain()


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_bytes_that_are_no_request_end_their_connection_only(data: bytes) -> None:
    async with serve(handlers=handlers()) as kafka, kafka.client() as other, kafka.client() as client:
        await other.ask(ApiVersionsRequest("test", "1"), 3)
        await send_raw(client, data)
        assert await client.ended()
        assert sum((await refusals(kafka)).values()) == 1
        await other.ask(ApiVersionsRequest("test", "1"), 3)


@pytest.mark.parametrize(("reason", "data"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_answered_is_refused_and_counted(reason: str, data: bytes) -> None:
    async with serve(handlers=handlers()) as kafka, kafka.client() as client:
        await send_raw(client, data)
        assert await client.ended()
        assert await refusals(kafka) == {reason: 1}


async def test_requests_before_a_malformed_one_are_answered() -> None:
    held = Held(MetadataResponse)
    async with serve(handlers=handlers(metadata=held.handle)) as kafka, kafka.client() as client:
        answers = [client.send(MetadataRequest(), METADATA_VERSION) for _ in range(3)]
        await send_raw(client, MALFORMED["a count that lies"])
        behind = client.send(MetadataRequest(), METADATA_VERSION)
        await until(lambda: len(held.calls) == 3)
        for number in range(3):
            held.answer(number, cluster_id=str(number))
        assert [(await answer).cluster_id for answer in answers] == ["0", "1", "2"]
        with pytest.raises(ConnectionEnded):
            await behind
        assert len(held.calls) == 3


async def test_a_later_version_of_api_versions_is_answered_in_version_0() -> None:
    async with serve() as kafka, kafka.client() as client:
        await send_raw(client, sized(head(18, 40, 77) + b"\0\5what?"))
        frame = await client.reader.readexactly(int.from_bytes(await client.reader.readexactly(4), "big"))
        assert frame[:4] == (77).to_bytes(4, "big")
        answer = decode(ApiVersionsResponse, 0, frame, 4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert served[18] == (0, 4)
        again = await client.ask(ApiVersionsRequest("test", "1"), 4)
        assert {api.api_key: (api.min_version, api.max_version) for api in again.api_keys} == served


async def test_a_version_with_a_schema_that_is_not_served_gets_its_own_answer() -> None:
    def handle(_: Any) -> InitProducerIdResponse:
        raise AssertionError("not served")

    table = {22: Handler(key=22, handle=handle, versions=Versions(0, 4))}
    async with serve(handlers=table) as kafka, kafka.client() as client:
        answer = await client.ask(InitProducerIdRequest(), 5)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a" * 200 + "\n"])
async def test_a_client_whose_software_has_no_proper_name_is_told_so(name: str) -> None:
    async with serve() as kafka, kafka.client() as client:
        answer = await client.ask(ApiVersionsRequest(name, "1.0"), 3)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert (await client.ask(ApiVersionsRequest("llog-test", "1.0"), 3)).error_code == 0


async def test_mutated_frames_over_sockets_end_their_connections_and_nothing_else(rng: random.Random) -> None:
    """Frames of every API and version in random pieces, some mutated, over connections that come and go."""
    seeds = SEEDS["kafka_requests"]
    async with serve(batch_max_buffer_bytes=16 << 20) as kafka, kafka.client() as other:
        await other.ask(ApiVersionsRequest("test", "1"), 3)

        async def attack(number: int) -> None:
            own = random.Random(f"{rng.random()} {number}")
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", kafka.server.port)
                reading = asyncio.create_task(reader.read(-1))
                data = b"".join(
                    sized(mutate(own, seeds) if own.random() < 0.5 else own.choice(seeds)) for _ in range(5)
                )
                if own.random() < 0.2:
                    data = mutate(own, [data])
                try:
                    while data and not writer.is_closing():
                        piece = own.randint(1, len(data))
                        writer.write(data[:piece])
                        await writer.drain()
                        data = data[piece:]
                    if own.random() < 0.5:
                        writer.write_eof()
                except (ConnectionError, RuntimeError):
                    pass
                await asyncio.wait([reading], timeout=0.05)
                writer.transport.abort()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

        await asyncio.wait_for(asyncio.gather(*map(attack, range(10))), PATIENCE_SECONDS)
        assert (await other.ask(ApiVersionsRequest("test", "1"), 3)).error_code == 0
        page = kafka.broker.metrics.snapshot()["kafka"]
        assert page["handler_failures"] == 0
        assert page["refused"]["malformed"] > 0
        await until(lambda: kafka.broker.metrics.snapshot()["kafka"]["connections"] == 1)
