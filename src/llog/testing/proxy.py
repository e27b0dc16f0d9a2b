"""A TCP proxy on loopback that fails on request, between a client and its server.

Fault tests need an answer that never comes, a connection that dies between request and reply, and a server that cannot
be reached; no server offers these. Bytes are forwarded in order or not at all. Every switch works on open and on later
connections, until `heal`. Nothing is buffered without a bound: a stalled side is not read.
"""

from __future__ import annotations

import asyncio
import re
from types import TracebackType
from typing import Final, Self

CHUNK_BYTES: Final = 64 * 1024
STALL_POLL_SECONDS: Final = 0.01
HEAD_BYTES_MAX: Final = 64 * 1024


class TcpProxy:
    """`async with TcpProxy("127.0.0.1", port) as proxy:` clients connect to `proxy.port`.

    - `drop_replies`, `drop_requests`: bytes of that direction are read and thrown away; a connection that lost bytes
      is never used again: `heal` cuts it.
    - `stall_replies`, `stall_requests`: bytes of that direction wait, and go on after `heal`.
    - `refuse`: new connections are closed at once.
    - `http_answer`: every HTTP request that begins from now on is read, gets these bytes, and its connection ends. A
      request begins with the first bytes from the client after bytes from the server.
    - `cut()`: every open connection is reset.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target_host, self.target_port = target_host, target_port
        self.drop_replies = self.drop_requests = False
        self.stall_replies = self.stall_requests = False
        self.refuse = False
        self.http_answer: bytes | None = None
        self.connections_seen = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._tainted: set[asyncio.StreamWriter] = set()
        self._answered: set[asyncio.StreamWriter] = set()
        """Clients whose last bytes came from the server: the next ones begin a request."""

    async def start(self) -> None:
        """Listen; after `stop`, on the same port again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and reset what is open: the server is unreachable."""
        if self._server is not None:
            self._server.close()
            self.heal()
            self.cut()
            self._server = None
            # One turn of the loop for each side of each connection to notice.
            await asyncio.sleep(0.05)

    def cut(self) -> None:
        for client, server in list(self._open.items()):
            _reset(client)
            _reset(server)

    def heal(self) -> None:
        self.drop_replies = self.drop_requests = self.refuse = False
        self.stall_replies = self.stall_requests = False
        self.http_answer = None
        for client in self._tainted & self._open.keys():
            _reset(client)
            _reset(self._open[client])
        self._tainted.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections_seen += 1
        if self.refuse:
            _reset(to_client)
            return
        try:
            from_server, to_server = await asyncio.open_connection(self.target_host, self.target_port)
        except OSError:
            _reset(to_client)
            return
        self._open[to_client] = to_server
        self._answered.add(to_client)
        try:
            await asyncio.gather(
                self._pump(from_client, to_server, to_client, replies=False),
                self._pump(from_server, to_client, to_client, replies=True),
            )
        finally:
            del self._open[to_client]
            self._tainted.discard(to_client)
            self._answered.discard(to_client)
            _reset(to_client)
            _reset(to_server)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        replies: bool,
    ) -> None:
        """Carry one direction until its source ends; then end the target's."""
        try:
            while chunk := await source.read(CHUNK_BYTES):
                while self.stall_replies if replies else self.stall_requests:  # noqa: ASYNC110
                    await asyncio.sleep(STALL_POLL_SECONDS)
                if self.drop_replies if replies else self.drop_requests:
                    self._tainted.add(client)
                    continue
                if replies:
                    self._answered.add(client)
                elif self.http_answer is not None and client in self._answered:
                    await _answer(chunk, source, client, self.http_answer)
                    break
                else:
                    self._answered.discard(client)
                target.write(chunk)
                await target.drain()
            if target.can_write_eof():
                target.write_eof()
        except OSError:
            # One side is gone: the other must not wait for it.
            _reset(target)


async def _answer(begun: bytes, source: asyncio.StreamReader, client: asyncio.StreamWriter, answer: bytes) -> None:
    """Read the rest of a request that began with these bytes, answer it, and end the connection."""
    while b"\r\n\r\n" not in begun and len(begun) < HEAD_BYTES_MAX:
        more = await source.read(CHUNK_BYTES)
        if not more:
            return
        begun += more
    head, _, body = begun.partition(b"\r\n\r\n")
    named = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
    left = (int(named[1]) if named else 0) - len(body)
    while left > 0 and (more := await source.read(CHUNK_BYTES)):
        left -= len(more)
    client.write(answer)
    await client.drain()
    client.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End at once, with a reset rather than a polite goodbye."""
    if not writer.transport.is_closing():
        writer.transport.abort()
