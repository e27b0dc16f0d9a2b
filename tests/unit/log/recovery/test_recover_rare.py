"""Recovery in rare states: half-made segments, several incarnations of a topic, damage, clocks that are ahead, and
repeated runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llog.cli.meta import RestoreReport
from llog.formats.values import SegmentRecord
from llog.log.append.append import Appender
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.index import entry_of
from llog.log.keys import Log
from llog.log.read.read import read_offset
from llog.log.recovery.recover import Recovered, recover
from llog.log.rewrite.segments import register
from llog.log.topics.admin import create_topic
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.stores.metadata.port import Key, Record
from llog.stores.objects.port import ObjectStore
from tests.contract.backup_suite import backed_up, check_all, restored
from tests.contract.log_suite import ORDERS, contents, group
from tests.unit.log.recovery.test_recover import (
    PRICES,
    clean,
    delete_blobs,
    named,
    next_millisecond,
    objects,
    source,
    target,
    write,
    write_keyed,
)

__all__ = ["objects", "source", "target"]  # fixtures

OTHER = Log("visits", 0)


def outcomes(done: Recovered) -> list[str]:
    """The first words of what became of each slice."""
    return [one.outcome.partition(":")[0] for one in done.slices]


def is_incomplete(done: Recovered) -> bool:
    report = RestoreReport(backup="", backup_id="", taken_at_ms=0, records=0, logs=0, dry_run=False, recovering=True)
    return report._replace(slices=done.slices, unreadable=done.unreadable).incomplete()


async def delete_unnamed_segments(objects: ObjectStore, context: LogContext, log: Log) -> None:
    there = {meta.name async for meta in objects.list(context.keys.segment_objects(log))}
    await objects.delete_many(sorted(there - await named(context, log)))


async def test_a_segment_that_was_only_planned_hides_no_blob(
    source: LogContext, target: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the backup is taken, a compactor registers a segment of what came after the copy, and dies."""
    await write(source, "before", 2, [ORDERS])
    scan, segments = source.metadata.scan, source.keys.segments(ORDERS)
    met = False

    async def meet_a_compactor(parent: Key, **named: Any) -> list[Record]:
        nonlocal met
        if parent == segments and not met:
            met = True
            await write(source, "after", 2, [ORDERS])
            await _plan_a_segment(source)
        return await scan(parent, **named)

    with monkeypatch.context() as patched:
        patched.setattr(source.metadata, "scan", meet_a_compactor)
        place = await backed_up(source, objects)
    await restored(target, place)
    assert (await recover(target)).appended == 4
    assert await contents(target, ORDERS) == await contents(source, ORDERS)


async def _plan_a_segment(context: LogContext) -> None:
    entries = [entry_of(item) async for item in context.metadata.scan_all(context.keys.index(ORDERS))]
    segment_id = new_object_id(context.now_ms(), context.random_bits)
    assert context.segments is not None
    record = SegmentRecord(
        segment_id=segment_id,
        incarnation=1,
        start_offset=1,
        end_offset=entries[-1].end_offset,
        size_bytes=0,
        sources=tuple(entry.value.data_key for entry in entries),
        state="COPY_SEGMENT_STARTED",
        data_key=context.segments.uri(context.keys.segment_object(ORDERS, segment_id)),
    )
    await register(context, ORDERS, record)


async def test_a_segment_behind_a_merge_is_adopted_though_it_is_of_a_lower_level(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    """The backup knew the blobs alone: the segment fits once the merge before it has moved the cursor to it."""
    await write(source, "before", 4, [ORDERS])
    place = await backed_up(source, objects)
    for _ in range(3):
        assert await compact_once(source, ORDERS, max_offsets=2) is not None
    assert await merge_once(source, ORDERS) is not None
    assert await compact_once(source, ORDERS) is not None
    written = await contents(source, ORDERS)
    await delete_unnamed_segments(objects, source, ORDERS)
    await delete_blobs(objects, source)
    await restored(target, place)
    assert len((await recover(target)).adopted) == 2
    assert await contents(target, ORDERS) == written
    await check_all(target, [ORDERS])


@pytest.mark.parametrize("gone", ["nothing", "those that were merged"])
async def test_blobs_of_what_was_merged_since_the_backup_do_not_come_back_beside_the_merge(
    source: LogContext, target: LogContext, objects: ObjectStore, gone: str
) -> None:
    """The segments between the merge and the blobs say what the merge holds; without them its batches do."""
    await write(source, "before", 1, [ORDERS, OTHER])
    place = await backed_up(source, objects)
    await write(source, "after", 4, [ORDERS, OTHER])
    for _ in range(5):
        assert await compact_once(source, ORDERS, max_offsets=2) is not None
    assert await merge_once(source, ORDERS) is not None
    await write(source, "last", 1, [ORDERS, OTHER])
    if gone != "nothing":
        await delete_unnamed_segments(objects, source, ORDERS)
    await restored(target, place)
    for _ in range(2):
        await recover(target)
        for log in (ORDERS, OTHER):
            assert await contents(target, log) == await contents(source, log)
    await check_all(target, [ORDERS, OTHER])


@pytest.mark.parametrize("left", ["nothing", "a blob"])
async def test_a_segment_behind_what_retention_took_since_the_backup_is_read_again(
    source: LogContext, target: LogContext, objects: ObjectStore, left: str
) -> None:
    """The restored log begins lower, at blobs that are gone. As long as one of them is there, none is given up."""
    await write(source, "before", 4, [ORDERS])
    place = await backed_up(source, objects)
    for _ in range(2):
        assert await compact_once(source, ORDERS, max_offsets=4) is not None
    await delete_records(source, ORDERS, 5)
    written = await contents(source, ORDERS)
    await delete_unnamed_segments(objects, source, ORDERS)
    blobs = [meta.name async for meta in objects.list(source.keys.blobs())]
    await objects.delete_many(blobs if left == "nothing" else blobs[1:])
    await restored(target, place)
    done = await recover(target)
    if left == "nothing":
        assert await contents(target, ORDERS) == written
        await check_all(target, [ORDERS])
        assert (await recover(target)).adopted == []
    else:
        assert done.adopted == []
        assert (await read_offset(target, ORDERS, 2)).payload == b"+"


# -- compacted by key since the backup -------------------------------------------------------------------------------


async def test_records_that_only_a_segment_made_by_key_holds_are_told_of(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await create_topic(source, PRICES.topic, config={"cleanup.policy": "compact"})
    await write_keyed(source, "before", b"a")
    place = await backed_up(source, objects)
    await write_keyed(source, "after", b"b", b"b", b"c")
    await clean(source)
    await delete_unnamed_segments(objects, source, PRICES)
    await delete_blobs(objects, source)
    await restored(target, place)
    for dry_run in (True, False, False):
        done = await recover(target, dry_run=dry_run)
        assert [(one.outcome[:4], one.msg_count) for one in done.slices] == [("left", 2)], done
        assert "key compaction" in done.slices[0].outcome
        assert is_incomplete(done), "a script must see it"


async def test_what_stands_behind_a_segment_made_by_key_comes_back(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await create_topic(source, PRICES.topic, config={"cleanup.policy": "compact"})
    await write_keyed(source, "before", b"a")
    place = await backed_up(source, objects)
    await write_keyed(source, "after", b"b", b"b", b"c")
    await clean(source)
    await write_keyed(source, "last", b"d", b"e")
    await delete_unnamed_segments(objects, source, PRICES)
    await delete_blobs(objects, source)
    await restored(target, place)
    assert sorted(outcomes(await recover(target))) == ["appended", "left"]
    there = await contents(target, PRICES)
    assert [value for _, value in there][-2:] == [b"last-0", b"last-1"]
    assert outcomes(await recover(target)) == ["left"], "nothing is appended twice"
    assert await contents(target, PRICES) == there
    await check_all(target, [PRICES])


async def test_blobs_of_a_log_compacted_by_key_come_back_in_order_and_once(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    """Its segments would come before the blobs of those that cannot be appended: the oldest value would win."""
    await create_topic(source, PRICES.topic, config={"cleanup.policy": "compact"})
    await write_keyed(source, "before", b"a")
    place = await backed_up(source, objects)
    for name in ("one", "two"):
        await write_keyed(source, name, b"b", b"b")
    written = [(1, b"before-0"), (2, b"one-0"), (3, b"one-1"), (4, b"two-0"), (5, b"two-1")]
    await clean(source)
    await write_keyed(source, "three", b"b")
    await delete_unnamed_segments(objects, source, PRICES)
    await restored(target, place)
    for _ in range(2):
        await recover(target)
        assert await contents(target, PRICES) == [*written, (6, b"three-0")]
    await check_all(target, [PRICES])


# -- appends since the restore ---------------------------------------------------------------------------------------


async def test_segments_come_back_also_when_somebody_appended_since_the_restore(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 2, [ORDERS])
    place = await backed_up(source, objects)
    await write(source, "lost", 2, [ORDERS])
    assert await compact_once(source, ORDERS, max_offsets=4) is not None
    assert await compact_once(source, ORDERS) is not None
    await delete_blobs(objects, source)
    await restored(target, place)
    await next_millisecond(target)
    await write(target, "new", 1, [ORDERS])
    for _ in range(2):
        await recover(target)
        values = [value for _, value in await contents(target, ORDERS)]
        assert values == [b"before-0", b"+", b"before-1", b"+", b"new-0", b"+", b"lost-0", b"+", b"lost-1", b"+"]
    await check_all(target, [ORDERS])
    while await compact_once(target, ORDERS) is not None:
        pass
    assert (await recover(target)).slices == []
    assert [value for _, value in await contents(target, ORDERS)] == values


# -- several incarnations of a topic ---------------------------------------------------------------------------------


async def test_a_topic_that_was_deleted_in_the_backup_and_lived_again_is_told_of(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 1, [OTHER])
    await delete_topic(source, OTHER.topic)
    await next_millisecond(source)
    place = await backed_up(source, objects)
    await next_millisecond(source)
    await create_topic(source, OTHER.topic)
    await write(source, "again", 2, [OTHER])
    await restored(target, place)
    done = await recover(target)
    [left] = done.slices
    assert (left.log, left.msg_count, left.objects) == (OTHER, 4, 2), "those of before are deleted, and stay so"
    assert "create it" in left.outcome
    assert is_incomplete(done)
    await create_topic(target, OTHER.topic)
    await recover(target)
    values = [value for _, value in await contents(target, OTHER)]
    assert values[-4:] == [b"again-0", b"+", b"again-1", b"+"]


async def test_segments_of_a_later_incarnation_than_the_backup_knows_are_told_of(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 1, [OTHER])
    place = await backed_up(source, objects)
    await delete_topic(source, OTHER.topic)
    await create_topic(source, OTHER.topic)
    await write(source, "again", 2, [OTHER])
    assert await compact_once(source, OTHER) is not None
    await delete_blobs(objects, source)
    await restored(target, place)
    done = await recover(target)
    assert [(one.outcome[:4], one.msg_count) for one in done.slices] == [("left", 4)]
    assert is_incomplete(done)


async def test_of_a_topic_that_the_backup_does_not_know_the_last_life_comes_back_from_its_segments(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    place = await backed_up(source, objects)
    await write(source, "first", 3, [OTHER])
    assert await compact_once(source, OTHER) is not None
    kept = {name: await objects.get(name) for name in await named(source, OTHER)}
    await delete_topic(source, OTHER.topic)
    await write(source, "again", 1, [OTHER])
    assert await compact_once(source, OTHER) is not None
    written = await contents(source, OTHER)
    await delete_blobs(objects, source)
    for name, data in kept.items():
        await objects.put(name, [data])  # deletion had not come to it yet
    await restored(target, place)
    await recover(target)
    assert await contents(target, OTHER) == written


# -- damage and clocks -----------------------------------------------------------------------------------------------


async def test_a_log_that_is_damaged_keeps_no_other_from_coming_back(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 2, [ORDERS, OTHER])
    await source.metadata.put(source.keys.index_entry(ORDERS, 2), b"not an entry")
    place = await backed_up(source, objects)
    await write(source, "after", 1, [ORDERS, OTHER])
    assert await compact_once(source, OTHER) is not None
    await restored(target, place)
    done = await recover(target)
    assert await contents(target, OTHER) == await contents(source, OTHER)
    assert [one.log for one in done.slices if one.outcome.startswith("refused")] == [ORDERS]
    assert is_incomplete(done)


async def test_what_a_writer_drew_whose_clock_is_ahead_comes_back(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    place = await backed_up(source, objects)
    ahead = replace(source, now_ms=lambda: source.now_ms() + 200)
    appender = Appender(ahead)
    await appender.append([group(ORDERS, b"early")])
    await appender.close()
    await restored(target, place)
    assert (await recover(target)).appended == 1
    appender = Appender(target)
    await appender.append([group(ORDERS, b"late")])
    await appender.close()
    assert [value for _, value in await contents(target, ORDERS)] == [b"early", b"late"]
