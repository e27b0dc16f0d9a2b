"""A writer that knew a log before its topic was deleted: its next append goes to the current incarnation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from llog.errors import AppendUncertain, LogDeleted, MetadataUncertain, PartitionOutOfRange
from llog.log.append.append import Appended, Appender, AppendOutcome
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import change_topic, create_topic
from llog.log.topics.create import load_topic
from llog.log.topics.delete import delete_topic
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, Write
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.log_suite import ORDERS, contents, context_on, group

SECOND = Log(ORDERS.topic, 1)


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def context(request: pytest.FixtureRequest) -> LogContext:
    store = MemoryStore(MemoryBacking(shards=1, atomic_groups=request.param))
    return context_on(store, MemoryObjectStore(f"memory://deleted-{time.time_ns()}"), 1)


def careful(context: LogContext) -> LogContext:
    return dataclasses.replace(context, options=dataclasses.replace(context.options, auto_create_topics=False))


async def append(appender: Appender, payload: bytes, *logs: Log) -> list[AppendOutcome]:
    return await appender.append([group(log, payload) for log in logs or (ORDERS,)])


async def incarnation(context: LogContext) -> int:
    found = await load_topic(context, ORDERS.topic, strict=True)
    assert found is not None
    return found[0].incarnation


async def test_the_first_append_after_a_deletion_succeeds_and_is_stored_once(context: LogContext) -> None:
    appender = Appender(context)
    await append(appender, b"old", ORDERS, SECOND)
    await delete_topic(context, ORDERS.topic)
    landed = await append(appender, b"new", ORDERS, SECOND)
    assert [one.start_offset for one in landed if isinstance(one, Appended)] == [1, 1]
    await appender.close()
    assert await contents(context, ORDERS) == await contents(context, SECOND) == [(1, b"new")]
    assert await incarnation(context) == 2


async def test_the_first_append_to_a_topic_that_was_created_again_succeeds(context: LogContext) -> None:
    appender = Appender(context)
    await append(appender, b"old")
    await delete_topic(context, ORDERS.topic)
    await create_topic(context, ORDERS.topic, partitions=1)
    [landed] = await append(appender, b"new")
    assert isinstance(landed, Appended)
    assert await contents(context, ORDERS) == [(1, b"new")]


async def test_a_partition_that_the_new_topic_lacks_is_refused_and_its_neighbour_is_appended(
    context: LogContext,
) -> None:
    appender = Appender(context)
    await append(appender, b"old", ORDERS, SECOND)
    await delete_topic(context, ORDERS.topic)
    await create_topic(context, ORDERS.topic, partitions=1)
    landed, refused = await append(appender, b"new", ORDERS, SECOND)
    assert isinstance(landed, Appended)
    assert isinstance(refused, PartitionOutOfRange)
    assert "has 1 partition," in str(refused)


async def test_an_append_while_the_topic_is_being_deleted_is_refused(context: LogContext) -> None:
    appender = Appender(context)
    await append(appender, b"old")
    await delete_topic(context, ORDERS.topic)
    # A deletion that has buried the log and not yet ended.
    await change_topic(context, ORDERS.topic, lambda topic: None if topic is None else replace(topic, state="DELETING"))
    [refused] = await append(appender, b"new")
    assert isinstance(refused, LogDeleted)
    assert "being deleted" in str(refused)


async def test_a_deleted_topic_stays_deleted_where_writes_create_no_topics(context: LogContext) -> None:
    appender = Appender(careful(context))
    await create_topic(context, ORDERS.topic)
    await append(appender, b"old")
    await delete_topic(context, ORDERS.topic)
    [refused] = await append(appender, b"new")
    assert isinstance(refused, LogDeleted)
    assert "LLOG_AUTO_CREATE_TOPICS" in str(refused)
    assert await incarnation(context) == 1


async def test_an_append_whose_answer_the_deletion_overtook_is_uncertain_and_not_repeated(context: LogContext) -> None:
    """R4: it was committed, and the deletion removed what proves it. A second upload would store it again."""
    first = Appender(context)
    await append(first, b"old")
    await first.close()

    class LosesAnAnswer(MemoryStore):
        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            [outcome] = await context.metadata.write(groups)
            assert isinstance(outcome, tuple), "committed"
            await delete_topic(context, ORDERS.topic, 1)
            return [MetadataUncertain("memory", "write", "no answer")]

    assert isinstance(context.metadata, MemoryStore)
    losing = LosesAnAnswer(context.metadata.backing)

    async def sleep(_seconds: float) -> None:
        return None

    appender = Appender(dataclasses.replace(context, metadata=losing, sleep=sleep))
    [outcome] = await append(appender, b"in doubt")
    assert isinstance(outcome, AppendUncertain)
    assert await incarnation(context) == 1, "the doubtful append created no second incarnation"
