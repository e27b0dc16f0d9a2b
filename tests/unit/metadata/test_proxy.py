"""The misbehaving proxy does what its switches say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from llog.testing.proxy import TcpProxy
from tests.patience import PATIENCE_SECONDS, until


class Echo:
    """A server that counts and returns what it hears."""

    def __init__(self) -> None:
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1_000):
                self.heard += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[TcpProxy]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def connect(proxy: TcpProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(10), PATIENCE_SECONDS) == b""
    except ConnectionError:
        return True


async def silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.readexactly(1), 0.1)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_in_order_both_ways(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    sent = b"".join(i.to_bytes(4, "big") for i in range(50_000))
    writer.write(sent)
    assert await asyncio.wait_for(reader.readexactly(len(sent)), PATIENCE_SECONDS) == sent
    writer.close()


async def test_dropped_replies_never_come_and_healing_cuts_their_connection(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    proxy.drop_replies = True
    writer.write(b"done")
    await until(lambda: echo.heard == b"done")
    assert await silent(reader)
    proxy.heal()
    assert await ended(reader)


async def test_dropped_requests_never_arrive(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    proxy.drop_requests = True
    writer.write(b"lost")
    assert await silent(reader)
    assert echo.heard == b""


async def test_stalled_bytes_go_on_after_healing(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    proxy.stall_requests = True
    writer.write(b"later")
    assert await silent(reader)
    assert echo.heard == b""
    proxy.heal()
    assert await asyncio.wait_for(reader.readexactly(5), PATIENCE_SECONDS) == b"later"


async def test_a_cut_ends_what_is_open_and_lets_new_connections_in(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"x")
    await asyncio.wait_for(reader.readexactly(1), PATIENCE_SECONDS)
    proxy.cut()
    assert await ended(reader)
    reader, writer = await connect(proxy)
    writer.write(b"y")
    assert await asyncio.wait_for(reader.readexactly(1), PATIENCE_SECONDS) == b"y"


async def test_refused_connections_end_at_once(proxy: TcpProxy) -> None:
    proxy.refuse = True
    reader, _ = await connect(proxy)
    assert await ended(reader)
    proxy.heal()
    reader, writer = await connect(proxy)
    writer.write(b"z")
    assert await asyncio.wait_for(reader.readexactly(1), PATIENCE_SECONDS) == b"z"


async def test_a_stopped_proxy_comes_back_on_the_same_port(proxy: TcpProxy) -> None:
    port = proxy.port
    await proxy.stop()
    with pytest.raises(ConnectionError):
        await connect(proxy)
    await proxy.start()
    assert proxy.port == port
    _, writer = await connect(proxy)
    writer.close()
