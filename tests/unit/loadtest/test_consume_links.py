"""What the raw engines send, and how they read what brokers answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from llog.kafka.codec import decode
from llog.kafka.codec.messages.fetch import FetchRequest
from llog.loadtest.artifacts import BrokerPlace
from llog.loadtest.client.consume.http_raw import HttpEngine
from llog.loadtest.client.consume.kafka_raw import FETCH_VERSION, fetch_body
from llog.loadtest.client.consume.link import Asking, BrokerRefuses, Link
from llog.loadtest.client.consume.places import UNKNOWN
from llog.loadtest.client.consume.scan import Scanner
from llog.loadtest.client.histograms import Latencies
from llog.loadtest.client.ledger import ReceivedLedger
from llog.loadtest.scenario.model import Consumers
from tests.unit.loadtest.consuming import DUE_US, RUN, VALUE_BYTES, places, value


def test_a_fetch_request_is_what_kafkas_codec_reads() -> None:
    topics, numbers, offsets = np.array([1, 0, 1]), np.array([7, 2, 300]), np.array([5, 2**40, 0])
    ids = [b"a" * 16, b"b" * 16]
    consumers = Consumers(max_wait_ms=250, min_bytes=2, max_bytes=5_000, partition_max_bytes=3_000)
    body = b"".join(fetch_body(np.arange(3), topics, numbers, offsets, ids, consumers))
    request = decode(FetchRequest, FETCH_VERSION, body)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (250, 2, 5_000)
    assert (request.session_id, request.session_epoch, request.rack_id) == (0, -1, "")
    named = [
        (topic.topic_id, [(one.partition, one.fetch_offset, one.partition_max_bytes) for one in topic.partitions])
        for topic in request.topics
    ]
    assert named == [(ids[1], [(7, 5, 3_000), (300, 0, 3_000)]), (ids[0], [(2, 2**40, 3_000)])]
    assert {one.current_leader_epoch for topic in request.topics for one in topic.partitions} == {-1}


class HttpBroker:
    """Answers `/consume` with prepared results; keeps what it was asked."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.asked: list[Any] = []
        self.topic: dict[str, Any] = {}
        self.status = 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                answer: dict[str, Any] = {"status": "ok"}
                if head.startswith(b"POST /consume"):
                    self.asked.append(json.loads(body))
                    answer = {"results": self.results, "success_count": 0, "error_count": 0}
                elif head.startswith(b"GET /topics/load "):
                    answer = self.topic
                text = json.dumps(answer, separators=(",", ":")).encode()
                writer.write(b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n%b" % (self.status, len(text), text))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def linked(broker: HttpBroker) -> AsyncIterator[tuple[Link, Asking]]:
    asking = Asking(("load",), Consumers(max_wait_ms=5, max_bytes=9_999), places(3), Scanner(RUN, VALUE_BYTES))
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        link = await HttpEngine().connect(BrokerPlace(0, "b", "both", f"http://{host}:{port}", "", 0), asking)
        try:
            yield link, asking
        finally:
            link.close()


def result(partition: int, **fields: Any) -> dict[str, Any]:
    return {"topic": "load", "partition": partition, "ok": True, "fetch_offset": 0, **fields}


async def test_http_asks_from_the_offsets_and_reads_every_result() -> None:
    broker = HttpBroker()
    async with linked(broker) as (link, asking):
        asking.places.offsets[:] = [1, 20, 300]
        records = [{"offset": 1 + n, "payload": value(0, n).decode()} for n in range(3)]
        broker.results = [
            result(0, high_watermark=8, next_fetch_offset=4, records=records),
            result(2, ok=False, high_watermark=7, log_start_offset=5, error_type="OffsetOutOfRange", error="no"),
            result(1, ok=False, error_type="StoreUnavailable", error="no"),
        ]
        read = await link.read(np.array([2, 0, 1]))
        [body] = broker.asked
        assert [(one["partition"], one["fetch_offset"]) for one in body["topic_partitions"]] == [
            (2, 300),
            (0, 1),
            (1, 20),
        ]
        assert (body["max_wait_ms"], body["max_bytes"]) == (5, 9_999)
        assert (read.rows.tolist(), read.next_offsets.tolist(), read.ends.tolist()) == ([0], [4], [9])
        assert (read.outside.tolist(), read.log_starts.tolist()) == ([2], [5])
        assert read.errors == {"StoreUnavailable": 1}
        assert asking.scanner.take(ReceivedLedger(), Latencies(), DUE_US) == 3


async def test_a_log_without_records_yet_is_no_error() -> None:
    broker = HttpBroker()
    broker.results = [result(0, ok=False, error_type="PartitionNotInitialized", error="no")]
    async with linked(broker) as (link, _):
        read = await link.read(np.array([0]))
        assert (read.rows.tolist(), read.next_offsets.tolist(), read.errors) == ([0], [0], {})


async def test_http_learns_the_ends_of_logs_and_empty_logs_end_where_they_begin() -> None:
    broker = HttpBroker()
    rows = [{"partition": 0, "log_start_offset": 1, "next_offset": 9}]
    rows += [{"partition": 1, "log_start_offset": 1, "next_offset": 1}]
    broker.topic = {"topic": "load", "partitions": rows}
    async with linked(broker) as (link, _):
        assert (await link.ends(np.arange(3))).tolist() == [9, 0, UNKNOWN]


async def test_an_answer_without_status_200_means_that_the_broker_refuses() -> None:
    broker = HttpBroker()
    async with linked(broker) as (link, _):
        broker.status = 503
        with pytest.raises(BrokerRefuses) as caught:
            await link.read(np.array([0]))
        assert caught.value.code == "/consume status 503"
