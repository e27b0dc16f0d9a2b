from __future__ import annotations

import pytest

from llog.kafka.codec.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from llog.kafka.error_codes import ErrorCode
from llog.log.topics.admin import create_topic, describe_topic
from tests.audit_lines import audit_lines
from tests.unit.kafka.apis.calling import Caller, caller


def grow(count: int, name: str = "orders", assigned: list[list[int]] | None = None) -> CreatePartitionsTopic:
    assignments = None if assigned is None else [CreatePartitionsAssignment(ids) for ids in assigned]
    return CreatePartitionsTopic(name, count, assignments)


async def counted(kafka: Caller, name: str = "orders") -> int:
    return len((await describe_topic(kafka.broker.context, name)).partitions)


@pytest.mark.parametrize("version", range(4))
async def test_every_version_grows_a_topic(version: int) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        [result] = (await kafka.ask(CreatePartitionsRequest([grow(4)], 30_000), version)).results
        assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
        assert await counted(kafka) == 4
        assert kafka.broker.topics.fresh("orders") is None


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (grow(2), ErrorCode.INVALID_PARTITIONS),
        (grow(1), ErrorCode.INVALID_PARTITIONS),
        (grow(0), ErrorCode.INVALID_PARTITIONS),
        (grow(-1), ErrorCode.INVALID_PARTITIONS),
        (grow(1_025), ErrorCode.INVALID_PARTITIONS),
        (grow(4, "missing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grow(4, "not/good"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grow(4, assigned=[[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow(4, assigned=[]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (grow(3, assigned=[[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_topic_that_cannot_grow_is_refused_with_kafkas_code(
    topic: CreatePartitionsTopic, code: ErrorCode, dry_run: bool
) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        [result] = (await kafka.ask(CreatePartitionsRequest([topic], 30_000, dry_run), 3)).results
        assert result.error_code == code
        assert result.error_message
        assert await counted(kafka) == 2


async def test_an_assignment_of_every_new_partition_is_accepted() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        await kafka.ask(CreatePartitionsRequest([grow(4, assigned=[[7], [8]])], 30_000), 3)
        assert await counted(kafka) == 4


async def test_a_topic_named_twice_is_refused() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        [result] = (await kafka.ask(CreatePartitionsRequest([grow(3), grow(4)], 30_000), 3)).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert await counted(kafka) == 2


async def test_validate_only_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        caplog.clear()
        [result] = (await kafka.ask(CreatePartitionsRequest([grow(4)], 30_000, True), 3)).results
        assert (result.error_code, await counted(kafka)) == (0, 2)
    assert audit_lines(caplog) == []


async def test_growth_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        caplog.clear()
        await kafka.ask(CreatePartitionsRequest([grow(4)], 30_000), 3)
    [line] = audit_lines(caplog)
    assert line == {
        "action": "topic.grow",
        "object": "orders",
        "principal": "User:ANONYMOUS",
        "client": "10.0.0.7",
        "outcome": "done",
        "before": {"partitions": 2},
        "after": {"partitions": 4},
    }
