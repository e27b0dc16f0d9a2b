"""Decisions about topics: what a deletion writes next, and what a change makes of an answer that never came."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from llog.errors import (
    InvalidArgument,
    LogDeleted,
    MetadataUncertain,
    PartitionOutOfRange,
    TopicAlreadyExists,
    TopicBusy,
    TopicNotFound,
    UnsupportedFormat,
)
from llog.formats.values import ControlRecord, PartitionDelete, Pending, TopicRecord, decode_value, encode_value
from llog.log.append.settle import StaleSelf
from llog.log.catalogue import deletion_of
from llog.log.context import LogContext, LogOptions
from llog.log.keys import Log
from llog.log.topics.admin import add_partitions, alter_topic, change_topic, create_topic, describe_topic
from llog.log.topics.create import TOPIC_PARTITIONS_IN_FLIGHT_MAX, for_each_partition, initialize, load_topic
from llog.log.topics.delete import ORDER, delete_topic, plan_advance, plan_tombstone
from llog.pipeline.scan.subscription import Subscription, find_logs
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import GroupOutcome, Write
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore

TOPIC = TopicRecord(topic_id="t", incarnation=3, state="DELETING", partition_count=1, first_offset=0)
PENDING = Pending(
    append_id="a",
    incarnation=3,
    start_offset=5,
    end_offset=6,
    msg_count=2,
    data_key="memory://x/y",
    encoding="kafka-v2",
    created_at_ms=1,
)
CONTROL = ControlRecord(
    incarnation=3,
    log_state="FENCED",
    epoch=4,
    sequence_counter=7,
    log_start_offset=2,
    pending=PENDING,
    fence_reason="x",
)


class LostAnswers(MemoryStore):
    """The answer to every write is lost; those of `applied` (by number) were done."""

    applied: frozenset[int] = frozenset()
    writes = 0

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self.writes += 1
        if self.writes > 4:
            return await super().write(groups)
        if self.writes in self.applied:
            await super().write(groups)
        return [MetadataUncertain("write", "it", "injected") for _ in groups]


def context_on(metadata: MemoryStore) -> LogContext:
    objects = MemoryObjectStore(f"memory://topics-admin-{random.getrandbits(64):x}")

    async def find(uri: str) -> tuple[ObjectStore, str]:
        return objects, objects.name_of(uri)

    async def sleep(_seconds: float) -> None:
        await asyncio.sleep(0)

    return LogContext(
        metadata=metadata,
        wal=objects,
        find_object=find,
        now_ms=lambda: 1_000_000,
        random_bits=random.Random(1).getrandbits,
        sleep=sleep,
    )


@pytest.fixture
def context() -> LogContext:
    return context_on(MemoryStore(MemoryBacking(shards=2, atomic_groups=False)))


# -- tombstones ------------------------------------------------------------------------------------------------------


def tombstone(current: ControlRecord | None) -> ControlRecord | None:
    return plan_tombstone(current, TOPIC, now_ms=50_000, vacuum_grace_ms=10_000)


def test_a_tombstone_keeps_the_counter_that_decides_an_uncertain_append() -> None:
    made = tombstone(CONTROL)
    assert made == replace(CONTROL, log_state="DELETED", pending=None, fence_reason="")
    assert tombstone(made) is None, "it stands already"


def test_a_log_without_control_in_this_incarnation_gets_a_fresh_tombstone() -> None:
    for current in (None, replace(CONTROL, incarnation=2), replace(CONTROL, incarnation=2, log_state="DELETED")):
        made = tombstone(current)
        assert made is not None
        assert (made.incarnation, made.log_state, made.pending, made.sequence_counter) == (3, "DELETED", None, 0)
        assert made.commit_horizon_ms == 49_000


def test_a_later_incarnation_is_never_buried() -> None:
    with pytest.raises(StaleSelf):
        tombstone(replace(CONTROL, incarnation=4))


def test_a_newer_releases_control_is_not_replaced_by_a_tombstone() -> None:
    for current in (replace(CONTROL, v=99), replace(CONTROL, v=99, incarnation=2)):
        made = tombstone(current)
        assert made is not None
        with pytest.raises(UnsupportedFormat):
            encode_value(made)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(ORDER, ORDER)))
def test_a_partition_delete_only_goes_forward(current: str, wanted: str) -> None:
    record = PartitionDelete(incarnation=3, state=current)  # type: ignore[arg-type]
    moved = plan_advance(record, 3, wanted)  # type: ignore[arg-type]
    if ORDER.index(wanted) > ORDER.index(current):
        assert moved == PartitionDelete(incarnation=3, state=wanted)  # type: ignore[arg-type]
    else:
        assert moved is None


def test_a_partition_delete_of_another_incarnation_starts_over_or_stops_us() -> None:
    finished = PartitionDelete(incarnation=2, state="DELETE_PARTITION_FINISHED")
    for current in (None, finished):
        moved = plan_advance(current, 3, "DELETE_PARTITION_MARKED")
        assert moved == PartitionDelete(incarnation=3, state="DELETE_PARTITION_MARKED")
    with pytest.raises(StaleSelf):
        plan_advance(finished, 1, "DELETE_PARTITION_MARKED")


# -- answers that never came -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [[], [1], [2], [4], [1, 2, 3, 4]])
async def test_a_creation_whose_answer_was_lost_knows_its_own_topic(applied: list[int]) -> None:
    store = LostAnswers(MemoryBacking(shards=1, atomic_groups=True))
    store.applied = frozenset(applied)
    context = context_on(store)
    made = await create_topic(context, "orders", partitions=2)
    assert (await describe_topic(context, "orders")).topic == made
    assert made.record.incarnation == 1
    with pytest.raises(TopicAlreadyExists):
        await create_topic(context, "orders")


async def test_another_topic_is_not_taken_for_ones_own(context: LogContext) -> None:
    """The answer was lost, and meanwhile another process created the topic."""
    other = dataclasses.replace(context, random_bits=random.Random(2).getrandbits)
    backing = MemoryBacking(shards=1, atomic_groups=True)
    own_store = LostAnswers(backing)
    calls = 0

    async def sleep(_seconds: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await create_topic(dataclasses.replace(other, metadata=MemoryStore(backing)), "orders", partitions=3)

    with pytest.raises(TopicAlreadyExists):
        await create_topic(dataclasses.replace(context_on(own_store), sleep=sleep), "orders", partitions=1)


async def test_a_record_that_keeps_changing_is_busy_and_not_tried_for_ever(context: LogContext) -> None:
    await create_topic(context, "orders")

    class Lost(LostAnswers):
        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            return [MetadataUncertain("write", "it", "injected") for _ in groups]

    assert isinstance(context.metadata, MemoryStore)
    deaf = dataclasses.replace(context, metadata=Lost(context.metadata.backing))
    with pytest.raises(TopicBusy):
        await alter_topic(deaf, "orders", put={"retention.ms": "1"})


# -- bounds ----------------------------------------------------------------------------------------------------------


async def test_one_partition_that_fails_does_not_keep_the_others_from_their_turn() -> None:
    done: list[int] = []
    at_once = most = 0

    async def act(partition: int) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        if partition == 3:
            raise LogDeleted("orders", 3, "x")
        done.append(partition)
        return partition

    with pytest.raises(LogDeleted):
        await for_each_partition(100, act)
    assert sorted(done) == [partition for partition in range(100) if partition != 3]
    assert most == TOPIC_PARTITIONS_IN_FLIGHT_MAX
    assert sorted(await for_each_partition(2, act)) == [0, 1]


async def test_a_topic_may_have_so_many_partitions_and_no_more(context: LogContext) -> None:
    small = dataclasses.replace(context, options=LogOptions(topic_partitions_max=3))
    await create_topic(small, "orders", partitions=3)
    with pytest.raises(InvalidArgument, match="LLOG_TOPIC_PARTITIONS_MAX"):
        await add_partitions(small, "orders", 4)
    with pytest.raises(PartitionOutOfRange):
        await initialize(small, Log("orders", 3))


@pytest.mark.parametrize("first_offset", [-1, 2**63 - 1])
async def test_a_first_offset_that_cannot_be_is_refused(context: LogContext, first_offset: int) -> None:
    with pytest.raises(InvalidArgument, match="first_offset"):
        await create_topic(context, "orders", first_offset=first_offset)


# -- one very topic --------------------------------------------------------------------------------------------------


async def test_an_initialization_for_a_topic_id_leaves_every_other_topic_alone(context: LogContext) -> None:
    first = await create_topic(context, "orders")
    await delete_topic(context, "orders")
    with pytest.raises(LogDeleted):
        await initialize(context, Log("orders", 0), topic_id=first.record.topic_id)
    assert (await describe_deleted(context)).incarnation == 1, "not brought back"
    second = await create_topic(context, "orders")
    with pytest.raises(LogDeleted):
        await initialize(context, Log("orders", 5), topic_id=first.record.topic_id)
    with pytest.raises(LogDeleted):
        await initialize(context, Log("orders", 5), topic_id=second.record.topic_id)
    assert (await describe_topic(context, "orders")).topic == second, "not grown"


async def describe_deleted(context: LogContext) -> TopicRecord:
    found = await load_topic(context, "orders", strict=True)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(("before", "asked", "expected"), [(0, None, 0), (1, None, 1), (0, 1, 1), (7, 0, 0)])
async def test_a_new_incarnation_starts_at_the_given_offset_or_the_previous_first_offset(
    context: LogContext, before: int, asked: int | None, expected: int
) -> None:
    await create_topic(context, "orders", first_offset=before)
    await delete_topic(context, "orders")
    again = await create_topic(context, "orders", first_offset=asked)
    assert (again.record.incarnation, again.record.first_offset) == (2, expected)
    assert (await describe_topic(context, "orders")).partitions[0].next_offset == expected


async def test_a_newer_releases_topic_is_not_altered_deleted_or_created_again(context: LogContext) -> None:
    newer = TopicRecord(v=99, topic_id="t", incarnation=1, state="LIVE", partition_count=1)
    key = context.keys.topic("orders")
    version = await context.metadata.put(key, encode_value(replace(newer, v=1)).replace(b'"v":1', b'"v":99'))
    for act in (
        alter_topic(context, "orders", put={"retention.ms": "1"}),
        add_partitions(context, "orders", 2),
        delete_topic(context, "orders"),
    ):
        with pytest.raises(UnsupportedFormat):
            await act
    dead = encode_value(replace(newer, v=1, state="DELETED")).replace(b'"v":1', b'"v":99')
    await context.metadata.put(key, dead, expected=version)
    for bring_back in (create_topic(context, "orders"), initialize(context, Log("orders", 0))):
        with pytest.raises(UnsupportedFormat):
            await bring_back
    found = await context.metadata.get(key)
    assert found is not None
    assert decode_value(TopicRecord, found.value, key.path) == replace(newer, state="DELETED")


async def test_a_change_of_a_missing_topic_raises_topic_not_found(context: LogContext) -> None:
    for act in (
        alter_topic(context, "orders"),
        add_partitions(context, "orders", 2),
        describe_topic(context, "orders"),
        delete_topic(context, "orders", 1),
    ):
        with pytest.raises(TopicNotFound):
            await act
    with pytest.raises(AssertionError, match="left unchanged"):
        await change_topic(context, "orders", lambda _there: None)


async def test_a_topic_with_more_partitions_than_one_request_asks_for_is_looked_at_all_the_same(
    context: LogContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(context, "orders", partitions=8)
    for module in ("llog.log.context", "llog.stores.metadata.port"):
        monkeypatch.setattr(f"{module}.METADATA_GET_MANY_MAX", 3)
    assert len((await describe_topic(context, "orders")).partitions) == 8
    assert len(await find_logs(context, Subscription(topics=("orders",)))) == 8
    assert len((await deletion_of(context, "orders")).partitions) == 8
