"""Memory of frames and answers: bounded, and never held by those who do not send or do not read."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from llog.kafka.apis.handler import Call
from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.fetch import FetchResponse
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataResponse
from llog.kafka.codec.messages.produce import ProduceResponse
from llog.kafka.net import arrival, context, memory
from llog.kafka.net.arrival import Arrival
from llog.limits import KIB, MIB
from tests.kafka_client import ConnectionEnded, frame_of
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
from tests.unit.kafka.serving import ServedKafka, serve


@asynccontextmanager
async def stalled(kafka: ServedKafka, announced: int, sent: int, source: str = "127.0.0.2") -> AsyncIterator[Any]:
    """A connection that announces a Produce frame, sends a part of it, and no more."""
    _, writer = await asyncio.open_connection("127.0.0.1", kafka.server.port, local_addr=(source, 0))
    writer.write(struct.pack(">ihhi", announced, 0, PRODUCE_VERSION, 1) + bytes(sent))
    try:
        yield writer
    finally:
        writer.transport.abort()


def used(kafka: ServedKafka) -> tuple[int, int]:
    """Of the broker's pool and of the front end's."""
    return kafka.broker.pool.used, kafka.server.front_end.used


async def test_a_frame_holds_memory_until_its_answer_or_until_it_is_handed_on() -> None:
    appends, metadata = Held(ProduceResponse), Held(MetadataResponse)
    table = handlers(produce=appends.handle, metadata=metadata.handle)
    async with serve(handlers=table) as kafka, kafka.client() as client:
        answer = client.send(produce_of(b"x" * 500_000), PRODUCE_VERSION)
        other = client.send(MetadataRequest(), METADATA_VERSION)
        await until(lambda: metadata.calls)
        assert 500_000 < kafka.broker.pool.used < 520_000
        assert 4_000 < kafka.server.front_end.used < 6_000
        assert kafka.broker.pool.incomplete.used == 0
        appends.calls[0].release_frame()
        assert kafka.broker.pool.used == 0
        appends.calls[0].release_frame()
        metadata.answer(0)
        appends.answer(0)
        await asyncio.wait_for(asyncio.gather(answer, other), PATIENCE_SECONDS)
        assert used(kafka) == (0, 0)


async def test_a_frame_of_the_largest_size_fits_and_a_larger_one_does_not() -> None:
    def handle(call: Call) -> ProduceResponse:
        call.release_frame()
        assert call.services.broker.pool.try_take(call.frame_bytes + 10 * KIB), "its bytes are counted once"
        call.services.broker.pool.give(call.frame_bytes + 10 * KIB)
        return ProduceResponse()

    async with serve(handlers=handlers(produce=handle), batch_max_bytes=MIB, batch_max_buffer_bytes=4 * MIB) as kafka:
        async with kafka.client() as client:
            await client.ask(produce_of(bytes(MIB - 100)), PRODUCE_VERSION)
            with pytest.raises(ConnectionEnded):
                await client.ask(produce_of(bytes(MIB)), PRODUCE_VERSION)
        await until(lambda: used(kafka) == (0, 0))


async def test_what_clients_announce_costs_nothing() -> None:
    async with serve(handlers=handlers()) as kafka, AsyncExitStack() as stack:
        for number in range(20):
            await stack.enter_async_context(stalled(kafka, 100 * MIB, 10, f"127.0.0.{2 + number}"))
        await until(lambda: len(kafka.broker.pool.incomplete.client_bodies) == 20)
        assert kafka.broker.pool.used <= 20 * (memory.FRAME_PART_BYTES + memory.REQUEST_BYTES)
        async with kafka.client() as client:
            await client.ask(produce_of(bytes(8 * MIB)), PRODUCE_VERSION)


async def test_stalled_frames_at_the_limit_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold their share of the pool, which is less than all of it; then they are given up."""
    monkeypatch.setattr(context, "CONTENDED_MS", 50)
    async with serve(handlers=handlers(), batch_max_buffer_bytes=8 * MIB) as kafka, AsyncExitStack() as stack:
        for number in range(40):
            await stack.enter_async_context(stalled(kafka, 2 * MIB, 600_000, f"127.0.0.{2 + number}"))
        await until(lambda: kafka.broker.pool.room, "some wait for room already")
        assert kafka.broker.pool.used < 8 * MIB
        async with kafka.client() as client:
            await client.ask(ApiVersionsRequest("test", "1"), 3)
            await client.ask(produce_of(b"small"), PRODUCE_VERSION)
            await client.ask(produce_of(bytes(2 * MIB - 100)), PRODUCE_VERSION)
        await until(lambda: kafka.broker.metrics.snapshot()["kafka"]["refused"]["stalled"] > 10)
    assert used(kafka) == (0, 0)


async def test_a_frame_waits_for_memory_before_it_is_read_and_other_apis_do_not() -> None:
    appends = Held(ProduceResponse)
    async with serve(
        handlers=handlers(produce=appends.handle), batch_max_bytes=MIB, batch_max_buffer_bytes=4 * MIB
    ) as kafka:
        async with kafka.client() as client, kafka.client() as other:
            answers = [client.send(produce_of(bytes(900 * KIB)), PRODUCE_VERSION) for _ in range(5)]
            late = [other.send(produce_of(b"late"), PRODUCE_VERSION) for _ in range(2)]
            await until(lambda: len(kafka.broker.pool.room) >= 1)
            async with kafka.client() as third:
                await third.ask(ApiVersionsRequest("test", "1"), 3)
                await third.ask(MetadataRequest(), METADATA_VERSION)
            assert kafka.broker.pool.used <= 4 * MIB
            for number in range(7):
                await until(partial(appends.has_been_called, number + 1))
                assert kafka.broker.pool.used <= 4 * MIB
                appends.answer(number)
            await asyncio.wait_for(asyncio.gather(*answers, *late), PATIENCE_SECONDS)
        await until(lambda: used(kafka) == (0, 0))


async def test_a_frame_that_comes_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "FRAME_STALL_MS_MAX", 100)
    async with serve(handlers=handlers()) as kafka, kafka.client() as client:
        data = b"".join(frame_of(produce_of(bytes(300_000)), PRODUCE_VERSION))
        client.writer.write(data[:100_000])
        assert await client.ended()
        assert kafka.broker.metrics.snapshot()["kafka"]["refused"]["stalled"] == 1
        assert used(kafka) == (0, 0)


async def test_a_frame_that_stalls_behind_a_request_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the request is no sign of life."""
    monkeypatch.setattr(arrival, "FRAME_STALL_MS_MAX", 500)
    held = Held(MetadataResponse)
    async with serve(handlers=handlers(metadata=held.handle)) as kafka, kafka.client() as client:
        answer = client.send(MetadataRequest(), METADATA_VERSION)
        client.writer.write(b"".join(frame_of(produce_of(bytes(300_000)), PRODUCE_VERSION))[:100_000])
        await until(lambda: held.calls and kafka.broker.pool.incomplete.used)
        held.answer(0)
        await answer
        await until(client.reader.at_eof, seconds=20)
        assert kafka.broker.metrics.snapshot()["kafka"]["refused"]["stalled"] == 1


async def test_a_frame_that_comes_steadily_may_take_longer_than_the_grace() -> None:
    async with serve(handlers=handlers()) as kafka:
        now_ms, missing, ended = 0.0, 10_000_000, list[bool]()
        frame = Arrival(
            kafka.server.context,
            now_ms=lambda: now_ms,
            missing=lambda: missing,
            on_room=lambda: None,
            stalled=lambda: ended.append(True),
        )
        assert frame.admit(missing, 0, 0)
        grace_ms = arrival.FRAME_STALL_MS_MAX
        for _ in range(50):
            now_ms += grace_ms / 10
            missing -= grace_ms // 10 * arrival.FRAME_BYTES_PER_MS_MIN
            assert frame.patience_ms() == grace_ms
        now_ms += grace_ms / 2
        assert frame.patience_ms() == grace_ms / 2
        frame.give_up_if_stalled()
        missing -= arrival.CONTENDED_BYTES_MIN
        frame.give_up_if_stalled()
        assert not ended
        missing -= 1
        frame.give_up_if_stalled()
        assert ended, "too little came while others waited for room"
        now_ms += grace_ms
        assert frame.patience_ms() <= 0
        frame.give_up()
        assert used(kafka) == (0, 0)


async def test_a_frame_that_waited_too_long_for_memory_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "ROOM_WAIT_MS_MAX", 100)
    async with (
        serve(handlers=handlers(), batch_max_bytes=MIB, batch_max_buffer_bytes=4 * MIB) as kafka,
        kafka.client() as client,
    ):
        assert kafka.broker.pool.try_take(4 * MIB)
        client.send(produce_of(b"x"), PRODUCE_VERSION)
        await until(lambda: kafka.broker.metrics.snapshot()["kafka"]["refused"]["stalled"] == 1)
        assert not kafka.broker.pool.room


async def test_an_answer_holds_memory_until_its_client_has_taken_it() -> None:
    held = Held(FetchResponse)
    async with serve(handlers=handlers(fetch=held.handle), front_end_bytes_max=8 * MIB) as kafka:
        async with kafka.client() as client:
            answer = client.send(fetch_of(), FETCH_VERSION)
            await until(lambda: held.calls)
            hold = held.calls[0].hold
            assert hold(4 * MIB)
            assert not hold(4 * MIB), "more than answers may hold together"
            assert kafka.server.front_end.used > 4 * MIB
            held.answer(0)
            await answer
            await until(lambda: used(kafka) == (0, 0))
            client.send(fetch_of(), FETCH_VERSION)
            await until(lambda: len(held.calls) == 2)
            assert held.calls[1].hold(4 * MIB)
        await until(lambda: used(kafka) == (0, 0), "the client is gone")


async def test_answers_that_nobody_reads_hold_up_their_own_clients_only_while_there_is_room() -> None:
    def metadata(_: Call) -> MetadataResponse:
        return MetadataResponse(cluster_id="x" * 32_000)

    async with serve(handlers=handlers(metadata=metadata), front_end_bytes_max=64 * MIB) as kafka:
        async with kafka.client() as lazy, kafka.client() as client:
            frame = b"".join(frame_of(MetadataRequest(), METADATA_VERSION))
            lazy.writer.write(frame * 2_000)
            lazy.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(20):
                await client.ask(MetadataRequest(), METADATA_VERSION)
            assert kafka.server.front_end.used < 64 * MIB
        await until(lambda: used(kafka) == (0, 0))
