"""One request at a time: large answers, answers in pieces, and every way in which a broker can fail."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from llog.errors import InvalidField
from llog.loadtest.client.consume import connection as module
from llog.loadtest.client.consume.connection import Connection, Measure, measure_frame, measure_http
from tests.patience import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(serve: Serve, measure: Measure = measure_frame) -> AsyncIterator[Connection]:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        connection = await Connection.open(host, port, measure)
        try:
            yield connection
        finally:
            connection.close()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a number with a frame of as many bytes."""
    while size := await reader.read(4):
        writer.write(frame(b"z" * int.from_bytes(size, "big")))
        await writer.drain()


async def test_answers_of_any_size_arrive_whole_one_after_another() -> None:
    async with connected(echo) as connection:
        for size in (0, 1, module.FIRST_BYTES - 4, module.FIRST_BYTES - 3, 3_000_000, 5):
            answer, begin = await connection.ask([size.to_bytes(4, "big")], 10.0)
            assert bytes(answer[begin:]) == b"z" * size


async def test_an_answer_may_come_byte_by_byte() -> None:
    text = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with connected(serve, measure_http) as connection:
        answer, begin = await connection.ask([b"?"], 10.0)
        assert (bytes(answer), bytes(answer[begin:])) == (text, b"hello")


async def test_a_broker_that_closes_is_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(frame(b"hello")[:-1])

    async with connected(serve) as connection:
        with pytest.raises(ConnectionError):
            await connection.ask([b"?"], 10.0)
        with pytest.raises(ConnectionError):
            await connection.ask([b"?"], 10.0)
        assert not connection.is_open


async def test_a_silent_broker_is_left_after_the_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with connected(serve) as connection:
        with pytest.raises(TimeoutError):
            await connection.ask([b"?"], 0.01)
        assert not connection.is_open


@pytest.mark.parametrize(
    ("measure", "answer", "reason"),
    [
        (measure_frame, frame(b"hello") + b"x", "follow it"),
        (measure_frame, struct.pack(">i", -2), "-2 bytes"),
        (measure_frame, struct.pack(">i", 2**31 - 1), "more than"),
        (measure_http, b"HTTP/1.1 200 OK\r\n\r\n", "content-length"),
        (measure_http, b"x" * module.HEAD_BYTES_MAX, "head of more than"),
    ],
)
async def test_what_is_no_answer_is_an_error(measure: Measure, answer: bytes, reason: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await reader.read()

    async with connected(serve, measure) as connection:
        with pytest.raises(InvalidField, match=reason):
            await connection.ask([b"?"], 10.0)
        assert not connection.is_open


async def test_bytes_that_answer_no_request_close_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"early"))
        await reader.read()

    async with connected(serve) as connection:
        await until(lambda: not connection.is_open)
        with pytest.raises(ConnectionError):
            await connection.ask([b"?"], 10.0)
