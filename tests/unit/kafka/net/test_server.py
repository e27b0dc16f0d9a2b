"""The Kafka listener: TLS, limits, stops, metrics, log lines."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from llog.errors import ExposureRefused, SettingsError
from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.fetch import FetchableTopicResponse, FetchResponse
from llog.kafka.codec.messages.fetch import PartitionData as FetchedPartition
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataResponse
from llog.kafka.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.server import KafkaServer
from tests.certificates import make_certificate
from tests.kafka_client import ConnectionEnded
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


def page(kafka: ServedKafka) -> Any:
    return kafka.broker.metrics.snapshot()["kafka"]


async def test_requests_and_large_answers_over_tls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    records = bytes(range(256)) * 20_000

    def fetch(_: Any) -> FetchResponse:
        partition = FetchedPartition(records=[records[:3_000_000], memoryview(records)[3_000_000:]])
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[partition])])

    seen: list[bytes] = []

    def produce(call: Any) -> ProduceResponse:
        seen.append(bytes(call.request.topic_data[0].partition_data[0].records))
        return ProduceResponse()

    trust = ssl.create_default_context(cafile=cert)
    table = handlers(fetch=fetch, produce=produce)
    async with (
        serve(handlers=table, tls_cert_file=cert, tls_key_file=key) as kafka,
        kafka.client(tls=trust) as client,
    ):
        assert kafka.server.url.startswith("kafkas://")
        answers = [client.send(fetch_of(), FETCH_VERSION) for _ in range(3)]
        await client.ask(produce_of(records), PRODUCE_VERSION)
        for answer in answers:
            assert bytes((await answer).responses[0].partitions[0].records) == records
        assert seen == [records]


async def test_a_client_without_tls_is_refused_where_there_is_a_certificate(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    async with serve(tls_cert_file=cert, tls_key_file=key) as kafka, kafka.client() as client:
        with pytest.raises(ConnectionEnded):
            await client.ask(ApiVersionsRequest("test", "1"), 3)


async def test_more_connections_than_the_limit_are_refused_until_one_is_free() -> None:
    async with serve(connections_max=2) as kafka, kafka.client() as first:
        await first.ask(ApiVersionsRequest("test", "1"), 3)
        async with kafka.client() as second:
            await second.ask(ApiVersionsRequest("test", "1"), 3)
            async with kafka.client() as third:
                assert await third.ended()
            await first.ask(ApiVersionsRequest("test", "1"), 3)
            assert page(kafka)["refused"]["connections"] == 1
        await until(lambda: page(kafka)["connections"] == 1)
        async with kafka.client() as fourth:
            await fourth.ask(ApiVersionsRequest("test", "1"), 3)


async def test_a_stop_answers_what_is_in_flight_and_closes_idle_connections() -> None:
    appends = Held(ProduceResponse)
    table = handlers(produce=appends.handle)
    async with serve(handlers=table) as kafka, kafka.client() as busy, kafka.client() as idle:
        await idle.ask(ApiVersionsRequest("test", "1"), 3)
        answers = [busy.send(produce_of(b"x"), PRODUCE_VERSION) for _ in range(3)]
        await until(lambda: len(appends.answers) == 3)
        stopping = asyncio.create_task(kafka.server.stop())
        await until(idle.reader.at_eof)
        busy.send(produce_of(b"late"), PRODUCE_VERSION)
        for number in (2, 0, 1):
            assert not stopping.done()
            appends.answer(number)
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS)
        await asyncio.wait_for(stopping, PATIENCE_SECONDS)
        assert len(appends.calls) == 3, "nothing that came after the stop began was handled"


async def test_a_stop_ends_in_time_whatever_is_in_flight() -> None:
    polls = Held(FetchResponse)
    table = handlers(fetch=polls.handle)
    async with serve(handlers=table, http_stop_timeout_ms=100) as kafka, kafka.client() as client:
        answer = client.send(fetch_of(), FETCH_VERSION)
        await until(lambda: polls.answers)
        await asyncio.wait_for(kafka.server.stop(), PATIENCE_SECONDS)
        with pytest.raises(ConnectionEnded):
            await answer
        assert polls.answers[0].cancelled()


async def test_an_address_that_other_machines_reach_is_refused() -> None:
    async with serve() as kafka:
        server = KafkaServer(kafka.services, kafka.broker.settings, "0.0.0.0", 0)
        with pytest.raises(ExposureRefused, match="LLOG_INSECURE"):
            await server.start()
        taken = KafkaServer(kafka.services, kafka.broker.settings, "127.0.0.1", kafka.server.port)
        with pytest.raises(SettingsError, match=rf"LLOG_KAFKA_PORT=.{kafka.server.port}"):
            await taken.start()


async def test_requests_are_counted_by_api_and_first_error() -> None:
    def produce(call: Any) -> ProduceResponse:
        codes = [0, ErrorCode.NOT_LEADER_OR_FOLLOWER if call.client_id == "bad" else 0]
        partitions = [PartitionProduceResponse(index, code) for index, code in enumerate(codes)]
        return ProduceResponse(responses=[TopicProduceResponse("t", partition_responses=partitions)])

    async with serve(handlers=handlers(produce=produce)) as kafka:
        async with kafka.client() as good, kafka.client(client_id="bad") as bad:
            for _ in range(3):
                await good.ask(produce_of(b"x" * 1_000), PRODUCE_VERSION)
            await bad.ask(produce_of(b"x"), PRODUCE_VERSION)
            await bad.ask(MetadataRequest(), METADATA_VERSION)
        counts = page(kafka)
        assert counts["requests"]["Produce"] == {"NONE": 3, "NOT_LEADER_OR_FOLLOWER": 1}
        assert counts["requests"]["Metadata"] == {"NONE": 1}
        assert counts["request_seconds"]["Produce"]["count"] == 4
        assert 3_000 < counts["request_bytes"]["Produce"] < 4_000
        assert counts["response_bytes"]["Produce"] > 100


async def test_a_request_that_was_never_answered_is_counted_as_such() -> None:
    polls = Held(FetchResponse)
    async with serve(handlers=handlers(fetch=polls.handle)) as kafka:
        async with kafka.client() as client:
            client.send(fetch_of(), FETCH_VERSION)
            await until(lambda: polls.answers)
        await until(lambda: page(kafka).get("requests") == {"Fetch": {"NO_ANSWER": 1}})


async def test_log_lines_name_the_request_and_nothing_of_its_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "llog.kafka")
    async with serve(handlers=handlers(), log_requests="all") as kafka:
        async with kafka.client(client_id="app-1") as client:
            await client.ask(produce_of(b"secret"), PRODUCE_VERSION)
        async with kafka.client(client_id="new\nline") as client:
            await client.ask(MetadataRequest(), METADATA_VERSION)
    lines = [record.__dict__["llog"] for record in caplog.records if record.getMessage() == "request"]
    assert [(line["api"], line["version"], line["error"], line.get("client_id")) for line in lines] == [
        ("Produce", PRODUCE_VERSION, "NONE", "app-1"),
        ("Metadata", METADATA_VERSION, "NONE", None),
    ]
    assert "secret" not in caplog.text


async def test_a_line_identifies_the_connection_and_says_what_each_stage_took(caplog: pytest.LogCaptureFixture) -> None:
    ports = list[int]()

    def staged(call: Any) -> ProduceResponse:
        ports.append(call.client.port)
        call.timings = (1.0, 2.00049, 3.0)
        return ProduceResponse()

    def polled(call: Any) -> FetchResponse:
        call.wait_ms = 500
        return FetchResponse()

    caplog.set_level(logging.INFO, "llog.kafka")
    table = handlers(produce=staged, fetch=polled)
    async with serve(handlers=table, log_requests="all") as kafka, kafka.client(client_id="app-1") as client:
        await client.ask(produce_of(b""), PRODUCE_VERSION)
        await client.ask(fetch_of(), FETCH_VERSION)
    produced, fetched = (record.__dict__["llog"] for record in caplog.records if record.getMessage() == "request")
    assert (produced["client"], produced["client_port"], produced["client_id"]) == ("127.0.0.1", ports[0], "app-1")
    assert fetched["correlation_id"] != produced["correlation_id"]
    assert (produced["queue_ms"], produced["upload_ms"], produced["commit_ms"]) == (1.0, 2.0, 3.0)
    assert fetched["max_wait_ms"] == 500
    assert not {"queue_ms", "upload_ms", "commit_ms"} & fetched.keys()
    assert "max_wait_ms" not in produced


@pytest.mark.parametrize(("lines", "wait_ms", "logged"), [("errors", 0, 0), ("slow", 0, 1), ("slow", 60_000, 0)])
async def test_slow_requests_are_logged_and_long_polls_are_not_slow(
    lines: str, wait_ms: float, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(call: Any) -> MetadataResponse:
        call.wait_ms = wait_ms
        await asyncio.sleep(0.05)
        return MetadataResponse()

    caplog.set_level(logging.INFO, "llog.kafka")
    table = handlers(metadata=handle)
    async with serve(handlers=table, log_requests=lines, log_slow_ms=20) as kafka, kafka.client() as client:
        await client.ask(MetadataRequest(), METADATA_VERSION)
    assert len([record for record in caplog.records if record.getMessage() == "request"]) == logged
