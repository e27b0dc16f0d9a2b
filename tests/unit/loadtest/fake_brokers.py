"""Small brokers for tests of the load generator: HTTP and Kafka, idempotent, with faults that a test chooses.

Brokers that share a `Store` are one cluster. `JumpingLoop` is an event loop whose clock jumps to the next timer when no
socket is ready, so that minutes of a schedule take as long as their work.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from llog.formats.records.decode import decode_records
from llog.formats.records.record_batch import parse_header
from llog.kafka.codec import answer_frame, apis, decode, read_request_head
from llog.kafka.codec.messages.init_producer_id import InitProducerIdResponse
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from llog.kafka.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from llog.kafka.error_codes import ErrorCode

_SIZE = struct.Struct(">i")
KERNEL_S = 0.0001
"""For the kernel to hand over what was sent to this process, before time jumps."""


class Batch(NamedTuple):
    topic: str
    partition: int
    producer_id: int
    epoch: int
    sequence: int
    keys: list[bytes | None]
    values: list[bytes]


class Store:
    """What a cluster has stored. Sequences decide as in llog: the next is stored, an earlier one was stored before."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.repeats = 0
        self._next: dict[tuple[int, str, int], int] = {}
        self._producer_ids = 0

    def append(self, batch: Batch) -> str:
        """The error type, empty if the batch is stored."""
        key = (batch.producer_id, batch.topic, batch.partition)
        expected = self._next.get(key, 0)
        if batch.sequence < expected:
            self.repeats += 1
            return ""
        if batch.sequence > expected:
            return "OutOfOrderSequence"
        self._next[key] = expected + len(batch.values)
        self.batches.append(batch)
        return ""

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids


class FakeBroker:
    """`await broker.pass_gate()` before an answer is where a test may hold it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.port = 0
        self.requests = 0
        self.refuses = False
        """Answers that it cannot take requests now."""
        self.loses_answers = 0
        """So many produce requests are stored, and the connection is closed instead of an answer."""
        self.drops_requests = 0
        """So many are neither stored nor answered."""
        self.pass_gate: Callable[[], Coroutine[Any, Any, None]] = _open_gate
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """It refuses connections, and its connections are lost."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (answer := await self._answer(reader)) is not None:
                await self.pass_gate()
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes | None:
        """None: close the connection."""
        raise NotImplementedError

    async def _lost(self, append: Callable[[], object]) -> bool:
        """Whether this request gets no answer."""
        self.requests += 1
        if self.drops_requests:
            self.drops_requests -= 1
            await asyncio.Event().wait()
        if self.loses_answers:
            self.loses_answers -= 1
            append()
            return True
        return False


class FakeHttpBroker(FakeBroker):
    async def _answer(self, reader: asyncio.StreamReader) -> bytes | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET /ready"):
            return _http(503, {"ready": False}) if self.refuses else _http(200, {"ready": True})
        length = int(head.lower().split("content-length:")[1].split()[0])
        request = json.loads(await reader.readexactly(length))
        if await self._lost(lambda: self._append(request)):
            return None
        if self.refuses:
            return _http(503, {"error_type": "BackPressureRejected", "error": "full", "request_id": "r"})
        errors = self._append(request)
        results = [{"ok": not error, **({"error_type": error} if error else {})} for error in errors]
        return _http(409 if any(errors) else 200, {"results": results})

    def _append(self, request: Any) -> list[str]:
        return [
            self.store.append(
                Batch(
                    batch["topic"],
                    batch["partition"],
                    batch["producer_id"],
                    batch["epoch"],
                    batch["sequence"],
                    [None if isinstance(record, str) else record["key"].encode() for record in batch["records"]],
                    [(r if isinstance(r, str) else r["payload"]).encode() for r in batch["records"]],
                )
            )
            for batch in request["topic_partitions"]
        ]


class FakeKafkaBroker(FakeBroker):
    async def _answer(self, reader: asyncio.StreamReader) -> bytes | None:
        frame = await reader.readexactly(_SIZE.unpack(await reader.readexactly(_SIZE.size))[0])
        head = read_request_head(frame)
        api, version = apis()[head.api_key], head.api_version
        message: Any = decode(api.request, version, frame, head.body)
        answer: Any
        if isinstance(message, ProduceRequest):
            if await self._lost(lambda: self._append(message)):
                return None
            answer = self._refusal(message) if self.refuses else self._append(message)
        elif isinstance(message, MetadataRequest):
            names = [topic.name for topic in message.topics or ()]
            answer = MetadataResponse(topics=[MetadataResponseTopic(0, name, topic_id(name or "")) for name in names])
        else:
            answer = InitProducerIdResponse(producer_id=self.store.new_producer_id())
        return b"".join(answer_frame(api, version, head.correlation_id, answer))

    def _append(self, message: ProduceRequest) -> ProduceResponse:
        return self._answered(message, lambda topic, index, data: self._store(topic, index, data))

    def _refusal(self, message: ProduceRequest) -> ProduceResponse:
        return self._answered(message, lambda topic, index, data: ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _answered(self, message: ProduceRequest, code: Callable[[str, int, Any], int]) -> ProduceResponse:
        topics = []
        for topic in message.topic_data:
            name = bytes(topic.topic_id).rstrip(b"\0").decode()
            answers = [
                PartitionProduceResponse(data.index, code(name, data.index, data.records))
                for data in topic.partition_data
            ]
            topics.append(TopicProduceResponse(topic_id=topic.topic_id, partition_responses=answers))
        return ProduceResponse(topics)

    def _store(self, topic: str, partition: int, data: Any) -> int:
        batch = read_batch(topic, partition, data)
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if self.store.append(batch) else ErrorCode.NONE


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def read_batch(topic: str, partition: int, data: Any) -> Batch:
    """Raises `FormatError` for a batch that is damaged."""
    header, columns = parse_header(data, 0, "batch"), decode_records(data, "batch")
    values = [value for value in columns.values.tolist() if value is not None]
    return Batch(
        topic, partition, header.producer_id, header.producer_epoch, header.base_sequence, columns.keys.tolist(), values
    )


def _http(status: int, content: Any) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


async def _open_gate() -> None:
    pass


@asynccontextmanager
async def serving(*brokers: FakeBroker) -> AsyncIterator[None]:
    for broker in brokers:
        await broker.start()
    try:
        yield
    finally:
        for broker in brokers:
            await broker.stop()


# -- time that jumps -----------------------------------------------------------------------------------------------


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000_000.0  # its smallest step is less than what the loop calls now

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)
        time.sleep(KERNEL_S)
        if not (ready := super().select(0)):
            self.now_s += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now_s


def run_jumping(work: Callable[[Callable[[], float]], Coroutine[Any, Any, None]]) -> None:
    """Run `work(now_s)` on a `JumpingLoop`."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop = runner.get_loop()
        runner.run(work(loop.time))
