"""Every API, in its lowest and highest version, as a principal without rights: it gets nothing and learns no names."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct, json

from llog.broker.cluster import Node
from llog.broker.groups.positions import Position
from llog.kafka.apis.handler import Call, Client, Handler
from llog.kafka.apis.handlers import handlers
from llog.kafka.codec import ZERO_UUID, apis, decode, encode_bytes
from llog.kafka.codec.messages import (
    alter_configs,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.net.answer_errors import first_error
from llog.log.keys import Log
from llog.log.topics.admin import create_topic, describe_topic
from llog.security.acl import CLUSTER_NAME, OPERATIONS, Acl, Operation, PatternType, Permission, ResourceType
from llog.security.changes import create_acls as allow
from llog.security.changes import list_acls, list_users
from llog.security.requirements import KAFKA, NOTHING
from tests.unit.kafka.apis.calling import Caller, caller

HIDDEN, MISSING = "hidden-0123456789", "missing-012345678"
NAMES_OF_OTHERS = (HIDDEN, "User:root", "secret-user")
T = ErrorCode.TOPIC_AUTHORIZATION_FAILED
C = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
G = ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_every_handler_has_a_row() -> None:
    assert set(handlers()) <= set(KAFKA)
    assert {key for key, needs in KAFKA.items() if needs is NOTHING} == {17, 18, 36}


def test_every_row_asks_for_what_its_resource_can_give() -> None:
    for needs in KAFKA.values():
        for need in needs:
            assert need.operation in OPERATIONS[need.kind], need


def requests(name: str, topic_id: bytes, version: dict[int, int]) -> dict[int, Struct | None]:
    """For each API a request about this topic or group, in the version that is asked for. None: it names neither."""
    by_id = topic_id if version[1] >= 13 else ZERO_UUID
    named = "" if version[1] >= 13 else name
    return {
        0: produce.ProduceRequest(
            None,
            -1,
            1_000,
            [
                produce.TopicProduceData(
                    "" if version[0] >= 13 else name,
                    topic_id if version[0] >= 13 else ZERO_UUID,
                    [produce.PartitionProduceData(0, b"x" * 61)],
                )
            ],
        ),
        1: fetch.FetchRequest(
            max_wait_ms=0,
            session_epoch=-1,
            topics=[fetch.FetchTopic(named, by_id, [fetch.FetchPartition(0, partition_max_bytes=1_000)])],
        ),
        2: list_offsets.ListOffsetsRequest(
            topics=[list_offsets.ListOffsetsTopic(name, [list_offsets.ListOffsetsPartition(0, timestamp=-1)])]
        ),
        3: metadata.MetadataRequest([metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True),
        8: offset_commit.OffsetCommitRequest(
            name,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    "" if version[8] >= 10 else name,
                    topic_id if version[8] >= 10 else ZERO_UUID,
                    [offset_commit.OffsetCommitRequestPartition(0, 1)],
                )
            ],
        ),
        9: offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(name)])
        if version[9] >= 8
        else offset_fetch.OffsetFetchRequest(name, [offset_fetch.OffsetFetchRequestTopic(name, [0])]),
        10: find_coordinator.FindCoordinatorRequest(coordinator_keys=[name])
        if version[10] >= 4
        else find_coordinator.FindCoordinatorRequest(name),
        11: join_group.JoinGroupRequest(
            name, 10_000, 10_000, "m", None, "consumer", [join_group.JoinGroupRequestProtocol("range", b"")]
        ),
        12: heartbeat.HeartbeatRequest(name, 1, "m"),
        13: leave_group.LeaveGroupRequest(name, "m")
        if version[13] < 3
        else leave_group.LeaveGroupRequest(name, members=[leave_group.MemberIdentity("m")]),
        14: sync_group.SyncGroupRequest(name, 1, "m"),
        15: describe_groups.DescribeGroupsRequest([name], include_authorized_operations=version[15] >= 3),
        16: list_groups.ListGroupsRequest(),
        17: None,
        18: api_versions.ApiVersionsRequest("a", "1"),
        19: create_topics.CreateTopicsRequest([create_topics.CreatableTopic(name, 1, 1)], 1_000),
        20: delete_topics.DeleteTopicsRequest(
            *(([delete_topics.DeleteTopicState(name)], []) if version[20] >= 6 else ([], [name])), timeout_ms=1_000
        ),
        21: delete_records.DeleteRecordsRequest(
            [delete_records.DeleteRecordsTopic(name, [delete_records.DeleteRecordsPartition(0, 1)])], 1_000
        ),
        22: init_producer_id.InitProducerIdRequest(None, 1_000),
        23: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    name, [offset_for_leader_epoch.OffsetForLeaderPartition(0, leader_epoch=0)]
                )
            ]
        ),
        29: describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        30: create_acls.CreateAclsRequest(
            [create_acls.AclCreation(2, name, 3, "User:mallory", "*", Operation.ALL, Permission.ALLOW)]
        ),
        31: delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(1, None, 1, None, None, 1, 1)]),
        32: describe_configs.DescribeConfigsRequest([describe_configs.DescribeConfigsResource(2, name, None)]),
        33: alter_configs.AlterConfigsRequest(
            [alter_configs.AlterConfigsResource(2, name, [alter_configs.AlterableConfig("retention.ms", "1")])]
        ),
        35: describe_log_dirs.DescribeLogDirsRequest(None),
        36: None,
        37: create_partitions.CreatePartitionsRequest([create_partitions.CreatePartitionsTopic(name, 9)], 1_000),
        42: delete_groups.DeleteGroupsRequest([name]),
        43: elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions(name, [0])]),
        44: incremental_alter_configs.IncrementalAlterConfigsRequest(
            [
                incremental_alter_configs.AlterConfigsResource(
                    2, name, [incremental_alter_configs.AlterableConfig("retention.ms", 0, "1")]
                )
            ]
        ),
        46: apis()[46].request(),
        47: offset_delete.OffsetDeleteRequest(
            name, [offset_delete.OffsetDeleteRequestTopic(name, [offset_delete.OffsetDeleteRequestPartition(0)])]
        ),
        48: apis()[48].request(),
        50: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None),
        51: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            [], [alter_user_scram_credentials.ScramCredentialUpsertion("secret-user", 1, 4096, b"salt", b"salted" * 5)]
        ),
        60: apis()[60].request(),
        61: describe_producers.DescribeProducersRequest([describe_producers.TopicRequest(name, [0])]),
        68: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            name, "m", 0, rebalance_timeout_ms=10_000, subscribed_topic_names=[name], topic_partitions=[]
        ),
        69: consumer_group_describe.ConsumerGroupDescribeRequest([name], include_authorized_operations=True),
        74: apis()[74].request(),
        75: describe_topic_partitions.DescribeTopicPartitionsRequest([describe_topic_partitions.TopicRequest(name)]),
    }


EXPECTED: dict[int, ErrorCode] = {
    **dict.fromkeys((0, 1, 2, 3, 19, 20, 21, 23, 32, 33, 37, 44, 61, 75), T),
    **dict.fromkeys((22, 29, 30, 31, 35, 43, 46, 48, 50, 51, 74), C),
    **dict.fromkeys((8, 9, 10, 11, 12, 13, 14, 15, 42, 47, 68, 69), G),
    **dict.fromkeys((16, 18, 60), ErrorCode.NONE),
}
WITHOUT_CODE = {(35, 1)}
"""Answers that have no place for a code."""


async def ask(at: Caller, client: Client, handler: Handler, version: int, request: Struct) -> Any:
    api = apis()[handler.key]
    received = decode(api.request, version, encode_bytes(request, version))
    answer = handler.handle(Call(at.services, client, handler.key, version, "test", received))
    if inspect.isawaitable(answer):
        answer = await answer
    assert answer is not None
    return decode(api.response, version, encode_bytes(answer, version))


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[Caller, bytes]]:
    async with caller(authorization=True, super_users=("User:root",)) as at:
        made = await create_topic(at.broker.context, HIDDEN, partitions=1, first_offset=0)
        everything = (ResourceType.TOPIC, HIDDEN, PatternType.LITERAL, Operation.ALL, Permission.ALLOW)
        group = (ResourceType.GROUP, *everything[1:])
        await allow(at.broker.context, [Acl("User:owner", "*", *everything), Acl("User:owner", "*", *group)])
        await at.broker.security.changed()
        at.broker.cluster.set_own(Node(1, "127.0.0.1", 0))
        at.broker.groups.start()
        await at.broker.groups.slots.refresh()
        await at.broker.positions.commit(HIDDEN, {Log(HIDDEN, 0): Position(7)})
        yield at, UUID(made.record.topic_id).bytes


def text_of(answer: Struct) -> str:
    return json.encode(answer, enc_hook=lambda one: bytes(one).decode("latin-1")).decode()


@pytest.mark.parametrize("key", sorted(handlers()))
async def test_a_principal_without_rights_gets_nothing_and_learns_nothing(key: int) -> None:
    handler = handlers()[key]
    async with guarded() as (at, topic_id):
        before = (await describe_topic(at.broker.context, HIDDEN), await list_acls(at.broker.context))
        for number in {handler.served.first, handler.served.last}:
            versions = dict.fromkeys(KAFKA, number)
            answers = []
            for name, one_id in ((HIDDEN, topic_id), (MISSING, b"\x07" * 16)):
                request = requests(name, one_id, versions)[key]
                if request is None:
                    return
                client = Client("10.0.0.9", 1, "here", "User:mallory")
                answer = await ask(at, client, handler, number, request)
                by_id = key in (0, 1) and number >= 13
                expected = ErrorCode.UNKNOWN_TOPIC_ID if by_id else EXPECTED[key]
                if (key, number) not in WITHOUT_CODE:
                    assert first_error(answer) == expected, (name, answer)
                answers.append(text_of(answer).replace(name, "NAME"))
                learned = [other for other in NAMES_OF_OTHERS if other in text_of(answer)]
                assert [other for other in learned if other not in text_of(request)] == []
            ids = (str(UUID(bytes=topic_id)), str(UUID(bytes=b"\x07" * 16)))
            first, second = (
                text.replace(json.encode(raw).decode().strip('"'), "ID").replace(shown, "ID")
                for text, raw, shown in zip(answers, (topic_id, b"\x07" * 16), ids, strict=True)
            )
            assert first == second
        assert (await describe_topic(at.broker.context, HIDDEN), await list_acls(at.broker.context)) == before
        assert await list_users(at.broker.context) == {}


async def test_lists_hold_what_a_principal_may_describe_and_nothing_else() -> None:
    async with guarded() as (at, _):
        await create_topic(at.broker.context, "shown", partitions=1)
        described = (ResourceType.TOPIC, "shown", PatternType.LITERAL, Operation.DESCRIBE, Permission.ALLOW)
        await allow(at.broker.context, [Acl("User:mallory", "*", *described)])
        await at.broker.security.changed()
        client = Client("10.0.0.9", 1, "here", "User:mallory")
        every: metadata.MetadataResponse = await ask(
            at,
            client,
            handlers()[3],
            10,
            metadata.MetadataRequest(
                None, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
            ),
        )
        [topic] = every.topics
        assert (topic.name, topic.topic_authorized_operations) == ("shown", 1 << Operation.DESCRIBE)
        assert every.cluster_authorized_operations == 0
        pages = await ask(at, client, handlers()[75], 0, describe_topic_partitions.DescribeTopicPartitionsRequest())
        assert [one.name for one in pages.topics] == ["shown"]


async def test_a_right_to_describe_shows_that_a_topic_exists_and_no_more() -> None:
    async with guarded() as (at, topic_id):
        described = (ResourceType.TOPIC, HIDDEN, PatternType.LITERAL, Operation.DESCRIBE, Permission.ALLOW)
        await allow(at.broker.context, [Acl("User:mallory", "*", *described)])
        await at.broker.security.changed()
        client = Client("10.0.0.9", 1, "here", "User:mallory")
        versions = {key: handler.served.last for key, handler in handlers().items()} | {1: 18}
        for key in (0, 1):
            request = requests(HIDDEN, topic_id, versions)[key]
            assert request is not None
            assert first_error(await ask(at, client, handlers()[key], versions[key], request)) == T


async def test_a_super_user_and_an_owner_get_what_they_ask_for() -> None:
    async with guarded() as (at, topic_id):
        for principal, keys in (("User:root", (1, 2, 3, 29, 32, 46, 50)), ("User:owner", (1, 2, 3, 32))):
            client = Client("10.0.0.9", 1, "here", principal)
            for key in keys:
                version = handlers()[key].served.last
                request = requests(HIDDEN, topic_id, dict.fromkeys(KAFKA, version))[key]
                assert request is not None
                assert first_error(await ask(at, client, handlers()[key], version, request)) == 0, key


async def test_idempotence_needs_a_right_to_write_to_some_topic() -> None:
    async with guarded() as (at, _):
        handler = handlers()[22]
        request = init_producer_id.InitProducerIdRequest(None, 1_000)
        for principal, code in (("User:owner", 0), ("User:mallory", C)):
            client = Client("10.0.0.9", 1, "here", principal)
            assert (await ask(at, client, handler, 5, request)).error_code == code
        cluster = (
            ResourceType.CLUSTER,
            CLUSTER_NAME,
            PatternType.LITERAL,
            Operation.IDEMPOTENT_WRITE,
            Permission.ALLOW,
        )
        await allow(at.broker.context, [Acl("User:mallory", "*", *cluster)])
        await at.broker.security.changed()
        client = Client("10.0.0.9", 1, "here", "User:mallory")
        assert (await ask(at, client, handler, 5, request)).error_code == 0


async def test_without_authorization_acls_are_not_served_and_everything_is_allowed() -> None:
    async with caller() as at:
        client = Client("10.0.0.9", 1, "here")
        answer = await ask(
            at, client, handlers()[29], 3, describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1)
        )
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        call = Call(at.services, client, 3, 12, None, None)
        assert call.authorizer is None
        assert call.denied(ResourceType.TOPIC, ["any"]) == ()
