"""Rights to groups and topics in the group APIs, one right at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from msgspec import Struct

from llog.broker.cluster import Node
from llog.broker.groups.positions import Position
from llog.kafka.apis.handler import Client
from llog.kafka.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from llog.kafka.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from llog.kafka.codec.messages.delete_groups import DeleteGroupsRequest
from llog.kafka.codec.messages.describe_groups import DescribeGroupsRequest
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
    OffsetFetchRequestTopics,
)
from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType, bit
from llog.security.changes import create_acls
from tests.unit.kafka.apis.calling import Caller, caller

MISSING_ID = b"\x07" * 16
Allow = Callable[[ResourceType, str, Operation], Awaitable[None]]


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[Caller, Allow, dict[str, bytes]]]:
    """Topics `shown` and `hidden`, and positions of the group `g` in both; how to give User:mallory a right; the ids of
    the topics."""
    async with caller(authorization=True, super_users=("User:root",)) as at:
        broker = at.broker
        made = {name: await create_topic(broker.context, name, partitions=2) for name in ("shown", "hidden")}
        broker.cluster.set_own(Node(1, "127.0.0.1", 0))
        broker.groups.start()
        await broker.groups.slots.refresh()
        await broker.positions.commit("g", {Log(name, 0): Position(7) for name in made})
        at.client = Client("10.0.0.9", 1, "here", "User:mallory")

        async def allow(kind: ResourceType, name: str, operation: Operation) -> None:
            right = (kind, name, PatternType.LITERAL, operation, Permission.ALLOW)
            await create_acls(broker.context, [Acl("User:mallory", "*", *right)])
            await broker.security.changed()

        yield at, allow, {name: UUID(one.record.topic_id).bytes for name, one in made.items()}


async def partition_codes(at: Caller, request: Struct, version: int) -> list[int]:
    answer: Any = await at.ask(request, version)
    return [one.error_code for topic in answer.topics for one in topic.partitions]


async def test_commits_and_deletions_of_positions_need_a_right_to_read_each_topic() -> None:
    async with guarded() as (at, allow, ids):
        await allow(ResourceType.GROUP, "g", Operation.ALL)
        await allow(ResourceType.TOPIC, "shown", Operation.READ)
        places = [OffsetCommitRequestPartition(0, 9)]
        named = [OffsetCommitRequestTopic(name, partitions=places) for name in ("shown", "hidden", "missing")]
        assert await partition_codes(at, OffsetCommitRequest("g", topics=named), 8) == [0, 29, 29]
        by_id = [OffsetCommitRequestTopic("", one, places) for one in (ids["shown"], ids["hidden"], MISSING_ID)]
        assert await partition_codes(at, OffsetCommitRequest("g", topics=by_id), 10) == [0, 100, 100]
        await allow(ResourceType.TOPIC, "hidden", Operation.DESCRIBE)
        assert await partition_codes(at, OffsetCommitRequest("g", topics=by_id), 10) == [0, 29, 100]
        kept = await at.broker.positions.fetch("g", [Log("shown", 0), Log("hidden", 0)])
        assert [found and found.position.offset for found in kept.values()] == [9, 7]
        dropped = [OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(0)]) for name in ("shown", "hidden")]
        assert await partition_codes(at, OffsetDeleteRequest("g", dropped), 0) == [0, 29]
        assert set(await at.broker.positions.fetch("g")) == {Log("hidden", 0)}


async def test_positions_of_topics_that_a_client_may_not_describe_are_refused_or_left_out() -> None:
    async with guarded() as (at, allow, ids):
        await allow(ResourceType.GROUP, "g", Operation.DESCRIBE)
        await allow(ResourceType.TOPIC, "shown", Operation.DESCRIBE)
        named = [OffsetFetchRequestTopics(name, partition_indexes=[0]) for name in ("shown", "hidden", "missing")]
        by_id = [OffsetFetchRequestTopics("", one, [0]) for one in (ids["shown"], ids["hidden"], MISSING_ID)]
        for topics, version, codes in ((named, 8, [0, 29, 29]), (by_id, 10, [0, 100, 100])):
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])
            [group] = (await at.ask(request, version)).groups
            found = [one for topic in group.topics for one in topic.partitions]
            assert [one.error_code for one in found] == codes
            assert [one.committed_offset for one in found] == [7, -1, -1]
        for version in (8, 10):
            [group] = (
                await at.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), version)
            ).groups
            assert [(one.name, one.topic_id) for one in group.topics] in (
                [("shown", bytes(16))],
                [("", ids["shown"])],
            )


async def test_lists_of_groups_hold_those_that_a_client_may_describe() -> None:
    async with guarded() as (at, allow, _):
        await at.broker.positions.commit("other", {Log("shown", 0): Position(1)})
        await allow(ResourceType.GROUP, "g", Operation.DESCRIBE)
        assert [one.group_id for one in (await at.ask(ListGroupsRequest(), 5)).groups] == ["g"]
        await allow(ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
        assert {one.group_id for one in (await at.ask(ListGroupsRequest(), 5)).groups} == {"g", "other"}


async def test_a_described_group_tells_what_the_client_may_do_and_describing_does_not_allow_deleting() -> None:
    async with guarded() as (at, allow, _):
        await allow(ResourceType.GROUP, "g", Operation.DESCRIBE)
        [asked] = (await at.ask(DescribeGroupsRequest(["g"], include_authorized_operations=True), 6)).groups
        assert (asked.error_code, asked.authorized_operations) == (0, bit(Operation.DESCRIBE))
        [not_asked] = (await at.ask(DescribeGroupsRequest(["g"]), 6)).groups
        assert not_asked.authorized_operations == -(2**31)
        [refused] = (await at.ask(DeleteGroupsRequest(["g"]), 2)).results
        assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert len(await at.broker.positions.fetch("g")) == 2


def join(member_id: str, **subscription: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        "c", member_id, 0, rebalance_timeout_ms=10_000, topic_partitions=[], **subscription
    )


async def test_members_get_the_topics_that_their_principal_may_describe() -> None:
    async with guarded() as (at, allow, ids):
        await allow(ResourceType.GROUP, "c", Operation.READ)
        await allow(ResourceType.TOPIC, "shown", Operation.DESCRIBE)
        for names in (["shown", "hidden"], ["shown", "missing"]):
            refused = await at.ask(join("m", subscribed_topic_names=names), 1)
            assert (refused.error_code, refused.member_epoch) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
        mine = await at.ask(join("m", subscribed_topic_regex=".*"), 1)
        assert mine.error_code == 0
        assert {one.topic_id for one in mine.assignment.topic_partitions} == {ids["shown"]}
        [shown] = (await at.ask(ConsumerGroupDescribeRequest(["c"], include_authorized_operations=True), 1)).groups
        operations = bit(Operation.READ) | bit(Operation.DESCRIBE)
        assert (shown.error_code, shown.authorized_operations) == (0, operations)
        await allow(ResourceType.TOPIC, "hidden", Operation.DESCRIBE)
        again = await at.ask(join("n", subscribed_topic_regex=".*"), 1)
        assert {one.topic_id for one in again.assignment.topic_partitions} <= set(ids.values())
        [both] = (await at.ask(ConsumerGroupDescribeRequest(["c"]), 1)).groups
        targets = {one.topic_name for member in both.members for one in member.target_assignment.topic_partitions}
        assert targets == {"shown", "hidden"}


async def test_a_group_with_a_topic_that_the_client_may_not_describe_is_not_described() -> None:
    async with guarded() as (at, allow, _):
        await allow(ResourceType.GROUP, "c", Operation.DESCRIBE)
        mallory, at.client = at.client, Client("10.0.0.8", 1, "here", "User:root")
        joined = await at.ask(join("m", subscribed_topic_names=["shown", "hidden"]), 1)
        assert joined.error_code == 0
        at.client = mallory
        await allow(ResourceType.TOPIC, "shown", Operation.DESCRIBE)
        [group] = (await at.ask(ConsumerGroupDescribeRequest(["c"]), 1)).groups
        assert (group.error_code, group.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
        assert "hidden" not in group.error_message
