from __future__ import annotations

from typing import Any
from uuid import UUID

from llog.kafka.apis.describe_topic_partitions import PARTITIONS_PER_ANSWER_MAX
from llog.kafka.codec.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from llog.kafka.error_codes import ErrorCode
from llog.kafka.operations import TOPIC_OPERATIONS
from llog.log.topics.admin import create_topic
from tests.unit.kafka.apis.calling import Caller, caller


async def made(kafka: Caller, **counts: int) -> None:
    for name, count in counts.items():
        await create_topic(kafka.broker.context, name, partitions=count)


async def described(
    kafka: Caller, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    """Name, code and partitions of each topic; and the next cursor."""
    request = DescribeTopicPartitionsRequest(
        [TopicRequest(name) for name in names], limit, None if cursor is None else Cursor(*cursor)
    )
    answer = await kafka.ask(request, 0)
    topics = [(t.name, t.error_code, [one.partition_index for one in t.partitions]) for t in answer.topics]
    return topics, answer.next_cursor and (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


async def test_a_topic_is_described_with_its_leaders() -> None:
    async with caller() as kafka:
        topic = await create_topic(kafka.broker.context, "orders", partitions=3)
        answer: Any = await kafka.ask(DescribeTopicPartitionsRequest([TopicRequest("orders")]), 0)
    [found] = answer.topics
    assert (found.topic_id, found.topic_authorized_operations) == (UUID(topic.record.topic_id).bytes, TOPIC_OPERATIONS)
    assert [(one.leader_id, one.leader_epoch, one.replica_nodes[0]) for one in found.partitions] == [
        (1, 0, 1),
        (2, 0, 2),
        (3, 0, 3),
    ]
    assert all(one.isr_nodes == one.replica_nodes for one in found.partitions), "all replicas hold the same bytes"
    assert all(one.eligible_leader_replicas == one.last_known_elr == [] for one in found.partitions)


async def test_topics_are_answered_by_name_and_once() -> None:
    async with caller() as kafka:
        await made(kafka, a=1, b=1)
        topics, cursor = await described(kafka, "b", "missing", "a", "not/good", "b")
    assert topics == [
        ("a", 0, [0]),
        ("b", 0, [0]),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ("not/good", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
    ]
    assert cursor is None


async def test_pages_follow_the_cursor_through_all_topics() -> None:
    async with caller() as kafka:
        await made(kafka, a=3, b=1, c=2)
        pages, cursor = [], None
        while True:
            topics, cursor = await described(kafka, limit=2, cursor=cursor)
            pages.append((topics, cursor))
            if cursor is None:
                break
    assert pages == [
        ([("a", 0, [0, 1])], ("a", 2)),
        ([("a", 0, [2]), ("b", 0, [0])], ("c", 0)),
        ([("c", 0, [0, 1])], None),
    ]


async def test_topics_without_partitions_take_no_room() -> None:
    async with caller() as kafka:
        await made(kafka, b=2, c=1)
        topics, cursor = await described(kafka, "a", "b", "c", limit=2)
        assert [name for name, *_ in topics] == ["a", "b"]
        assert cursor == ("c", 0)


async def test_a_cursor_behind_the_last_partition_goes_on_with_the_next_topic() -> None:
    async with caller() as kafka:
        await made(kafka, a=2, b=1)
        assert await described(kafka, "a", "b", cursor=("a", 9)) == ([("a", 0, []), ("b", 0, [0])], None)


async def test_a_cursor_at_a_topic_that_was_deleted_goes_on_with_the_next_one() -> None:
    async with caller() as kafka:
        await made(kafka, a=2, c=2)
        assert await described(kafka, cursor=("b", 1)) == ([("c", 0, [0, 1])], None)


async def test_a_cursor_that_the_request_does_not_name_is_refused() -> None:
    async with caller() as kafka:
        await made(kafka, a=2, b=1)
        refused: list[tuple[str, int, list[int]]] = [
            ("a", ErrorCode.INVALID_REQUEST, []),
            ("b", ErrorCode.INVALID_REQUEST, []),
        ]
        assert await described(kafka, "a", "b", cursor=("aa", 0)) == (refused, None)
        assert await described(kafka, "a", "b", cursor=("a", -1)) == (refused, None)


async def test_at_least_one_partition_and_at_most_the_limit_are_answered() -> None:
    async with caller(topic_partitions_max=PARTITIONS_PER_ANSWER_MAX + 1) as kafka:
        await made(kafka, a=PARTITIONS_PER_ANSWER_MAX + 1)
        assert await described(kafka, "a", limit=0) == ([("a", 0, [0])], ("a", 1))
        [(_, _, partitions)], cursor = await described(kafka, "a", limit=2**31 - 1)
        assert (len(partitions), cursor) == (PARTITIONS_PER_ANSWER_MAX, ("a", PARTITIONS_PER_ANSWER_MAX))
