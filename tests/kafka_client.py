"""A raw Kafka client: our own codec on a socket, so that tests can send any request in any version, pipelined.

async with KafkaClient.connected(server.port) as client:
    answer = await client.ask(MetadataRequest(topics=[]), version=12)
    first, second = client.send(one, 9), client.send(other, 9)      # both on their way
    await first, await second
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from msgspec import Struct

from llog.kafka.codec import Api, apis, decode, encode, request_header_version
from llog.kafka.codec.codec import encode_bytes
from llog.kafka.codec.messages.headers import RequestHeader
from tests.patience import PATIENCE_SECONDS

__all__ = ["ConnectionEnded", "KafkaClient", "api_of", "frame_of"]

_SIZE = struct.Struct(">i")


class ConnectionEnded(ConnectionError):
    """The broker closed the connection before it answered."""


@cache
def api_of(message: type[Struct]) -> Api:
    """The API of a request's class."""
    [api] = (api for api in apis().values() if api.name + "Request" == message.__name__)
    return api


def frame_of(message: Struct, version: int, correlation_id: int = 1, client_id: str | None = "test") -> list[Any]:
    """The buffers of a request's frame, its size in front."""
    api = api_of(type(message))
    header = RequestHeader(api.key, version, correlation_id, client_id)
    head = encode_bytes(header, request_header_version(api.key, version))
    body = encode(message, version)
    size = len(head) + sum(memoryview(part).nbytes for part in body)
    return [_SIZE.pack(size), head, *body]


class KafkaClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None) -> None:
        self.reader, self.writer, self.client_id = reader, writer, client_id
        self._waiting: deque[tuple[Api, int, int, asyncio.Future[Any]]] = deque()
        self._correlation_id = 0
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def connected(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        client_id: str | None = "test",
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[KafkaClient]:
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=1 << 20)
        client = cls(reader, writer, client_id)
        try:
            yield client
        finally:
            await client.close()

    async def close(self) -> None:
        self.writer.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass

    def send(self, message: Struct, version: int, *, answered: bool = True) -> asyncio.Future[Any]:
        """Send a request; the future of its answer. Not `answered`: the broker will send none, as for acks=0."""
        self._correlation_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if answered:
            self._waiting.append((api_of(type(message)), version, self._correlation_id, future))
        else:
            future.set_result(None)
        self.writer.writelines(frame_of(message, version, self._correlation_id, self.client_id))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        return future

    async def ask(self, message: Struct, version: int) -> Any:
        """The answer to a request; `ConnectionEnded` if there is none."""
        return await asyncio.wait_for(self.send(message, version), PATIENCE_SECONDS)

    async def ended(self) -> bool:
        """The broker has closed the connection, without sending anything more."""
        return await asyncio.wait_for(self.reader.read(1), PATIENCE_SECONDS) == b""

    async def _read(self) -> None:
        try:
            while True:
                frame = await read_frame(self.reader)
                api, version, correlation_id, future = self._waiting.popleft()
                [answered] = _SIZE.unpack_from(frame)
                assert answered == correlation_id, "answers come in the order of requests"
                position = _SIZE.size + api.response_header_version(version)  # no tagged fields in it
                try:
                    answer = decode(api.response, version, frame, position)
                except Exception as error:
                    if not future.done():
                        future.set_exception(error)
                else:
                    if not future.done():
                        future.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for *_, future in self._waiting:
                if not future.done():
                    future.set_exception(ConnectionEnded("the broker closed the connection"))
            self._waiting.clear()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame, without its size."""
    [size] = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return await reader.readexactly(size)
