"""The number of partitions: a topic created explicitly keeps it whatever is written, others grow by HTTP produce."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from llog.errors import LogError, PartitionOutOfRange
from llog.log.append.append import Appended, Appender
from llog.log.append.known import Growth
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import add_partitions, create_topic
from llog.log.topics.create import initialize, load_topic
from llog.log.topics.delete import delete_topic
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import ABSENT
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.log_suite import context_on, group

WRITERS = [Growth.FIRST_WRITE, Growth.HTTP]


@pytest.fixture
def context() -> LogContext:
    return context_on(MemoryStore(MemoryBacking(shards=1)), MemoryObjectStore(f"memory://growth-{time.time_ns()}"), 1)


async def appended(context: LogContext, growth: Growth, *partitions: int) -> list[bool | LogError]:
    outcomes = await Appender(context, growth=growth).append([group(Log("orders", p), b"a") for p in partitions])
    return [True if isinstance(outcome, Appended) else outcome for outcome in outcomes]


async def refusal(context: LogContext, growth: Growth, partition: int) -> str:
    [outcome] = await appended(context, growth, partition)
    assert isinstance(outcome, PartitionOutOfRange)
    return str(outcome)


async def count(context: LogContext) -> int | None:
    found = await load_topic(context, "orders", strict=True)
    return None if found is None else found[0].partition_count


def limited(context: LogContext, *, topic_max: int = 1_024, auto_max: int = 128) -> LogContext:
    options = dataclasses.replace(context.options, topic_partitions_max=topic_max, auto_partitions_max=auto_max)
    return dataclasses.replace(context, options=options)


@pytest.mark.parametrize("growth", WRITERS)
async def test_a_write_never_adds_partitions_to_a_topic_that_was_created_explicitly(
    context: LogContext, growth: Growth
) -> None:
    await create_topic(context, "orders", partitions=3)
    reason = await refusal(context, growth, 50)
    assert "the topic has 3 partitions" in reason
    assert "created explicitly" in reason
    assert "llog topic partitions orders 51" in reason
    assert await count(context) == 3
    assert await appended(context, growth, 2) == [True]


@pytest.mark.parametrize("growth", WRITERS)
async def test_a_topic_without_the_field_of_its_origin_counts_as_created_explicitly(
    context: LogContext, growth: Growth
) -> None:
    old = b'{"v":1,"topic_id":"t","incarnation":1,"state":"LIVE","partition_count":2}'
    await context.metadata.put(context.keys.topic("orders"), old, expected=ABSENT)
    assert "has 2 partitions" in await refusal(context, growth, 2)
    assert await appended(context, growth, 1) == [True]


async def test_http_produce_adds_partitions_to_a_topic_that_a_first_write_created_up_to_the_limit(
    context: LogContext,
) -> None:
    assert await appended(context, Growth.HTTP, 3) == [True]
    assert await count(context) == 4
    assert await appended(context, Growth.HTTP, 127) == [True]
    assert await count(context) == 128
    reason = await refusal(context, Growth.HTTP, 128)
    assert "has 128 partitions" in reason
    assert "LLOG_AUTO_PARTITIONS_MAX" in reason
    assert await count(context) == 128


async def test_a_first_write_to_a_far_partition_creates_nothing(context: LogContext) -> None:
    for growth in WRITERS:
        reason = await refusal(context, growth, 1_023)
        assert "no such topic" in reason
        assert "128 partitions (LLOG_AUTO_PARTITIONS_MAX)" in reason
        assert "llog topic create orders --partitions 1024" in reason
    assert await count(context) is None


async def test_a_direct_writer_creates_the_partitions_that_its_first_append_names_and_adds_none(
    context: LogContext,
) -> None:
    assert await appended(context, Growth.FIRST_WRITE, 0, 2, 1) == [True, True, True]
    assert await count(context) == 3
    reason = await refusal(context, Growth.FIRST_WRITE, 3)
    assert "has 3 partitions" in reason
    assert "only HTTP produce" in reason
    assert await appended(context, Growth.HTTP, 3) == [True]


async def test_one_far_partition_of_a_first_append_is_refused_alone(context: LogContext) -> None:
    small = limited(context, auto_max=4)
    near, far = await appended(small, Growth.FIRST_WRITE, 0, 9)
    assert near is True
    assert isinstance(far, PartitionOutOfRange)
    assert await count(context) == 4


async def test_the_limit_of_every_topic_holds_for_topics_of_first_writes_too(context: LogContext) -> None:
    small = limited(context, topic_max=2)
    landed, refused = await appended(small, Growth.HTTP, 0, 2)
    assert landed is True
    assert isinstance(refused, PartitionOutOfRange)
    assert await count(context) == 2


async def test_first_writes_that_race_agree_on_one_topic_with_all_their_partitions(context: LogContext) -> None:
    done = await asyncio.gather(*(appended(context, Growth.HTTP, partition) for partition in range(24)))
    assert done == [[True]] * 24
    assert await count(context) == 24


async def test_administration_adds_partitions_to_any_topic_and_does_not_change_its_origin(context: LogContext) -> None:
    await create_topic(context, "orders", partitions=1)
    await initialize(context, Log("orders", 1))
    assert await count(context) == 2
    assert "has 2 partitions" in await refusal(context, Growth.HTTP, 2)
    await add_partitions(context, "orders", 300)
    assert await appended(context, Growth.FIRST_WRITE, 299) == [True]


async def test_a_partition_that_administration_created_first_makes_an_explicit_topic(context: LogContext) -> None:
    await initialize(context, Log("orders", 2))
    assert await count(context) == 3
    assert "created explicitly" in await refusal(context, Growth.HTTP, 3)


async def test_a_deleted_topic_takes_the_origin_of_its_next_creation(context: LogContext) -> None:
    await create_topic(context, "orders", partitions=1)
    await delete_topic(context, "orders")
    assert await appended(context, Growth.HTTP, 0) == [True]
    assert await appended(context, Growth.HTTP, 1) == [True]
    await delete_topic(context, "orders")
    await create_topic(context, "orders", partitions=1)
    assert "created explicitly" in await refusal(context, Growth.HTTP, 1)
