"""Produce over a socket: pipelined requests, large frames, requests without acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from llog.kafka.error_codes import ErrorCode
from llog.limits import MIB
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.admin import create_topic
from tests.kafka_client import ConnectionEnded
from tests.patience import PATIENCE_SECONDS
from tests.unit.kafka.producing import BY_NAME, batch, request
from tests.unit.kafka.serving import ServedKafka, serve


@pytest.fixture
async def kafka() -> AsyncIterator[ServedKafka]:
    async with serve() as served:
        config = {"max.message.bytes": str(32 * MIB)}
        await create_topic(served.broker.context, "orders", partitions=2, config=config, first_offset=0)
        yield served


async def contents(kafka: ServedKafka, partition: int = 0) -> list[bytes | None]:
    runs = [run async for run in iter_runs(kafka.broker.context, Log("orders", partition), 0)]
    return [record.payload for run in runs for record in run.records()]


async def test_pipelined_requests_are_appended_and_answered_in_order(kafka: ServedKafka) -> None:
    """The first one needs a look-up, and the large one is checked in a thread."""
    payloads = [b"first", b"large" * MIB, *(b"%d" % number for number in range(30))]
    async with kafka.client() as client:
        answers = [client.send(request(("orders", 0, batch(payload))), BY_NAME) for payload in payloads]
        found = [(await answer).responses[0].partition_responses[0] for answer in answers]
    assert [(one.error_code, one.base_offset) for one in found] == [(0, n) for n in range(len(payloads))]
    assert await contents(kafka) == payloads
    assert kafka.broker.pool.used == 0


async def test_records_without_acknowledgement_are_appended_and_the_connection_stays(kafka: ServedKafka) -> None:
    async with kafka.client() as client:
        await client.ask(request(("orders", 0, batch(b"known"))), BY_NAME)
        for number in range(3):
            client.send(request(("orders", 0, batch(b"%d" % number)), acks=0), BY_NAME, answered=False)
        answer = await client.ask(request(("orders", 0, batch(b"last"))), BY_NAME)
    assert answer.responses[0].partition_responses[0].base_offset == 4


async def test_a_fault_in_records_without_acknowledgement_closes_the_connection(kafka: ServedKafka) -> None:
    async with kafka.client() as client:
        with pytest.raises(ConnectionEnded):
            await client.ask(request(("missing", 0, batch(b"a")), acks=0), BY_NAME)


async def test_a_connection_that_ends_after_its_request_has_its_records_appended(kafka: ServedKafka) -> None:
    async with kafka.client() as client:
        client.send(request(("orders", 1, batch(b"a"))), BY_NAME)
        await client.writer.drain()
    async with kafka.client() as other, asyncio.timeout(PATIENCE_SECONDS):
        while b"a" not in await contents(kafka, 1):
            await other.ask(request(("orders", 1, batch(b"b"))), BY_NAME)
    assert (await contents(kafka, 1)).count(b"a") == 1


async def test_every_partition_of_a_request_has_its_own_outcome(kafka: ServedKafka) -> None:
    async with kafka.client() as client:
        asked = request(("orders", 0, batch(b"a")), ("orders", 7, batch(b"b")), ("nobody", 0, batch(b"c")))
        answer = await client.ask(asked, BY_NAME)
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
