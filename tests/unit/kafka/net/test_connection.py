"""Connections of Kafka clients: order, slots, endings."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from functools import partial
from typing import Any

import pytest

from llog.errors import InvalidArgument
from llog.kafka.apis.handler import Call, Handler
from llog.kafka.codec import Buffer
from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.fetch import FetchResponse
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataResponse
from llog.kafka.codec.messages.produce import ProduceResponse
from llog.kafka.net import connection as connection_module
from llog.kafka.net.answers import AnswerQueue
from llog.kafka.net.connection import IN_FLIGHT_MAX
from tests.kafka_client import ConnectionEnded, frame_of, read_frame
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.kafka.net.doubles import (
    FETCH_VERSION,
    METADATA_VERSION,
    PRODUCE_VERSION,
    Held,
    fetch_of,
    handlers,
    produce_of,
)
from tests.unit.kafka.serving import serve


@pytest.mark.parametrize(("name_bytes", "writes"), [(10, 1), (40_000, 4)])
async def test_answers_that_are_ready_at_once_leave_together(
    name_bytes: int, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, written = Held(MetadataResponse), list[int]()
    add = AnswerQueue.add

    def counted(queue: AnswerQueue, buffers: list[Buffer], byte_length: int) -> None:
        written.append(byte_length)
        add(queue, buffers, byte_length)

    monkeypatch.setattr(AnswerQueue, "add", counted)
    async with serve(handlers=handlers(metadata=held.handle)) as kafka, kafka.client() as client:
        answers = [client.send(MetadataRequest(), METADATA_VERSION) for _ in range(8)]
        await until(lambda: len(held.calls) == 8, "all handlers have started")
        for number in range(8):
            held.answer(number, cluster_id=str(number) * name_bytes)
        assert [(await answer).cluster_id for answer in answers] == [str(number) * name_bytes for number in range(8)]
    assert len(written) == writes, "a write takes answers until it has 64 KiB"


async def test_a_client_learns_the_versions_of_every_api() -> None:
    async with serve() as kafka, kafka.client() as client:
        for version in range(5):
            answer = await client.ask(ApiVersionsRequest("test", "1.0"), version)
            assert answer.error_code == 0
            assert 18 in {api.api_key for api in answer.api_keys}


async def test_answers_leave_in_the_order_of_requests_whatever_is_ready_first() -> None:
    held = Held(MetadataResponse)
    async with serve(handlers=handlers(metadata=held.handle)) as kafka, kafka.client() as client:
        answers = [client.send(MetadataRequest(), METADATA_VERSION) for _ in range(10)]
        at_once = client.send(ApiVersionsRequest("test", "1"), 3)
        await until(lambda: len(held.calls) == 10, "all handlers have started")
        for number in (9, 3, 1, 5):
            held.answer(number, cluster_id=str(number))
        held.answer(0, cluster_id="0")
        assert (await answers[0]).cluster_id == "0"
        assert (await answers[1]).cluster_id == "1"
        assert not any(answer.done() for answer in answers[2:])
        for number in (8, 7, 6, 4, 2):
            assert not at_once.done()
            held.answer(number, cluster_id=str(number))
        assert [(await answer).cluster_id for answer in answers] == [str(number) for number in range(10)]
        assert (await at_once).error_code == 0


async def test_handlers_start_in_the_order_of_frames() -> None:
    order: list[int] = []

    async def slow(call: Call) -> ProduceResponse:
        await asyncio.sleep(0)
        return ProduceResponse()

    def handle(call: Call) -> Any:
        order.append(bytes(call.request.topic_data[0].partition_data[0].records)[0])
        return slow(call) if order[-1] % 2 else ProduceResponse()

    async with serve(handlers=handlers(produce=handle)) as kafka, kafka.client() as client:
        sizes = [100, 70_000, 100, 200_000, 10, 300_000, 64_000] * 4
        answers = [client.send(produce_of(bytes([n]) * size), PRODUCE_VERSION) for n, size in enumerate(sizes)]
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS)
    assert order == list(range(len(sizes)))


async def test_no_more_requests_are_in_flight_than_there_are_slots() -> None:
    held = Held(MetadataResponse)
    async with serve(handlers=handlers(metadata=held.handle)) as kafka, kafka.client() as client:
        answers = [client.send(MetadataRequest(), METADATA_VERSION) for _ in range(3 * IN_FLIGHT_MAX)]
        await until(lambda: len(held.calls) == IN_FLIGHT_MAX)
        async with kafka.client() as other:
            await other.ask(ApiVersionsRequest("test", "1"), 3)
        assert len(held.calls) == IN_FLIGHT_MAX
        for number in range(len(answers)):
            await until(partial(held.has_been_called, number + 1))
            assert len(held.calls) <= number + IN_FLIGHT_MAX
            held.answer(number)
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS)


async def test_a_client_with_many_small_requests_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FRAMES_PER_TURN", 2)
    handled: list[str | None] = []

    def handle(call: Call) -> MetadataResponse:
        handled.append(call.client_id)
        return MetadataResponse()

    async with (
        serve(handlers=handlers(metadata=handle)) as kafka,
        kafka.client(client_id="many") as many,
        kafka.client(client_id="few") as few,
    ):
        await few.ask(ApiVersionsRequest("test", "1"), 3)
        await many.ask(ApiVersionsRequest("test", "1"), 3)
        answers = [many.send(MetadataRequest(), METADATA_VERSION) for _ in range(200)]
        answers.append(few.send(MetadataRequest(), METADATA_VERSION))
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS)
    assert handled.index("few") < 190


async def test_a_request_that_wants_no_answer_gets_none() -> None:
    produced: list[int] = []

    def handle(call: Call) -> ProduceResponse | None:
        produced.append(call.request.acks)
        return None if call.request.acks == 0 else ProduceResponse()

    async with serve(handlers=handlers(produce=handle)) as kafka, kafka.client() as client:
        client.send(produce_of(b"1", acks=0), PRODUCE_VERSION, answered=False)
        await client.ask(produce_of(b"2"), PRODUCE_VERSION)
        client.send(produce_of(b"3", acks=0), PRODUCE_VERSION, answered=False)
        await client.ask(ApiVersionsRequest("test", "1"), 3)
    assert produced == [0, -1, 0]


async def test_bytes_behind_a_request_are_ignored() -> None:
    """librdkafka asks for the metadata of all topics with three bytes too many, and Kafka answers."""
    async with serve() as kafka, kafka.client() as client:
        size, *rest = frame_of(ApiVersionsRequest("test", "1.0"), 3)
        longer = (int.from_bytes(size, "big") + 3).to_bytes(4, "big")
        client.writer.writelines([longer, *rest, bytes(3)])
        answer = await read_frame(client.reader)
        assert answer[:6] == (1).to_bytes(4, "big") + bytes(2), "the correlation id, and no error"


async def test_requests_arrive_byte_by_byte() -> None:
    async with serve(handlers=handlers()) as kafka, kafka.client() as client:
        for message, version in [(MetadataRequest(), METADATA_VERSION), (produce_of(b"x" * 50), PRODUCE_VERSION)]:
            data = b"".join(frame_of(message, version))
            for byte in data:
                client.writer.write(bytes([byte]))
                await client.writer.drain()
            [size] = [int.from_bytes(await client.reader.readexactly(4), "big")]
            await client.reader.readexactly(size)


async def test_a_lost_connection_cancels_its_polls_and_not_its_appends() -> None:
    polls, appends = Held(FetchResponse), Held(ProduceResponse)
    table = handlers(fetch=polls.handle, produce=appends.handle)
    async with serve(handlers=table) as kafka:
        async with kafka.client() as client:
            for number in range(3):
                client.send(fetch_of(), FETCH_VERSION)
                client.send(produce_of(bytes([number]) * 1_000), PRODUCE_VERSION)
            await until(lambda: len(appends.answers) == 3)
            client.writer.transport.abort()
            await until(lambda: all(poll.cancelled() for poll in polls.answers))
        assert not any(append.done() for append in appends.answers)
        assert kafka.broker.pool.used > 3_000
        for number in range(3):
            appends.answer(number)
        await until(lambda: kafka.broker.pool.used == 0, "what the appends held is given back")


async def test_a_half_closed_connection_gets_its_answers_except_polls() -> None:
    polls, appends = Held(FetchResponse), Held(ProduceResponse)
    table = handlers(fetch=polls.handle, produce=appends.handle)
    async with serve(handlers=table) as kafka, kafka.client() as client:
        answer = client.send(produce_of(b"1"), PRODUCE_VERSION)
        poll = client.send(fetch_of(), FETCH_VERSION)
        await until(lambda: polls.answers)
        client.writer.write_eof()
        await until(lambda: polls.answers[0].cancelled())
        appends.answer(0)
        await asyncio.wait_for(answer, PATIENCE_SECONDS)
        with pytest.raises(ConnectionEnded):
            await asyncio.wait_for(poll, PATIENCE_SECONDS)


async def test_a_failing_handler_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    def handle(call: Call) -> Any:
        if call.client_id == "late":
            return asyncio.sleep(0, result=MetadataResponse(cluster_id=12))  # type: ignore[arg-type]
        raise {"bug": RuntimeError("a bug"), "error": InvalidArgument("topic", "no")}[str(call.client_id)]

    async with serve(handlers=handlers(metadata=handle)) as kafka, kafka.client() as other:
        await other.ask(ApiVersionsRequest("test", "1"), 3)
        for client_id, level in [("bug", logging.ERROR), ("error", logging.WARNING), ("late", logging.WARNING)]:
            caplog.clear()
            async with kafka.client(client_id=client_id) as client:
                before = client.send(ApiVersionsRequest("test", "1"), 3)
                failing = client.send(MetadataRequest(), METADATA_VERSION)
                assert (await before).error_code == 0, "earlier requests are answered"
                with pytest.raises(ConnectionEnded):
                    await failing
            [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert record.levelno == level
            assert bool(record.exc_info) is (level == logging.ERROR)
        await other.ask(ApiVersionsRequest("test", "1"), 3)
        assert kafka.broker.metrics.snapshot()["kafka"]["handler_failures"] == 3


async def test_views_of_records_survive_their_connection() -> None:
    views: list[memoryview] = []

    def handle(call: Call) -> ProduceResponse:
        views.append(call.request.topic_data[0].partition_data[0].records)
        return ProduceResponse()

    bodies = [bytes([number]) * size for number, size in enumerate([10, 60_000, 70_000, 10, 1_000_000, 10] * 3)]
    async with serve(handlers=handlers(produce=handle)) as kafka:
        async with kafka.client() as client:
            for body in bodies:
                client.send(produce_of(body), PRODUCE_VERSION)
            await client.ask(ApiVersionsRequest("test", "1"), 3)
        async with kafka.client() as client:
            await client.ask(produce_of(b"z" * 60_000), PRODUCE_VERSION)
    assert [bytes(view) for view in views[: len(bodies)]] == bodies


async def test_an_idle_connection_is_closed_and_one_that_waits_for_an_answer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "IDLE_MS_MAX", 200)
    held = Held(MetadataResponse)
    async with serve(handlers=handlers(metadata=held.handle)) as kafka, kafka.client() as waits, kafka.client() as idle:
        answer = waits.send(MetadataRequest(), METADATA_VERSION)
        assert await idle.ended()
        await asyncio.sleep(0.5)
        held.answer(0, cluster_id="late")
        assert (await answer).cluster_id == "late"
        await until(waits.reader.at_eof, "idle again")


async def test_a_client_that_does_not_read_gets_no_further_requests_handled() -> None:
    handled = 0

    def handle(call: Call) -> MetadataResponse:
        nonlocal handled
        handled += 1
        return MetadataResponse(cluster_id="x" * 30_000)

    async with serve(handlers=handlers(metadata=handle)) as kafka:
        connection = socket.create_connection(("127.0.0.1", kafka.server.port))
        connection.setblocking(False)
        frame = b"".join(frame_of(MetadataRequest(), METADATA_VERSION))
        loop, seen = asyncio.get_running_loop(), -1
        sending = asyncio.create_task(loop.sock_sendall(connection, frame * 2_000))
        while seen != handled or not handled:
            seen = handled
            await asyncio.sleep(0.3)
        assert handled < 1_000
        reading = asyncio.create_task(_read_all(connection, 2_000 * 30_000))
        await until(lambda: handled == 2_000, "the client reads, so its requests are handled")
        reading.cancel()
        sending.cancel()
        connection.close()


async def _read_all(connection: socket.socket, byte_length: int) -> None:
    loop = asyncio.get_running_loop()
    while byte_length > 0:
        byte_length -= len(await loop.sock_recv(connection, 1 << 20))


def test_every_handler_has_a_schema_for_what_it_serves() -> None:
    from llog.kafka.apis.handlers import handlers as all_handlers
    from llog.kafka.codec import apis

    for key, handler in all_handlers().items():
        assert isinstance(handler, Handler)
        assert handler.key == key
        assert handler.served.first in apis()[key].versions
        assert handler.served.last in apis()[key].versions
        if handler.advertised is not None:
            assert handler.advertised.first <= handler.served.first <= handler.served.last <= handler.advertised.last


async def test_a_connection_that_ended_is_freed_without_a_garbage_collection() -> None:
    def alive() -> int:
        # `isinstance` would ask weak proxies of other tests whose objects are gone.
        return sum(type(thing) is connection_module.KafkaConnection for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        async with serve() as kafka:
            for _ in range(5):
                async with kafka.client() as client:
                    await client.ask(ApiVersionsRequest("test", "1"), 3)
            await until(lambda: not alive(), "the connections are freed")
    finally:
        gc.enable()
