from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from llog.errors import MetadataUnavailable
from llog.kafka.apis import metadata
from llog.kafka.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from llog.kafka.error_codes import ErrorCode
from llog.kafka.leaders import LEADERS_STEP_PARTITIONS
from llog.kafka.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from llog.log.topics.admin import create_topic, describe_topic
from llog.log.topics.delete import delete_topic
from llog.log.topics.known_topics import KnownTopics
from tests.audit_lines import audit_lines
from tests.unit.kafka.apis.calling import Caller, caller

VERSIONS = range(14)


def named(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create)


def by_id(topic_id: str) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(UUID(topic_id).bytes, None)], allow_auto_topic_creation=False)


async def made(kafka: Caller, name: str, partitions: int = 1) -> str:
    return (await create_topic(kafka.broker.context, name, partitions=partitions)).record.topic_id


def names_of(answer: Any) -> list[str]:
    return [topic.name for topic in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_answers_nodes_and_partitions(version: int) -> None:
    async with caller() as kafka:
        topic_id = await made(kafka, "orders", 4)
        answer = await kafka.ask(named("orders", create=version < 4), version)
    assert [(node.node_id, node.host, node.port) for node in answer.brokers] == [
        (1, "one.test", 9092),
        (2, "two.test", 9093),
        (3, "three.test", 9094),
    ]
    [topic] = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
    assert [partition.leader_id for partition in topic.partitions] == [1, 2, 3, 1]
    # In each other zone a node that its consumers may be sent to.
    assert [one.replica_nodes for one in topic.partitions] == [[1, 2], [2, 1], [3, 1, 2], [1, 2]]
    assert all(one.replica_nodes == one.isr_nodes for one in topic.partitions)
    assert [one.partition_index for one in topic.partitions] == [0, 1, 2, 3]
    if version >= 1:
        assert answer.controller_id == 3
        assert [node.rack for node in answer.brokers] == ["a", "b", None]
    if version >= 2:
        assert answer.cluster_id == "cluster-1"
    if version >= 7:
        assert {one.leader_epoch for one in topic.partitions} == {0}
    if version >= 10:
        assert topic.topic_id == UUID(topic_id).bytes


async def test_version_0_asks_for_all_topics_with_an_empty_list_and_later_ones_with_null() -> None:
    async with caller() as kafka:
        await made(kafka, "a")
        await made(kafka, "b")
        assert names_of(await kafka.ask(MetadataRequest(topics=[]), 0)) == ["a", "b"]
        assert names_of(await kafka.ask(MetadataRequest(topics=[]), 1)) == []
        assert names_of(await kafka.ask(MetadataRequest(topics=None), 1)) == ["a", "b"]
        assert names_of(await kafka.ask(MetadataRequest(topics=None), 13)) == ["a", "b"]


@pytest.mark.parametrize(
    ("asked", "setting", "exists"), [(True, True, True), (True, False, False), (False, True, False)]
)
async def test_a_topic_is_created_only_if_request_and_setting_allow_it(
    asked: bool, setting: bool, exists: bool
) -> None:
    async with caller(auto_create_topics=setting, default_partitions=3) as kafka:
        [topic] = (await kafka.ask(named("new", create=asked), 12)).topics
        if exists:
            assert (topic.error_code, len(topic.partitions)) == (0, 3)
            described = await describe_topic(kafka.broker.context, "new")
            assert {one.next_offset for one in described.partitions} == {0}
            assert described.topic.record.auto_created
        else:
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert names_of(await kafka.ask(MetadataRequest(topics=None), 12)) == []


async def test_versions_before_4_always_allow_creation() -> None:
    async with caller() as kafka:
        [topic] = (await kafka.ask(MetadataRequest([MetadataRequestTopic(name="new")]), 3)).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 1)


async def test_two_clients_that_create_one_topic_at_once_both_get_it() -> None:
    async with caller() as kafka:
        answers = await asyncio.gather(*(kafka.ask(named("new", create=True), 12) for _ in range(8)))
        assert {(answer.topics[0].error_code, answer.topics[0].topic_id) for answer in answers} == {
            (0, answers[0].topics[0].topic_id)
        }


async def test_an_invalid_name_is_refused_and_the_others_are_answered() -> None:
    async with caller() as kafka:
        answer = await kafka.ask(named("good", "not/good", "", "wal-shared", create=True), 12)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes == {"good": 0, "not/good": refused, "": refused, "wal-shared": refused}


async def test_a_topic_is_answered_once_although_named_twice() -> None:
    async with caller() as kafka:
        await made(kafka, "orders")
        assert names_of(await kafka.ask(named("orders", "orders"), 9)) == ["orders"]


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_found_by_id(version: int) -> None:
    async with caller() as kafka:
        topic_id = await made(kafka, "orders", 2)
        [topic] = (await kafka.ask(by_id(topic_id), version)).topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "orders", 2)


async def test_the_id_of_a_deleted_topic_is_unknown() -> None:
    async with caller() as kafka:
        topic_id = await made(kafka, "orders")
        await delete_topic(kafka.broker.context, "orders")
        await made(kafka, "orders")
        [topic] = (await kafka.ask(by_id(topic_id), 12)).topics
        assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        assert topic.topic_id == UUID(topic_id).bytes


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_in_requests_are_refused_before_version_12(version: int) -> None:
    async with caller() as kafka:
        topic_id = await made(kafka, "orders")
        [topic] = (await kafka.ask(by_id(topic_id), version)).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST


async def test_clients_of_a_zone_are_given_its_leaders() -> None:
    async with caller() as kafka:
        await made(kafka, "orders", 4)
        [topic] = (await kafka.ask(named("orders"), 12, client_id="zone=b")).topics
        assert [partition.leader_id for partition in topic.partitions] == [2, 2, 2, 2]
        [topic] = (await kafka.ask(named("orders"), 12)).topics
        assert [partition.leader_id for partition in topic.partitions] == [1, 2, 3, 1]


async def test_leaders_are_ranked_once_until_nodes_or_partitions_change() -> None:
    async with caller(topic_partitions_max=10_000) as kafka:
        count = LEADERS_STEP_PARTITIONS + 1
        await made(kafka, "orders", count)
        for _ in range(3):
            [topic] = (await kafka.ask(named("orders"), 12)).topics
            assert [one.partition_index for one in topic.partitions] == list(range(count))
        assert kafka.cluster.ranked == count
        kafka.cluster.set_others([])
        [topic] = (await kafka.ask(named("orders"), 12)).topics
        assert {partition.leader_id for partition in topic.partitions} == {1}


async def test_a_store_that_does_not_answer_makes_clients_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(_: KnownTopics, names: Any) -> Any:
        return {name: MetadataUnavailable("get", name, "gone") for name in names}

    async with caller() as kafka:
        monkeypatch.setattr(KnownTopics, "find", unavailable)
        monkeypatch.setattr(KnownTopics, "find_by_id", unavailable)
        [topic] = (await kafka.ask(named("orders"), 12)).topics
        assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        [topic] = (await kafka.ask(by_id(str(UUID(int=1))), 12)).topics
        assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_authorized_operations_are_answered_when_asked_for() -> None:
    async with caller() as kafka:
        await made(kafka, "orders")
        request = MetadataRequest(
            [MetadataRequestTopic(name="orders"), MetadataRequestTopic(name="missing")],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        answer = await kafka.ask(request, 8)
        assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS == 8096
        assert [topic.error_code for topic in answer.topics] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert {topic.topic_authorized_operations for topic in answer.topics} == {TOPIC_OPERATIONS} == {3576}
        assert (await kafka.ask(named("orders"), 8)).topics[0].topic_authorized_operations == -(2**31)


async def test_a_creation_is_audited_as_a_first_use(caplog: pytest.LogCaptureFixture) -> None:
    async with caller() as kafka:
        await kafka.ask(named("new", create=True), 12)
    [line] = audit_lines(caplog)
    assert line == {
        "action": "topic.create",
        "object": "new",
        "principal": "User:ANONYMOUS",
        "client": "10.0.0.7",
        "outcome": "done",
        "after": {"incarnation": 1, "partitions": 1, "by": "first use"},
    }


async def test_one_request_creates_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "METADATA_CREATES_MAX", 2)
    async with caller() as kafka:
        answer = await kafka.ask(named("a", "b", "c", create=True), 12)
        codes = {topic.name: topic.error_code for topic in answer.topics}
        assert codes == {"a": 0, "b": 0, "c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert [topic.error_code for topic in (await kafka.ask(named("a", "b", "c", create=True), 12)).topics] == [
            0,
            0,
            0,
        ]
