"""Load for an HTTP server that costs the machine little: prepared requests over bare sockets, and a server's CPU meter.

Why it exists: clients and servers share the cores here, so a client that builds or parses JSON would measure itself.
Requests are made beforehand; of an answer only its head is looked at, and only as far as its length and status.
"""

from __future__ import annotations

import asyncio
import random
import re
import string
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
import psutil

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"


def post(path: str, content: object) -> bytes:
    """A whole request."""
    body = msgspec.json.encode(content)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def produce_request(topic: str, partitions: Sequence[int], records: int, record_bytes: int, seed: int) -> bytes:
    """Records of plain text, dealt out over the partitions."""
    letters = random.Random(seed).choices(string.ascii_letters + string.digits, k=record_bytes + records)
    text = "".join(letters)
    dealt: dict[int, list[str]] = {partition: [] for partition in partitions}
    for number in range(records):
        dealt[partitions[number % len(partitions)]].append(text[number : number + record_bytes])
    batches = [{"topic": topic, "partition": partition, "records": texts} for partition, texts in dealt.items()]
    return post("/produce", {"topic_partitions": batches})


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._keep = False
        self._head = b""
        self._left = -1
        self._parts: list[bytes] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection: {error}"))

    def ask(self, request: bytes, *, keep: bool = False) -> asyncio.Future[bytes]:
        """The body of the answer, or nothing of it when it is not to be kept; the status must be 200."""
        self._answer = asyncio.get_running_loop().create_future()
        self._keep, self._head, self._left, self._parts = keep, b"", -1, []
        self.transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            end = self._head.find(_HEAD_END)
            if end < 0:
                return
            length = _LENGTH.search(self._head, 0, end + 2)
            assert length is not None, self._head[:end]
            data, self._left = self._head[end + len(_HEAD_END) :], int(length.group(1))
        self._left -= len(data)
        if self._keep or not self._head.startswith(b"HTTP/1.1 200"):
            self._parts.append(data)
        if self._left == 0 and self._answer is not None and not self._answer.done():
            body = b"".join(self._parts)
            if self._head.startswith(b"HTTP/1.1 200"):
                self._answer.set_result(body)
            else:
                self._answer.set_exception(AssertionError(self._head[:100] + body[:500]))


class Client:
    """Several connections to one server (or to several, in turn)."""

    def __init__(self, urls: Sequence[str], connections: int) -> None:
        self._places = [(urlsplit(url).hostname or "", urlsplit(url).port or 80) for url in urls]
        self._count = connections
        self.connections: list[Connection] = []

    async def open(self) -> Client:
        loop = asyncio.get_running_loop()
        for number in range(self._count):
            host, port = self._places[number % len(self._places)]
            _, connection = await loop.create_connection(Connection, host, port)
            self.connections.append(connection)
        return self

    async def send_all(self, requests: Iterable[bytes]) -> None:
        """Each once, over whichever connection is free."""
        left = deque(requests)

        async def work(connection: Connection) -> None:
            while left:
                await connection.ask(left.popleft())

        async with asyncio.TaskGroup() as tasks:
            for connection in self.connections:
                tasks.create_task(work(connection))

    async def ask(self, request: bytes) -> Any:
        """The answer, decoded."""
        return msgspec.json.decode(await self.connections[0].ask(request, keep=True))

    def close(self) -> None:
        for connection in self.connections:
            connection.transport.close()


def cpu_seconds(pids: Iterable[int]) -> float:
    """What the threads of these processes and of their children have used so far, in user space and in the kernel.

    The scheduler counts nanoseconds; `/proc/PID/stat` counts ticks of 10 ms, a twentieth of a round.
    """
    nanoseconds = 0
    for pid in pids:
        for member in [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]:
            for thread in Path(f"/proc/{member}/task").iterdir():
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
