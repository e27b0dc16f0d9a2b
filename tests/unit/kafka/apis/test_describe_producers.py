from __future__ import annotations

from typing import Any

import pytest

from llog.formats.records.encode import encode_records
from llog.kafka.codec.messages.describe_producers import DescribeProducersRequest, TopicRequest
from llog.kafka.error_codes import ErrorCode
from llog.log.append.append import Appended, EncodedGroup
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.log.topics.admin import create_topic
from llog.pipeline.compact.once import compact_once
from tests.unit.kafka.apis.calling import Caller, caller


async def write(kafka: Caller, log: Log, claim: ProducerClaim) -> None:
    body = [encode_records([b"x"] * claim.msg_count, timestamps_ms=5)]
    [outcome] = (
        await kafka.broker.produce([EncodedGroup(log, claim.msg_count, "kafka-v2", body, 5, (claim,))])
    ).outcomes
    assert isinstance(outcome, Appended)


async def described(kafka: Caller, **partitions: list[int]) -> dict[str, list[Any]]:
    request = DescribeProducersRequest([TopicRequest(name, indexes) for name, indexes in partitions.items()])
    return {topic.name: topic.partitions for topic in (await kafka.ask(request, 0)).topics}


@pytest.mark.parametrize("compacted", [False, True])
async def test_the_producers_of_each_partition_are_listed(compacted: bool) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=3)
        for sequence in range(7):
            await write(kafka, Log("orders", 1), ProducerClaim(7, 2, 2 * sequence, 2 * sequence + 1))
        await write(kafka, Log("orders", 1), ProducerClaim(5, 0, 0, 0))
        await write(kafka, Log("orders", 2), ProducerClaim(7, 3, 0, 0))
        if compacted:
            assert await compact_once(kafka.broker.context, Log("orders", 1)) is not None
        found = await described(kafka, orders=[2, 0, 1])
        now_ms = kafka.broker.context.now_ms()
    assert [(one.partition_index, one.error_code) for one in found["orders"]] == [(2, 0), (0, 0), (1, 0)]
    producers = [
        [(one.producer_id, one.producer_epoch, one.last_sequence) for one in partition.active_producers]
        for partition in found["orders"]
    ]
    assert producers == [[(7, 3, 0)], [], [(5, 0, 0), (7, 2, 13)]]
    [one] = found["orders"][0].active_producers
    assert now_ms - 600_000 < one.last_timestamp <= now_ms
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)


async def test_partitions_that_do_not_exist_are_refused_beside_those_that_do() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=1)
        found = await described(kafka, orders=[0, 1, -1], missing=[0], **{"no/name": [0]})
    assert [one.error_code for one in found["orders"]] == [0, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2]
    assert [one.error_code for one in found["missing"]] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [one.error_code for one in found["no/name"]] == [ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_an_answer_has_a_limited_number_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.kafka.apis.describe_producers.DESCRIBE_PRODUCERS_MAX", 3)
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        for producer_id in range(2):
            await write(kafka, Log("orders", 0), ProducerClaim(producer_id, 0, 0, 0))
            await write(kafka, Log("orders", 1), ProducerClaim(producer_id, 0, 0, 0))
        first, second = (await described(kafka, orders=[0, 1]))["orders"]
    assert sorted([first.error_code, second.error_code]) == [0, ErrorCode.POLICY_VIOLATION]
    assert sorted([len(first.active_producers), len(second.active_producers)]) == [0, 2]
