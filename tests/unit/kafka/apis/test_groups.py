"""Group APIs over a socket, one answer at a time; the state machines have tests of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llog.broker.cluster import Node
from llog.broker.groups.positions import Position
from llog.errors import GroupHasMembers
from llog.kafka.codec.messages.api_versions import ApiVersionsRequest
from llog.kafka.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from llog.kafka.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from llog.kafka.codec.messages.delete_groups import DeleteGroupsRequest
from llog.kafka.codec.messages.describe_groups import DescribeGroupsRequest
from llog.kafka.codec.messages.find_coordinator import FindCoordinatorRequest
from llog.kafka.codec.messages.heartbeat import HeartbeatRequest
from llog.kafka.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from llog.kafka.codec.messages.leave_group import LeaveGroupRequest
from llog.kafka.codec.messages.list_groups import ListGroupsRequest
from llog.kafka.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from llog.kafka.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from llog.kafka.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from llog.kafka.codec.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from tests.kafka_client import KafkaClient
from tests.unit.kafka.serving import ServedKafka, serve

TOPIC = "t"
METADATA = b"\0\0\0\0\0\1\0\1t\0\0\0\0"


@asynccontextmanager
async def coordinating() -> AsyncIterator[tuple[ServedKafka, KafkaClient]]:
    async with serve() as kafka:
        broker = kafka.broker
        broker.cluster.set_own(Node(1, "127.0.0.1", 0))
        broker.groups.start()
        await broker.groups.slots.refresh()
        await create_topic(broker.context, TOPIC, partitions=2)
        async with kafka.client() as client:
            yield kafka, client


async def joined(client: KafkaClient, group: str = "g") -> tuple[str, int]:
    """The only member of a group, synced: its id and generation."""
    request = JoinGroupRequest(
        group, 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", METADATA)]
    )
    answer = await client.ask(request, 3)
    assert answer.error_code == ErrorCode.NONE
    shares = [SyncGroupRequestAssignment(answer.member_id, b"mine")]
    synced = await client.ask(SyncGroupRequest(group, answer.generation_id, answer.member_id, assignments=shares), 3)
    assert (synced.error_code, bytes(synced.assignment)) == (ErrorCode.NONE, b"mine")
    return answer.member_id, answer.generation_id


def commit_of(offset: int, member_id: str = "", generation: int = -1, *, group: str = "g") -> OffsetCommitRequest:
    places = [OffsetCommitRequestPartition(0, offset, committed_metadata="note")]
    return OffsetCommitRequest(
        group, generation, member_id, topics=[OffsetCommitRequestTopic(TOPIC, partitions=places)]
    )


def code_of_commit(answer: Any) -> int:
    [topic] = answer.topics
    [partition] = topic.partitions
    return int(partition.error_code)


async def position(client: KafkaClient, version: int = 8, group: str = "g") -> int:
    if version >= 8:
        wanted = OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])])
        answer = (await client.ask(OffsetFetchRequest(groups=[wanted]), version)).groups[0]
    else:
        answer = await client.ask(OffsetFetchRequest(group, [OffsetFetchRequestTopic(TOPIC, [0])]), version)
    assert answer.error_code == ErrorCode.NONE
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_a_member_commits_and_others_are_refused() -> None:
    async with coordinating() as (kafka, client):
        member_id, generation = await joined(client)
        assert code_of_commit(await client.ask(commit_of(7, member_id, generation), 7)) == ErrorCode.NONE
        assert code_of_commit(await client.ask(commit_of(1, member_id, generation - 1), 7)) == (
            ErrorCode.ILLEGAL_GENERATION
        )
        assert code_of_commit(await client.ask(commit_of(1), 7)) == ErrorCode.UNKNOWN_MEMBER_ID
        with pytest.raises(GroupHasMembers):
            await kafka.broker.positions.commit("g", {Log(TOPIC, 0): Position(1)})
        assert await position(client) == await position(client, 5) == 7
        left = await client.ask(LeaveGroupRequest("g", member_id), 2)
        assert left.error_code == ErrorCode.NONE
        assert code_of_commit(await client.ask(commit_of(3), 7)) == ErrorCode.NONE
        await kafka.broker.positions.commit("g", {Log(TOPIC, 0): Position(2)})
        assert await position(client) == 2


async def test_pipelined_commits_are_stored_in_the_order_of_their_frames() -> None:
    async with coordinating() as (_, client):
        answers = [client.send(commit_of(offset), 7) for offset in range(1, 40)]
        assert {code_of_commit(await answer) for answer in answers} == {ErrorCode.NONE}
        assert await position(client) == 39


async def test_a_commit_of_an_unknown_topic_or_partition_is_refused_by_name_and_by_id() -> None:
    async with coordinating() as (_, client):
        places = [OffsetCommitRequestPartition(9, 1)]
        request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic(TOPIC, partitions=places)])
        assert code_of_commit(await client.ask(request, 7)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("", b"x" * 16, places)])
        assert code_of_commit(await client.ask(request, 10)) == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_node_without_the_claim_sends_clients_elsewhere() -> None:
    async with coordinating() as (kafka, client):
        member_id, generation = await joined(client)
        found = await client.ask(FindCoordinatorRequest("g"), 3)
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, 1)
        await kafka.broker.groups.resign()
        beat = await client.ask(HeartbeatRequest("g", generation, member_id), 3)
        assert beat.error_code == ErrorCode.NOT_COORDINATOR
        assert code_of_commit(await client.ask(commit_of(1, member_id, generation), 7)) == ErrorCode.NOT_COORDINATOR
        found = await client.ask(FindCoordinatorRequest(coordinator_keys=["g", ""]), 4)
        assert [one.error_code for one in found.coordinators] == [
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.INVALID_GROUP_ID,
        ]


async def test_a_join_that_waits_is_answered_when_the_node_gives_its_groups_away() -> None:
    async with coordinating() as (kafka, client), kafka.client() as other:
        await joined(client)
        request = JoinGroupRequest(
            "g", 10_000, 60_000, "", None, "consumer", [JoinGroupRequestProtocol("range", METADATA)]
        )
        waiting = other.send(request, 3)
        while not kafka.broker.groups.requests_waiting:
            await client.ask(ListGroupsRequest(), 4)
        await kafka.broker.groups.resign()
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        assert kafka.broker.groups.requests_waiting == 0


async def test_groups_are_listed_described_and_deleted() -> None:
    async with coordinating() as (_, client):
        member_id, generation = await joined(client)
        await client.ask(commit_of(7, member_id, generation), 7)
        await client.ask(commit_of(4, group="stored"), 7)
        listed = (await client.ask(ListGroupsRequest(), 5)).groups
        assert {(one.group_id, one.group_state, one.group_type) for one in listed} == {
            ("g", "Stable", "classic"),
            ("stored", "Empty", "classic"),
        }
        empty = (await client.ask(ListGroupsRequest(states_filter=["empty"]), 4)).groups
        assert [one.group_id for one in empty] == ["stored"]
        [shown, missing] = (await client.ask(DescribeGroupsRequest(["g", "missing"]), 6)).groups
        assert (shown.group_state, shown.members[0].member_id) == ("Stable", member_id)
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        deleted = (await client.ask(DeleteGroupsRequest(["g", "stored", "missing"]), 2)).results
        assert [one.error_code for one in deleted] == [
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.NONE,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ]
        assert await position(client, group="stored") == -1
        topics = [OffsetDeleteRequestTopic(TOPIC, [OffsetDeleteRequestPartition(0)])]
        kept = await client.ask(OffsetDeleteRequest("g", topics), 0)
        assert kept.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        await client.ask(LeaveGroupRequest("g", member_id), 2)
        gone = await client.ask(OffsetDeleteRequest("g", topics), 0)
        assert gone.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await position(client) == -1


async def test_a_member_of_the_consumer_protocol_gets_all_partitions_and_is_described() -> None:
    async with coordinating() as (_, client):
        request = ConsumerGroupHeartbeatRequest(
            "c", "member-1", 0, rebalance_timeout_ms=10_000, subscribed_topic_names=[TOPIC], topic_partitions=[]
        )
        answer = await client.ask(request, 1)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, 1)
        assert [list(one.partitions) for one in answer.assignment.topic_partitions] == [[0, 1]]
        [shown] = (await client.ask(ConsumerGroupDescribeRequest(["c"]), 1)).groups
        assert (shown.group_state, shown.assignor_name) == ("Stable", "uniform")
        [assigned] = shown.members[0].assignment.topic_partitions
        assert assigned.topic_name == TOPIC
        classic = JoinGroupRequest("c", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")])
        assert (await client.ask(classic, 3)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert code_of_commit(await client.ask(commit_of(5, "member-1", 1, group="c"), 9)) == ErrorCode.NONE
        stale = OffsetFetchRequestGroup("c", "member-1", 7, [OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])])
        assert (await client.ask(OffsetFetchRequest(groups=[stale]), 9)).groups[0].error_code == (
            ErrorCode.STALE_MEMBER_EPOCH
        )


async def test_features_name_the_group_version() -> None:
    async with coordinating() as (_, client):
        answer = await client.ask(ApiVersionsRequest("t", "1"), 4)
        assert [(one.name, one.max_version_level) for one in answer.finalized_features] == [("group.version", 1)]
