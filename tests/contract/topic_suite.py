"""The contract of topics on every metadata store: created whole, deleted whole, later incarnations never harmed."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from llog.errors import (
    InvalidArgument,
    LlogError,
    LogBusy,
    LogDeleted,
    ObjectStoreUnavailable,
    PartitionNotInitialized,
    TopicAlreadyExists,
    TopicBeingDeleted,
    TopicNotFound,
)
from llog.formats.values import encode_value
from llog.log.append.append import Appended, Appender
from llog.log.append.settle import StaleSelf, settle, settle_and_clear
from llog.log.cleanup.leftovers import remove_leftovers
from llog.log.cleanup.retention import configured_limits, retain
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import read_offset
from llog.log.topics.admin import (
    Topic,
    add_partitions,
    alter_topic,
    create_topic,
    describe_topic,
    list_topics,
)
from llog.log.topics.create import initialize, load_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.port import (
    MetadataStore,
)
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.log_suite import ORDERS, contents, context_on, group
from tests.contract.on_stores import OpenStore
from tests.contract.topic_sleepers import (
    ACTORS,
    SECOND,
    SOAK,
    Interrupted,
    Stubborn,
    check_gone,
    check_life,
    control_of,
    crashes,
    fill,
    kinds_left,
    last_append,
    live_on,
    until_done,
)


class TopicContract:
    """Inherited per metadata store; the subclass provides `open_store`."""

    stride = 1
    """Step between the calls at which a process crashes or sleeps; 1 where a call is cheap."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return self.new_objects()

    @pytest.fixture
    async def context(self, open_store: OpenStore, objects: ObjectStore) -> LogContext:
        return self.on(await open_store(), objects)

    def on(self, metadata: MetadataStore, objects: ObjectStore, seed: int = 1) -> LogContext:
        """A context with a back-off that takes no time: an append to a dead log retries for seconds otherwise."""

        async def sleep(_seconds: float) -> None:
            await asyncio.sleep(0)

        return dataclasses.replace(context_on(metadata, objects, seed), sleep=sleep)

    def new_objects(self) -> ObjectStore:
        """A root of its own in metadata, too (see `context_on`)."""
        return MemoryObjectStore(f"memory://topics-{random.getrandbits(64):x}-{time.time_ns()}")

    async def calls(self, open_store: OpenStore) -> AsyncIterator[tuple[int, LogContext]]:
        """Call numbers, each with an empty root; the loop ends at the first call number that is not reached."""
        metadata = await open_store()
        for at_call in range(0, 1_000, 1 if SOAK else self.stride):
            yield at_call, self.on(metadata, self.new_objects(), at_call)
        raise AssertionError("it never ends")

    # -- create, alter, describe --------------------------------------------------------------------------------------
    async def test_a_created_topic_has_all_its_partitions_and_configs(self, context: LogContext) -> None:
        made = await create_topic(
            context, "orders", partitions=3, config={"cleanup.policy": "delete,compact"}, first_offset=0
        )
        assert made.record.incarnation == 1
        assert made.config.compact
        description = await describe_topic(context, "orders")
        assert description.topic == made
        assert [(p.log_state, p.log_start_offset, p.next_offset) for p in description.partitions] == [
            ("OPEN", 0, 0)
        ] * 3
        [landed] = await Appender(context).append([group(Log("orders", 2), b"a")])
        assert isinstance(landed, Appended)
        assert landed.start_offset == 0
        assert (await describe_topic(context, "orders")).partitions[2].next_offset == 1
        assert await list_topics(context, strict=True) == [made]

    async def test_an_existing_topic_is_not_created_again(self, context: LogContext) -> None:
        made = await create_topic(context, "orders", config={"retention.ms": "5"})
        with pytest.raises(TopicAlreadyExists):
            await create_topic(context, "orders", partitions=7)
        assert (await describe_topic(context, "orders")).topic == made

    async def test_invalid_arguments_are_refused_before_anything_is_written(self, context: LogContext) -> None:
        for bad in ({"retention.msec": "1"}, {"retention.ms": "-2"}, {"cleanup.policy": "shred"}):
            with pytest.raises(InvalidArgument, match=next(iter(bad))):
                await create_topic(context, "orders", config=bad)
        for partitions in (0, -1, context.options.topic_partitions_max + 1):
            with pytest.raises(InvalidArgument, match="partitions"):
                await create_topic(context, "orders", partitions=partitions)
        with pytest.raises(InvalidArgument, match="topic"):
            await create_topic(context, "wal-shared")
        assert await kinds_left(context) == {}

    async def test_configs_are_set_and_removed_one_by_one(self, context: LogContext) -> None:
        await create_topic(context, "orders", config={"retention.ms": "5", "segment.bytes": "1000000"})
        altered = await alter_topic(context, "orders", put={"retention.bytes": "100"}, remove=["retention.ms"])
        assert altered.record.config == {"segment.bytes": "1000000", "retention.bytes": "100"}
        assert (altered.config.retention_bytes, altered.config.retention_ms) == (100, 7 * 24 * 3_600_000)
        with pytest.raises(InvalidArgument, match=r"retention\.ms"):
            await alter_topic(context, "orders", put={"retention.ms": "soon"})
        assert (await describe_topic(context, "orders")).topic == altered
        with pytest.raises(TopicNotFound):
            await alter_topic(context, "nobody", put={"retention.ms": "1"})

    async def test_partitions_only_grow(self, context: LogContext) -> None:
        await create_topic(context, "orders", partitions=2, config={"retention.ms": "5"}, first_offset=0)
        grown = await add_partitions(context, "orders", 4)
        assert grown.record.config == {"retention.ms": "5"}
        assert [p.log_state for p in (await describe_topic(context, "orders")).partitions] == ["OPEN"] * 4
        assert (await add_partitions(context, "orders", 4)).record == grown.record
        for count in (3, context.options.topic_partitions_max + 1):
            with pytest.raises(InvalidArgument, match="partitions"):
                await add_partitions(context, "orders", count)

    async def test_the_next_append_finishes_a_topic_left_by_a_crashed_creator(self, open_store: OpenStore) -> None:
        async def create(context: LogContext) -> None:
            await create_topic(context, "orders", partitions=2, config={"retention.ms": "5"}, first_offset=0)

        for after in (False, True):
            async for at_call, context in self.calls(open_store):
                if not await crashes(create, context, at_call, after=after):
                    break
                begun = await load_topic(context, "orders", strict=True)
                outcomes = await Appender(context).append([group(SECOND, b"a"), group(ORDERS, b"b")])
                first = 1 if begun is None else 0
                assert [o.start_offset for o in outcomes if isinstance(o, Appended)] == [first, first]
                description = await describe_topic(context, "orders")
                assert [p.log_state for p in description.partitions] == ["OPEN", "OPEN"]
                assert description.topic.record.config == ({} if begun is None else {"retention.ms": "5"})

    # -- delete -------------------------------------------------------------------------------------------------------
    async def test_a_deleted_topic_leaves_tombstones_and_blobs(self, context: LogContext, objects: ObjectStore) -> None:
        await fill(context)
        counter = (await control_of(context, ORDERS)).sequence_counter
        done = await delete_topic(context, "orders")
        assert (done.incarnation, done.partitions, done.segments_removed) == (1, 2, 1)
        assert done.entries_removed >= 6
        await check_gone(context, objects)
        assert (await control_of(context, ORDERS)).sequence_counter == counter
        assert await list_topics(context, strict=True) == []
        with pytest.raises(TopicNotFound):
            await describe_topic(context, "orders")
        with pytest.raises(TopicNotFound):
            await delete_topic(context, "orders")
        assert (await delete_topic(context, "orders", 1)).partitions == 0, "asked again, it is done already"
        with pytest.raises(TopicNotFound):
            await delete_topic(context, "orders", 2)

    async def test_an_unknown_topic_cannot_be_deleted(self, context: LogContext) -> None:
        with pytest.raises(TopicNotFound):
            await delete_topic(context, "orders")
        assert await kinds_left(context) == {}

    async def test_a_deletion_that_crashed_anywhere_is_resumed(self, open_store: OpenStore) -> None:
        async def delete(context: LogContext) -> None:
            await delete_topic(context, "orders")

        for after in (False, True):
            async for at_call, context in self.calls(open_store):
                await fill(context)
                crashed = await crashes(delete, context, at_call, after=after)
                topic = await load_topic(context, "orders", strict=True)
                assert topic is not None
                if crashed and topic[0].state == "DELETING":
                    with pytest.raises(TopicBeingDeleted):
                        await create_topic(context, "orders")
                    with pytest.raises(LogDeleted):
                        await initialize(context, Log("orders", 5))
                await delete_topic(context, "orders", 1)
                assert context.wal is not None
                await check_gone(context, context.wal)
                if not crashed:
                    break

    async def test_a_compaction_that_crashed_anywhere_leaves_nothing_behind_a_deletion(
        self, open_store: OpenStore
    ) -> None:
        async def compact(context: LogContext) -> None:
            await compact_once(context, ORDERS)

        async for at_call, context in self.calls(open_store):
            await fill(context)
            crashed = await crashes(compact, context, at_call, after=True)
            await delete_topic(context, "orders")
            assert context.wal is not None
            await check_gone(context, context.wal)
            if not crashed:
                break

    async def test_a_deletion_that_cannot_delete_an_object_keeps_its_name_for_the_next(
        self, open_store: OpenStore
    ) -> None:
        objects = Stubborn(f"memory://topics-{random.getrandbits(64):x}")
        context = self.on(await open_store(), objects)
        await fill(context)
        with pytest.raises(ObjectStoreUnavailable):
            await delete_topic(context, "orders")
        left = await kinds_left(context)
        assert left["segment"] == 1
        [dying] = await list_topics(context, states=["DELETING"], strict=True)
        assert dying.name == "orders"
        objects.refuses = False
        assert (await delete_topic(context, "orders")).segments_removed == 1
        await check_gone(context, objects)

    async def test_many_may_delete_at_once(self, context: LogContext, objects: ObjectStore) -> None:
        await fill(context)
        done = await asyncio.gather(*(delete_topic(context, "orders", 1) for _ in range(3)))
        assert {one.incarnation for one in done} == {1}
        await check_gone(context, objects)

    async def test_a_log_that_was_never_begun_gets_a_tombstone_too(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        made = await create_topic(context, "orders", partitions=1)
        grown = encode_value(replace(made.record, partition_count=2))
        found = await load_topic(context, "orders", strict=True)
        assert found is not None
        await context.metadata.put(context.keys.topic("orders"), grown, expected=found[1])
        await delete_topic(context, "orders")
        await check_gone(context, objects)

    # -- incarnations -------------------------------------------------------------------------------------------------
    async def test_a_topic_created_again_is_empty_and_of_the_next_incarnation(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        first = await create_topic(context, "orders", partitions=2, config={"retention.ms": "5"}, first_offset=0)
        await fill(context)
        await delete_topic(context, "orders")
        second = await create_topic(context, "orders", partitions=1)
        assert (second.record.incarnation, second.record.config, second.record.first_offset) == (2, {}, 0)
        assert second.record.topic_id != first.record.topic_id
        assert await contents(context, ORDERS) == []
        with pytest.raises(PartitionNotInitialized):
            await read_offset(context, SECOND, 1)
        await add_partitions(context, "orders", 2)
        await fill(context, tokens="new")
        assert [token for _, token in await contents(context, SECOND)] == [b"new-0", b"new-1", b"new-2", b"new-3"]
        # A repeat of the first incarnation is new in the second: its producers are forgotten.
        assert len(await contents(context, ORDERS)) == 8
        assert (await delete_topic(context, "orders", 1)).partitions == 0, (
            "a late deleter leaves the new incarnation alone"
        )
        assert len(await contents(context, ORDERS)) == 8
        await delete_topic(context, "orders", 2)
        await check_gone(context, objects, incarnation=2)

    async def test_an_old_writer_appends_to_the_incarnation_that_is_live_now(self, context: LogContext) -> None:
        await create_topic(context, "orders", first_offset=0)
        careful = dataclasses.replace(context, options=dataclasses.replace(context.options, auto_create_topics=False))
        old, careful_old = Appender(context), Appender(careful)
        for appender in (old, careful_old, old):
            [landed] = await appender.append([group(ORDERS, b"old")])
            assert isinstance(landed, Appended)
        await delete_topic(context, "orders")
        [refused] = await careful_old.append([group(ORDERS, b"lost")])
        assert isinstance(refused, LogDeleted)
        [landed] = await old.append([group(ORDERS, b"first")])
        assert isinstance(landed, Appended), "it creates the topic again"
        await delete_topic(context, "orders")
        await create_topic(context, "orders", first_offset=0)
        for payload, appender in ((b"second", old), (b"third", careful_old)):
            [landed] = await appender.append([group(ORDERS, payload)])
            assert isinstance(landed, Appended)
            await appender.close()
        assert await contents(context, ORDERS) == [(0, b"second"), (1, b"third")]

    async def test_a_deleted_topic_comes_back_by_an_append_only_where_topics_create_themselves(
        self, context: LogContext
    ) -> None:
        await fill(context)
        await delete_topic(context, "orders")
        careful = dataclasses.replace(context, options=dataclasses.replace(context.options, auto_create_topics=False))
        [refused] = await Appender(careful).append([group(ORDERS, b"a")])
        assert isinstance(refused, LogDeleted)
        [landed] = await Appender(context).append([group(ORDERS, b"a")])
        assert isinstance(landed, Appended)
        assert landed.start_offset == 1
        assert await contents(context, ORDERS) == [(1, b"a")]

    async def test_a_late_settle_harms_neither_the_deleted_log_nor_the_next(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        """h01a"""
        await fill(context)
        pending = await last_append(context, SECOND)
        await delete_topic(context, "orders")
        await settle(context, SECOND, pending)
        with pytest.raises(PartitionNotInitialized):
            await read_offset(context, SECOND, pending.end_offset)
        assert (await remove_leftovers(context, SECOND)).entries == 1
        await check_gone(context, objects)
        await settle(context, SECOND, pending)
        await create_topic(context, "orders", partitions=2)
        await fill(context, tokens="new")
        expected = [(i + 1, f"new-{i}".encode()) for i in range(4)]
        assert await contents(context, SECOND) == expected
        await settle_and_clear(context, SECOND)
        with pytest.raises(StaleSelf):
            await settle(context, SECOND, pending)
        assert (await remove_leftovers(context, SECOND)).found == 0
        assert await contents(context, SECOND) == expected

    @pytest.mark.parametrize(
        ("actor", "fate"),
        [
            *((actor, fate) for fate in ("deleted", "created-again") for actor in ACTORS),
            ("compact", "created-again-and-compacted"),
        ],
    )
    async def test_a_process_that_slept_through_a_deletion_changes_no_later_incarnation(
        self, open_store: OpenStore, actor: str, fate: str
    ) -> None:
        """h01a to h01e, h23: at every call of theirs, with the topic deleted, or created again with new records."""
        act, again = ACTORS[actor], fate != "deleted"
        async for at_call, context in self.calls(open_store):
            if actor != "create":
                await fill(context)
            store = Interrupted(context.metadata, at_call, after=True, sleeps=True)
            sleeper = asyncio.create_task(act(dataclasses.replace(context, metadata=store)))
            reached = asyncio.create_task(store.reached.wait())
            await asyncio.wait([sleeper, reached], return_when=asyncio.FIRST_COMPLETED)
            if not reached.done():
                await asyncio.gather(sleeper, return_exceptions=True)
                reached.cancel()
                break
            await live_on(context, again=again, compacted=fate.endswith("compacted"))
            store.wake.set()
            [outcome] = await asyncio.gather(sleeper, return_exceptions=True)
            assert outcome is None or isinstance(outcome, LlogError), repr(outcome)
            await check_life(context, again=again, may_append=actor == "append")

    async def test_retention_limits_of_a_deleted_incarnation_delete_nothing_later(self, context: LogContext) -> None:
        """h01d: read from the config, then slept."""
        await create_topic(context, "orders", partitions=2, config={"retention.bytes": "0"})
        limits = await configured_limits(context, "orders")
        assert limits.retention_bytes == 0
        await live_on(context, again=True)
        with pytest.raises(LogBusy, match="created again"):
            await retain(context, ORDERS, limits)
        await check_life(context, again=True, may_append=False)

    async def test_lost_answers_neither_lose_nor_double_a_topic(
        self, open_store: OpenStore, objects: ObjectStore
    ) -> None:
        calm = self.on(await open_store(), objects)
        rates = FaultRates(unavailable=0.05, lost_reply=0.1, lost_request=0.1)
        for seed in range(30 if SOAK else 3):
            store = FaultyMetadataStore(
                calm.metadata, random_source=random.Random(seed), rates=rates, sleep=asyncio.sleep
            )
            bad = dataclasses.replace(calm, metadata=store)
            made = await until_done(lambda: create_topic(bad, "orders", partitions=2))  # noqa: B023
            found = await load_topic(calm, "orders", strict=True)
            assert found is not None
            assert (found[0].state, found[0].incarnation) == ("LIVE", seed + 1)
            if isinstance(made, Topic):
                assert made.record == found[0]
            await fill(calm)
            await until_done(lambda: delete_topic(bad, "orders", seed + 1))  # noqa: B023
            await check_gone(calm, objects, incarnation=seed + 1)
