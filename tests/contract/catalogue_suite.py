"""What the segment catalogue promises on every metadata store."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from llog.errors import (
    IllegalSegmentState,
    InvalidArgument,
    LogDeleted,
    MetadataUnavailable,
    PartitionNotInitialized,
    SegmentNotFound,
    TopicNotFound,
)
from llog.formats.values import SegmentRecord, encode_value
from llog.log.append.append import Appender
from llog.log.catalogue import SegmentCatalogue, deletion_of, resume_deletions
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.rewrite.segments import list_segments
from llog.log.topics.admin import create_topic
from llog.log.topics.delete import ORDER, delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.port import GroupOutcome, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.log_suite import ORDERS, context_on, group
from tests.contract.on_stores import OpenStore
from tests.contract.topic_sleepers import check_gone, crashes, fill, until_done

SEGMENT = "018bcfe5687b7000800000000000abcd"


def new_segment(segment_id: str = SEGMENT, start: int = 1, end: int = 9, **more: object) -> SegmentRecord:
    first = SegmentRecord(
        segment_id=segment_id,
        incarnation=1,
        start_offset=start,
        end_offset=end,
        size_bytes=0,
        state="COPY_SEGMENT_STARTED",
    )
    return replace(first, **more)


def answers(catalogue: SegmentCatalogue) -> object:
    epochs = {
        epoch: (one.offset_to_id, one.unreferenced_segment_ids, one.highest_log_offset)
        for epoch, one in catalogue.epochs.items()
    }
    return epochs, catalogue.segments()


class Refusing(ForwardingMetadataStore):
    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        return [MetadataUnavailable("write", one[0].key.path, "injected") for one in groups]


class CatalogueContract:
    """Inherited per metadata store; the subclass provides `open_store`."""

    stride = 1
    """Of the calls at which a deletion crashes."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return MemoryObjectStore(f"memory://catalogue-{uuid.uuid4().hex}")

    @pytest.fixture
    async def context(self, open_store: OpenStore, objects: ObjectStore) -> LogContext:
        context = context_on(await open_store(), objects, 1)
        await create_topic(context, "orders", partitions=2)
        return context

    async def test_segments_that_compaction_and_merge_wrote_are_found_by_epoch_and_offset(
        self, context: LogContext
    ) -> None:
        appender = Appender(context)
        for i in range(6):
            await appender.append([group(ORDERS, b"%d" % i, b"x" * 50)])
            if i % 2:
                assert await compact_once(context, ORDERS) is not None
        catalogue = await SegmentCatalogue.load(context, ORDERS)
        assert [(s.start_offset, s.end_offset, s.state) for s in catalogue.segments(0)] == [
            (1, 4, "COPY_SEGMENT_FINISHED"),
            (5, 8, "COPY_SEGMENT_FINISHED"),
            (9, 12, "COPY_SEGMENT_FINISHED"),
        ]
        assert [catalogue.find(0, offset) for offset in (0, 13)] == [None, None]
        assert [found.start_offset for o in (1, 4, 5, 12) if (found := catalogue.find(0, o))] == [1, 1, 5, 9]
        assert (catalogue.highest_offset(0), catalogue.highest_offset(1)) == (12, None)
        before = catalogue.log_size_bytes()
        assert before == sum(s.size_bytes for s in catalogue.segments()) > 0
        assert catalogue.next_segment_with_transactions(0, 1) is None
        merged = await merge_once(context, ORDERS, min_inputs=2)
        assert merged is not None
        await catalogue.refresh()
        found = catalogue.find(0, 1)
        assert found is not None
        assert (found.data_key, found.end_offset) == (merged.data_key, merged.end_offset)
        retired = {s.segment_id for s in catalogue.segments() if s.state == "DELETE_SEGMENT_STARTED"}
        assert retired
        assert retired <= catalogue.epochs[0].unreferenced_segment_ids

    async def test_a_live_catalogue_and_a_rebuilt_one_say_the_same_after_every_change(
        self, context: LogContext
    ) -> None:
        live = await SegmentCatalogue.load(context, ORDERS)
        rng = random.Random(7)
        ids = [f"018bcfe5687b70008000{n:012x}" for n in range(3)]
        for n, segment_id in enumerate(ids):
            await live.add(new_segment(segment_id, 1, 10 * (n + 1)))
            await live.update(segment_id, "COPY_SEGMENT_FINISHED", epochs={0: 1, n + 1: 5 + n}, size_bytes=100)
            assert answers(await SegmentCatalogue.load(context, ORDERS)) == answers(live)
        for segment_id in rng.sample(ids, 3):
            await live.update(segment_id, "DELETE_SEGMENT_STARTED")
            assert answers(await SegmentCatalogue.load(context, ORDERS)) == answers(live)
            if rng.random() < 0.5:
                await live.update(segment_id, "DELETE_SEGMENT_FINISHED")
                assert answers(await SegmentCatalogue.load(context, ORDERS)) == answers(live)
        assert live.find(0, 3) is None

    async def test_a_segment_moves_only_as_the_states_say_and_repeats_are_fine(self, context: LogContext) -> None:
        catalogue = await SegmentCatalogue.load(context, ORDERS)
        with pytest.raises(IllegalSegmentState):
            await catalogue.add(new_segment(state="COPY_SEGMENT_FINISHED"))
        await catalogue.add(new_segment())
        await catalogue.add(new_segment())
        with pytest.raises(InvalidArgument):
            await catalogue.add(new_segment(end=10))
        with pytest.raises(IllegalSegmentState):
            await catalogue.update(SEGMENT, "DELETE_SEGMENT_FINISHED")
        await catalogue.update(SEGMENT, "COPY_SEGMENT_FINISHED", epochs={0: 1}, size_bytes=5)
        noted = await catalogue.update(SEGMENT, "COPY_SEGMENT_FINISHED", custom_metadata="note")
        assert noted is not None
        assert noted == catalogue.get(SEGMENT) == replace(noted, custom_metadata="note", size_bytes=5)
        with pytest.raises(IllegalSegmentState):
            await catalogue.update(SEGMENT, "COPY_SEGMENT_STARTED")
        assert [(await catalogue.update(SEGMENT, "DELETE_SEGMENT_STARTED")) is None for _ in range(2)] == [False, False]
        assert (await catalogue.update(SEGMENT, "DELETE_SEGMENT_FINISHED")) is not None
        assert await catalogue.update(SEGMENT, "DELETE_SEGMENT_FINISHED") is None
        with pytest.raises(SegmentNotFound):
            await catalogue.update(SEGMENT, "DELETE_SEGMENT_STARTED")
        with pytest.raises(SegmentNotFound):
            catalogue.get(SEGMENT)
        assert await list_segments(context, ORDERS) == []

    async def test_what_no_segment_can_be_is_refused_by_name(self, context: LogContext) -> None:
        catalogue = await SegmentCatalogue.load(context, ORDERS)
        for bad, field in (
            (new_segment(start=5, end=4), "end_offset"),
            (new_segment(epochs={0: 1, 1: 1}), "epochs"),
            (new_segment(epochs={0: 10}), "epochs"),
            (new_segment(incarnation=2), "record"),
        ):
            with pytest.raises(InvalidArgument) as refused:
                await catalogue.add(bad)
            assert refused.value.argument == field
        with pytest.raises(InvalidArgument) as refused:
            await catalogue.update(SEGMENT, "COPY_SEGMENT_FINISHED", end_offset=7)
        assert refused.value.argument == "end_offset"
        with pytest.raises(PartitionNotInitialized):
            await SegmentCatalogue.load(context, Log("missing", 0))

    async def test_a_value_that_could_not_be_read_back_is_never_stored(self, context: LogContext) -> None:
        """One such record would end every listing of the log: compaction, retention and its deletion with it."""
        catalogue = await SegmentCatalogue.load(context, ORDERS)
        for bad in (new_segment(size_bytes=-1), new_segment(start=-1), new_segment(epochs={-1: 1})):
            with pytest.raises(InvalidArgument):
                await catalogue.add(bad)
        with pytest.raises(InvalidArgument):
            await catalogue.add(new_segment("../meta/control"))
        await catalogue.add(new_segment())
        for changes in ({"size_bytes": -1}, {"epochs": {"a": 1}}, {"epochs": None}, {"custom_metadata": b"x"}):
            with pytest.raises(InvalidArgument) as refused:
                await catalogue.update(SEGMENT, "COPY_SEGMENT_FINISHED", **changes)
            assert refused.value.argument == next(iter(changes))
        with pytest.raises(IllegalSegmentState):
            await catalogue.update(SEGMENT, "COPY_SEGMENT_LOST")  # type: ignore[arg-type]
        await catalogue.refresh()
        assert catalogue.segments() == [new_segment()]

    async def test_memory_changes_only_after_the_store(self, context: LogContext) -> None:
        catalogue = await SegmentCatalogue.load(context, ORDERS)
        await catalogue.add(new_segment())
        before = answers(catalogue)
        there = await list_segments(context, ORDERS)
        catalogue._context = dataclasses.replace(context, metadata=Refusing(context.metadata))
        with pytest.raises(MetadataUnavailable):
            await catalogue.update(SEGMENT, "COPY_SEGMENT_FINISHED", epochs={0: 1})
        with pytest.raises(MetadataUnavailable):
            await catalogue.add(new_segment("018bcfe5687b7000800000000000abce"))
        assert answers(catalogue) == before
        assert await list_segments(context, ORDERS) == there

    async def test_lost_answers_leave_memory_and_store_agreeing(self, context: LogContext) -> None:
        faulty = FaultyMetadataStore(context.metadata, random_source=random.Random(3))
        catalogue = await SegmentCatalogue.load(dataclasses.replace(context, metadata=faulty), ORDERS)
        faulty.rates = FaultRates(lost_reply=0.2, lost_request=0.1)
        for n in range(6):
            segment_id, first = f"018bcfe5687b70008000{n:012x}", 10 * n
            done = {"epochs": {0: first}, "size_bytes": 1}
            await until_done(lambda i=segment_id, o=first: catalogue.add(new_segment(i, o, o + 9)))  # type: ignore[misc]
            await until_done(lambda i=segment_id, d=done: catalogue.update(i, "COPY_SEGMENT_FINISHED", **d))  # type: ignore[misc]
            for state in ("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED") if n % 2 else ():
                await until_done(lambda i=segment_id, s=state: catalogue.update(i, s))  # type: ignore[misc]
        assert answers(await SegmentCatalogue.load(context, ORDERS)) == answers(catalogue)
        assert len(catalogue.segments()) == 3

    async def test_two_processes_that_move_one_segment_end_with_one_record(self, context: LogContext) -> None:
        one, two = await SegmentCatalogue.load(context, ORDERS), await SegmentCatalogue.load(context, ORDERS)
        await one.add(new_segment())
        await two.update(SEGMENT, "COPY_SEGMENT_FINISHED", epochs={0: 1})
        await one.update(SEGMENT, "COPY_SEGMENT_FINISHED", size_bytes=9)
        assert one.get(SEGMENT).epochs == {0: 1}
        await two.refresh()
        assert answers(one) == answers(two)

    async def test_a_terminal_record_that_a_crash_left_counts_as_gone_and_is_swept(self, context: LogContext) -> None:
        catalogue = await SegmentCatalogue.load(context, ORDERS)
        key = context.keys.segment(ORDERS, SEGMENT)
        left = new_segment(state="DELETE_SEGMENT_FINISHED", epochs={0: 1})
        await context.metadata.put(key, encode_value(left))
        await catalogue.refresh()
        assert catalogue.segments() == []
        assert (await catalogue.sweep(), await catalogue.sweep()) == (1, 0)
        assert await list_segments(context, ORDERS) == []

    async def test_records_of_a_dead_life_do_not_count_and_those_of_a_later_are_not_touched(
        self, context: LogContext
    ) -> None:
        old = await SegmentCatalogue.load(context, ORDERS)
        await delete_topic(context, "orders")
        with pytest.raises(LogDeleted):
            await old.add(new_segment())
        await create_topic(context, "orders", partitions=2)
        new = await SegmentCatalogue.load(context, ORDERS)
        assert new.incarnation == 2
        await context.metadata.put(context.keys.segment(ORDERS, SEGMENT), encode_value(new_segment(epochs={0: 1})))
        await new.refresh()
        assert new.segments() == []
        later = "018bcfe5687b7000800000000000abce"
        await new.add(new_segment(later, incarnation=2))
        with pytest.raises(LogDeleted):
            await old.update(later, "DELETE_SEGMENT_STARTED")
        with pytest.raises(LogDeleted):
            await old.add(new_segment("018bcfe5687b7000800000000000abcf"))
        assert new.get(later).state == "COPY_SEGMENT_STARTED"

    async def test_partition_delete_goes_from_marked_to_finished_whoever_crashes_where(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        await fill(context)
        before = await deletion_of(context, "orders")
        assert (before.state, before.partitions, before.done) == ("LIVE", (None, None), False)
        reached = [-1, -1]
        at_call = 0
        while await crashes(lambda c: delete_topic(c, "orders", 1), context, at_call, after=at_call % 2 == 0):
            seen = await deletion_of(context, "orders")
            now = [-1 if state is None else ORDER.index(state) for state in seen.partitions]
            assert all(later >= earlier for earlier, later in zip(reached, now, strict=True)), "it went back"
            reached = now
            at_call += self.stride
        resumed = await resume_deletions(context)
        assert resumed.failed == ()
        after = await deletion_of(context, "orders")
        assert after.done
        assert after.partitions == ("DELETE_PARTITION_FINISHED",) * 2
        await check_gone(context, objects)
        assert (await SegmentCatalogue.load(context, ORDERS)).segments() == []
        assert (await resume_deletions(context)).finished == ()

    async def test_deletions_left_half_way_are_resumed_all_of_them(
        self, context: LogContext, objects: ObjectStore
    ) -> None:
        await create_topic(context, "second", partitions=1)
        for topic in ("orders", "second"):
            assert await crashes(lambda c, topic=topic: delete_topic(c, topic), context, 4, after=True)  # type: ignore[misc]
            assert (await deletion_of(context, topic)).state == "DELETING"
        resumed = await resume_deletions(context)
        assert [one.topic for one in resumed.finished] == ["orders", "second"]
        assert (await deletion_of(context, "second")).done
        with pytest.raises(TopicNotFound):
            await deletion_of(context, "missing")
