from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llog.errors import LogBusy
from llog.kafka.codec.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from llog.kafka.error_codes import ErrorCode
from llog.log.topics import create
from llog.log.topics.admin import describe_topic, list_topics
from llog.log.topics.config_table import CONFIGS
from llog.log.topics.delete import delete_topic
from tests.audit_lines import audit_lines
from tests.unit.kafka.apis.calling import Caller, caller

TOPIC, DEFAULT = 1, 5


def topic(name: str = "orders", partitions: int = 1, replicas: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name, partitions, replicas, **more)


def assigned(*partitions: int, brokers: tuple[int, ...] = (1,), **more: Any) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(partition, list(brokers)) for partition in partitions]
    return topic(**{"partitions": -1, "replicas": -1, **more}, assignments=assignments)


def configured(**configs: str | None) -> CreatableTopic:
    return topic(configs=[CreatableTopicConfig(name.replace("_", "."), value) for name, value in configs.items()])


async def created(kafka: Caller, *topics: CreatableTopic, version: int = 7, **more: Any) -> list[Any]:
    answer = await kafka.ask(CreateTopicsRequest(list(topics), **more), version)
    return list(answer.topics)


@pytest.mark.parametrize("version", range(2, 8))
async def test_every_version_creates_a_topic_that_begins_at_offset_0(version: int) -> None:
    async with caller() as kafka:
        [result] = await created(kafka, topic(partitions=3, replicas=2), version=version)
        found = await describe_topic(kafka.broker.context, "orders")
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert [(one.partition, one.log_start_offset, one.next_offset) for one in found.partitions] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert not found.topic.record.auto_created
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert {config.name for config in result.configs} == CONFIGS.keys()
    if version >= 7:
        assert result.topic_id.hex() == found.topic.record.topic_id.replace("-", "")


async def test_configs_are_stored_and_answered_with_their_source() -> None:
    async with caller() as kafka:
        [result] = await created(kafka, configured(retention_ms="1000", cleanup_policy="compact"))
        record = (await describe_topic(kafka.broker.context, "orders")).topic.record
    assert record.config == {"retention.ms": "1000", "cleanup.policy": "compact"}
    sources = {config.name: (config.value, config.config_source) for config in result.configs}
    assert sources["retention.ms"] == ("1000", TOPIC)
    assert sources["retention.bytes"] == ("-1", DEFAULT)


@pytest.mark.parametrize("version", [4, 7])
async def test_minus_one_partitions_are_the_default_number(version: int) -> None:
    async with caller(default_partitions=5) as kafka:
        await created(kafka, topic(partitions=-1, replicas=-1), version=version)
        assert len((await describe_topic(kafka.broker.context, "orders")).partitions) == 5


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic("not/good"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=1_025), ErrorCode.INVALID_PARTITIONS),
        (topic(replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(replicas=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (configured(no_such_config="1"), ErrorCode.INVALID_CONFIG),
        (configured(retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (configured(retention_ms=None), ErrorCode.INVALID_CONFIG),
        (configured(message_format_version="2.0"), ErrorCode.INVALID_CONFIG),
        (assigned(0, 1, partitions=2), ErrorCode.INVALID_REQUEST),
        (assigned(0, 1, replicas=1), ErrorCode.INVALID_REQUEST),
        (assigned(1, 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned(0, 0), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned(0, 1, brokers=()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_topic_that_cannot_be_created_is_refused_with_kafkas_code(
    asked: CreatableTopic, code: ErrorCode, dry_run: bool
) -> None:
    async with caller() as kafka:
        other = topic("other")
        [refused, fine] = await created(kafka, asked, other, validate_only=dry_run)
        assert (refused.error_code, fine.error_code) == (code, 0)
        assert refused.error_message
        assert (refused.num_partitions, refused.configs) == (-1, [])
        assert [one.name for one in await list_topics(kafka.broker.context)] == ([] if dry_run else ["other"])


async def test_an_assignment_gives_the_number_of_partitions_in_any_order() -> None:
    async with caller() as kafka:
        [result] = await created(kafka, assigned(2, 0, 1, brokers=(7, 8)))
        assert (result.error_code, result.num_partitions) == (0, 3)


async def test_a_topic_that_exists_is_not_created_again() -> None:
    async with caller() as kafka:
        await created(kafka, topic(partitions=2))
        for dry_run in (False, True):
            for partitions in (4, 0):  # that it exists counts more than any other fault
                [result] = await created(kafka, topic(partitions=partitions), validate_only=dry_run)
                assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert len((await describe_topic(kafka.broker.context, "orders")).partitions) == 2


async def test_a_topic_named_twice_is_refused_once_and_not_created() -> None:
    async with caller() as kafka:
        results = await created(kafka, topic("twice"), topic("once"), topic("twice"))
        assert [(one.name, one.error_code) for one in results] == [("twice", ErrorCode.INVALID_REQUEST), ("once", 0)]
        assert [one.name for one in await list_topics(kafka.broker.context)] == ["once"]


async def test_validate_only_creates_nothing_and_writes_no_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        [result] = await created(kafka, topic(partitions=3), validate_only=True)
        assert (result.error_code, result.num_partitions, result.topic_id) == (0, 3, bytes(16))
        await created(kafka, topic(partitions=0), validate_only=True)
        assert await list_topics(kafka.broker.context) == []
    assert audit_lines(caplog) == []


async def test_creations_and_refusals_write_audit_lines_with_the_principal(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        kafka.client.principal = "User:ann"
        await created(kafka, topic(partitions=3))
        await created(kafka, topic(partitions=3))
    done, refused = audit_lines(caplog)
    assert done == {
        "action": "topic.create",
        "object": "orders",
        "principal": "User:ann",
        "client": "10.0.0.7",
        "outcome": "done",
        "after": {"incarnation": 1, "partitions": 3},
    }
    assert (refused["outcome"], refused["error_type"], refused["principal"]) == (
        "refused",
        "TopicAlreadyExists",
        "User:ann",
    )


async def test_a_creation_that_takes_too_long_is_answered_in_time_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, initialize = asyncio.Event(), asyncio.Event(), create.initialize

    async def slow(*args: Any, **more: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await initialize(*args, **more)

    monkeypatch.setattr("llog.log.topics.admin.initialize", slow)
    async with caller() as kafka:
        asking = asyncio.create_task(created(kafka, topic(), timeout_ms=20))
        await begun.wait()
        [result] = await asking
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        go_on.set()
        await asyncio.gather(*kafka.services.changes.going_on())
        assert [one.next_offset for one in (await describe_topic(kafka.broker.context, "orders")).partitions] == [0]


async def test_of_two_clients_that_create_a_topic_at_once_one_succeeds() -> None:
    async with caller() as kafka:
        results = await asyncio.gather(*(created(kafka, topic()) for _ in range(4)))
        exists = ErrorCode.TOPIC_ALREADY_EXISTS
        assert sorted(one.error_code for [one] in results) == [0, exists, exists, exists]


async def test_a_topic_that_is_being_deleted_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    async with caller() as kafka:
        await created(kafka, topic())
        monkeypatch.setattr("llog.log.topics.delete._delete_log", _fail)
        with pytest.raises(LogBusy):
            await delete_topic(kafka.broker.context, "orders")
        [result] = await created(kafka, topic())
        assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def _fail(*_: object) -> None:
    raise LogBusy("orders", 0, "busy")
