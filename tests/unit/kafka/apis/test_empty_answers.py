"""What consoles ask about and llog does not have: elections, reassignments, quotas. And what has configs."""

from __future__ import annotations

import pytest

from llog.kafka.codec.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from llog.kafka.codec.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from llog.kafka.codec.messages.list_config_resources import ListConfigResourcesRequest
from llog.kafka.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from llog.kafka.error_codes import ErrorCode
from llog.log.topics.admin import create_topic
from tests.unit.kafka.apis.calling import caller


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("election", [0, 1])
async def test_no_partition_needs_an_election(version: int, election: int) -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders", partitions=2)
        wanted = [TopicPartitions("orders", [0, 1, 9]), TopicPartitions("missing", [0]), TopicPartitions("no/t", [0])]
        answer = await kafka.ask(ElectLeadersRequest(election if version else 0, wanted), version)
    codes = {t.topic: [one.error_code for one in t.partition_result] for t in answer.replica_election_results}
    fine, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {"orders": [fine, fine, unknown], "missing": [unknown], "no/t": [unknown]}
    assert answer.error_code == 0


async def test_an_election_of_all_partitions_elects_none() -> None:
    async with caller() as kafka:
        answer = await kafka.ask(ElectLeadersRequest(0, None), 2)
        assert (answer.error_code, answer.replica_election_results) == (0, [])


async def test_an_unknown_type_of_election_is_refused() -> None:
    async with caller() as kafka:
        answer = await kafka.ask(ElectLeadersRequest(7, [TopicPartitions("orders", [0])]), 2)
    [topic] = answer.replica_election_results
    assert answer.error_code == topic.partition_result[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("topics", [None, [ListPartitionReassignmentsTopics("orders", [0])]])
async def test_no_partition_is_reassigned(topics: list[ListPartitionReassignmentsTopics] | None) -> None:
    async with caller() as kafka:
        answer = await kafka.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
        assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])


@pytest.mark.parametrize("version", range(2))
async def test_there_are_no_quotas(version: int) -> None:
    async with caller() as kafka:
        for components in ([], [ComponentData("user", 2, None), ComponentData("client-id", 0, "app")]):
            answer = await kafka.ask(DescribeClientQuotasRequest(components), version)
            assert (answer.error_code, answer.entries) == (0, [])


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([ComponentData("planet", 0, "earth")], ErrorCode.UNSUPPORTED_VERSION),
        ([ComponentData("user", 9, "ann")], ErrorCode.INVALID_REQUEST),
        ([ComponentData("user", 0, "ann"), ComponentData("user", 0, "bob")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_question_about_quotas_that_means_nothing_is_refused(
    components: list[ComponentData], code: ErrorCode
) -> None:
    async with caller() as kafka:
        answer = await kafka.ask(DescribeClientQuotasRequest(components), 1)
        assert (answer.error_code, answer.entries) == (code, None)
        assert answer.error_message


async def test_brokers_and_topics_have_configs() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders")
        answer = await kafka.ask(ListConfigResourcesRequest(), 1)
        found = [(one.resource_type, one.resource_name) for one in answer.config_resources]
        assert found == [(4, "1"), (4, "2"), (4, "3"), (8, "1"), (8, "2"), (8, "3"), (2, "orders")]
        answer = await kafka.ask(ListConfigResourcesRequest([2, 16, 32]), 1)
        assert [(one.resource_type, one.resource_name) for one in answer.config_resources] == [(2, "orders")]


async def test_version_0_lists_client_metrics_of_which_there_are_none() -> None:
    async with caller() as kafka:
        await create_topic(kafka.broker.context, "orders")
        answer = await kafka.ask(ListConfigResourcesRequest(), 0)
        assert (answer.error_code, answer.config_resources) == (0, [])


async def test_an_unknown_type_of_resource_is_refused() -> None:
    async with caller() as kafka:
        answer = await kafka.ask(ListConfigResourcesRequest([2, 99]), 1)
        assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
