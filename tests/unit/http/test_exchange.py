"""Bodies and answers over a real socket: in pieces, pipelined, after 100-continue, interrupted."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from llog.http.server import HttpServer
from llog.listener.http1 import Exchange
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.http.broker_double import BrokerDouble, batch, produce_body
from tests.unit.http.test_server import served

BODY = json.dumps(produce_body(batch("t", 0, *(f"{number}" * 40 for number in range(3_000))))).encode()


def head(length: str, *more: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"POST /produce HTTP/{version}", "host: x", length, *more, "", ""]).encode()


LENGTH = f"content-length: {len(BODY)}"


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(server.host, server.port)


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        received = await reader.readuntil(b"\r\n\r\n")
        [length] = [line for line in received.lower().split(b"\r\n") if line.startswith(b"content-length")]
        return received, await reader.readexactly(int(length.split(b":")[1]))


@pytest.mark.parametrize("piece", [1_000, 60_000, 10_000_000])
async def test_a_body_in_pieces_is_the_same_body(piece: int) -> None:
    broker = BrokerDouble()
    async with served(broker) as server:
        reader, writer = await connect(server)
        writer.write(head(LENGTH))
        for begin in range(0, len(BODY), piece):
            writer.write(BODY[begin : begin + piece])
            await writer.drain()
            await asyncio.sleep(0)
        shown, answer = await read_answer(reader)
        assert shown.startswith(b"HTTP/1.1 200")
        assert json.loads(answer)["results"][0]["count"] == 3_000
        await until(lambda: broker.pool.used == 0)
        writer.close()


async def test_a_body_of_unknown_length_is_read_to_its_end() -> None:
    broker = BrokerDouble()
    async with served(broker) as server:
        reader, writer = await connect(server)
        writer.write(head("transfer-encoding: chunked"))
        for begin in range(0, len(BODY), 50_000):
            piece = BODY[begin : begin + 50_000]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        _, answer = await read_answer(reader)
        assert json.loads(answer)["results"][0]["count"] == 3_000
        writer.close()


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with served(BrokerDouble()) as server:
        reader, writer = await connect(server)
        writer.write(head(LENGTH, "expect: 100-continue"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        received, _ = await read_answer(reader)
        assert received.startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize(("more", "version"), [(["connection: close"], "1.1"), ([], "1.0")])
async def test_a_connection_without_keep_alive_ends_with_its_answer(more: list[str], version: str) -> None:
    async with served(BrokerDouble()) as server:
        reader, writer = await connect(server)
        writer.write(head(LENGTH, *more, version=version) + BODY)
        answer, _ = await read_answer(reader)
        assert b"connection: close" in answer
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""
        writer.close()


async def test_large_requests_behind_each_other_are_answered_in_order() -> None:
    broker = BrokerDouble()
    async with served(broker) as server:
        reader, writer = await connect(server)
        writer.write((head(LENGTH) + BODY) * 5)
        starts = []
        for _ in range(5):
            _, answer = await read_answer(reader)
            starts.append(json.loads(answer)["results"][0]["start_offset"])
        assert starts == [1 + 3_000 * number for number in range(5)]
        writer.close()


async def test_the_body_of_a_refused_request_is_not_kept() -> None:
    broker = BrokerDouble()
    kept: weakref.WeakSet[Exchange] = weakref.WeakSet()
    make = Exchange.__init__

    def noted(exchange: Exchange, *arguments: Any) -> None:
        make(exchange, *arguments)
        kept.add(exchange)

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Exchange, "__init__", noted)
            async with served(broker) as server:
                for _ in range(5):
                    reader, writer = await connect(server)
                    writer.write(head(LENGTH).replace(b"/produce", b"/nowhere") + BODY[: len(BODY) // 2])
                    await read_answer(reader)
                    writer.close()
                    await writer.wait_closed()
                await until(lambda: len(broker.metrics.requests) == 5)
                # A reference cycle would keep each of them.
                await until(lambda: len(kept) <= 1)
    finally:
        gc.enable()


async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    broker = BrokerDouble()
    async with served(broker) as server:
        _, writer = await connect(server)
        writer.write(head(LENGTH) + BODY[: len(BODY) // 2])
        await until(lambda: len(BODY) // 2 <= broker.pool.used <= len(BODY))
        writer.close()
        await until(lambda: broker.pool.used == 0)
        await until(lambda: bool(broker.metrics.requests))
        assert broker.metrics.requests[-1][2] == 499


async def test_bodies_that_were_announced_and_do_not_come_keep_nobody_out() -> None:
    broker = BrokerDouble(pool_bytes=4 * len(BODY))
    async with served(broker) as server:
        writers = []
        for _ in range(17):
            _, writer = await connect(server)
            writer.write(head(LENGTH) + BODY[:1])
            writers.append(writer)
        await until(lambda: broker.pool.used > 0)
        reader, writer = await connect(server)
        writer.write(head("content-length: 2") + b"{}")
        received, _ = await read_answer(reader)
        assert received.startswith(b"HTTP/1.1 400"), "an empty request was read"
        assert broker.pool.used <= broker.pool.limit_bytes // 2
        small = json.dumps(produce_body(batch("t", 0, "a"))).encode()
        writer.write(head(f"content-length: {len(small)}") + small)
        received, _ = await read_answer(reader)
        assert received.startswith(b"HTTP/1.1 200")
        for one in [*writers, writer]:
            one.close()
        await until(lambda: broker.pool.used == 0)


async def test_a_body_as_large_as_the_pool_is_accepted_when_it_is_alone() -> None:
    broker = BrokerDouble(pool_bytes=2 * len(BODY))
    async with served(broker) as server:
        reader, writer = await connect(server)
        writer.write(head(LENGTH) + BODY)
        received, _ = await read_answer(reader)
        assert received.startswith(b"HTTP/1.1 200")
        writer.close()
