"""After a loss: what was appended since the backup comes back from the objects that hold it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest

from llog.errors import PartitionNotInitialized, RestoreRefused, UnknownProducer
from llog.formats.buffers import crc32c
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.context import LogContext
from llog.log.index import entry_of
from llog.log.inspect.check_objects import read_footer
from llog.log.inspect.invariants import check_log
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from llog.log.recovery.recover import recover
from llog.log.recovery.restore import read_hold, release_vacuum
from llog.log.topics.admin import create_topic
from llog.log.topics.create import initialize
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import KeyCompactOptions, key_compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests.contract.backup_suite import LOGS, backed_up, check_all, memory_context, restored
from tests.contract.log_suite import ORDERS, contents, group
from tests.patience import until


@pytest.fixture
def objects() -> ObjectStore:
    return MemoryObjectStore(f"memory://recover-{time.time_ns()}")


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def source(objects: ObjectStore, request: pytest.FixtureRequest) -> LogContext:
    return memory_context(objects, atomic=request.param, seed=1)


@pytest.fixture(params=[True, False], ids=["to-atomic", "to-compare-and-set"])
def target(objects: ObjectStore, request: pytest.FixtureRequest) -> LogContext:
    return memory_context(objects, atomic=request.param, seed=2)


async def next_millisecond(context: LogContext) -> None:
    """Blobs of the same millisecond have no order, and a blob is younger than a restore only in a later one."""
    now_ms = context.now_ms()
    await until(lambda: context.now_ms() > now_ms)


async def write(context: LogContext, name: str, count: int, logs: list[Log] = LOGS) -> None:
    appender = Appender(context)
    for number in range(count):
        await appender.append([group(log, f"{name}-{number}".encode(), b"+") for log in logs])
        await next_millisecond(context)
    await appender.close()


async def delete_blobs(objects: ObjectStore, context: LogContext) -> None:
    """As vacuum would, once nothing names them."""
    await objects.delete_many([meta.name async for meta in objects.list(context.keys.blobs())])


async def test_slices_appended_after_the_backup_are_appended_again(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 3)
    place = await backed_up(source, objects)
    await write(source, "after", 4)
    await restored(target, place)
    listed = await recover(target, dry_run=True)
    assert [one.msg_count for one in listed.slices] == [2] * 8
    assert len(await contents(target, ORDERS)) == 6, "listing changes nothing"
    done = await recover(target)
    assert done.appended == 16
    for log in LOGS:
        assert await contents(target, log) == await contents(source, log)
    await check_all(target)
    again = await recover(target)
    assert again.slices == [], "a second run finds nothing left to do"


async def test_a_slice_that_a_segment_of_the_backup_holds_is_not_appended_again(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 5)
    await compact_once(source, ORDERS)
    place = await backed_up(source, objects)
    await restored(target, place)
    assert (await recover(target)).slices == []
    assert await contents(target, ORDERS) == await contents(source, ORDERS)


async def test_what_was_compacted_since_comes_back_at_its_offsets_though_its_blobs_are_gone(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 5)
    await compact_once(source, ORDERS, max_offsets=4)
    place = await backed_up(source, objects)
    await write(source, "after", 5)
    for log in LOGS:
        while await compact_once(source, log, max_offsets=5) is not None:
            pass
    written = [await contents(source, log) for log in LOGS]
    await delete_blobs(objects, source)
    await restored(target, place)
    assert (await check_log(target, ORDERS)).faults, "the restored entries name blobs that are gone"
    done = await recover(target)
    assert done.appended == 20
    assert done.adopted
    assert [await contents(target, log) for log in LOGS] == written
    await check_all(target)
    again = await recover(target)
    assert (again.slices, again.adopted) == ([], [])
    while await compact_once(target, ORDERS) is not None:
        pass
    assert await contents(target, ORDERS) == written[0]
    await check_all(target)


async def test_a_merge_made_since_the_backup_is_adopted(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 6)
    for _ in range(3):
        assert await compact_once(source, ORDERS, max_offsets=4) is not None
    place = await backed_up(source, objects)
    old = [meta.name async for meta in objects.list(source.keys.segment_objects(ORDERS))]
    assert await merge_once(source, ORDERS) is not None
    written = await contents(source, ORDERS)
    await objects.delete_many(old)
    await restored(target, place)
    assert {fault.kind for fault in (await check_log(target, ORDERS)).faults} == {"missing object"}
    assert len((await recover(target)).adopted) == 1
    assert await contents(target, ORDERS) == written
    await check_all(target, [ORDERS])


async def test_a_topic_created_after_the_backup_comes_back(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 1)
    place = await backed_up(source, objects)
    fresh = [Log("fresh", 0), Log("fresh", 1)]
    await write(source, "after", 3, fresh)
    await compact_once(source, fresh[0])
    await restored(target, place)
    await recover(target)
    for log in fresh:
        assert await contents(target, log) == await contents(source, log)
    await check_all(target, fresh)


async def test_repeats_of_an_idempotent_producer_are_recognised(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 1)
    place = await backed_up(source, objects)
    numbered = _numbered(bytes(group(ORDERS, b"a").body[0]), producer_id=7, sequence=0)
    for _ in range(2):
        # Uploaded twice, as by a client that got no answer.
        appender = Appender(source)
        [landed] = await appender.append([EncodedGroup(ORDERS, 1, "kafka-v2", [numbered], 5)])
        assert isinstance(landed, Appended)
        await appender.close()
        await next_millisecond(source)
    await restored(target, place)
    done = await recover(target)
    assert [one.outcome for one in done.slices] == ["appended", "repeated"]
    assert [payload for _, payload in await contents(target, ORDERS)] == [b"before-0", b"+", b"a"]


@pytest.mark.parametrize("known", [0, 1], ids=["unknown producer", "known producer"])
async def test_blobs_in_the_wrong_order_are_put_right_by_their_producers_numbers(
    source: LogContext, target: LogContext, objects: ObjectStore, known: int
) -> None:
    if not known:
        await initialize(source, ORDERS)
    await next_millisecond(source)
    instant, place = source.now_ms() - 1, None
    for number in range(5):
        if number == known:
            place = await backed_up(source, objects)
        backwards = replace(source, now_ms=partial(int, instant - 10 * number))
        appender = Appender(backwards)
        body = _numbered(bytes(group(ORDERS, b"n%d" % number).body[0]), producer_id=7, sequence=number)
        claims = (ProducerClaim(7, 0, number, number),)
        [landed] = await appender.append([EncodedGroup(ORDERS, 1, "kafka-v2", [body], 5, claims)])
        assert isinstance(landed, Appended)
        await appender.close()
    assert place is not None
    await restored(target, place)
    done = await recover(target)
    assert {one.outcome for one in done.slices} == {"appended"}
    assert await contents(target, ORDERS) == await contents(source, ORDERS)


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_producer_whose_first_blobs_are_lost_comes_back_from_the_next_number_on(
    source: LogContext, target: LogContext, objects: ObjectStore, lost: int
) -> None:
    await write(source, "before", 1)
    place = await backed_up(source, objects)
    uploaded: list[str] = []
    for number in range(5):
        appender = Appender(source)
        body = _numbered(bytes(group(ORDERS, b"n%d" % number).body[0]), producer_id=7, sequence=number)
        claims = (ProducerClaim(7, 0, number, number),)
        [landed] = await appender.append([EncodedGroup(ORDERS, 1, "kafka-v2", [body], 5, claims)])
        assert isinstance(landed, Appended)
        uploaded.append(landed.wal_uri)
        await appender.close()
        await next_millisecond(source)
    for uri in uploaded[:lost]:
        await objects.delete(objects.name_of(uri))
    await restored(target, place)
    done = await recover(target)
    assert {one.outcome for one in done.slices} == {"appended"}
    values = [payload for _, payload in await contents(target, ORDERS)]
    assert values[2:] == [b"n%d" % number for number in range(lost, 5)]
    # The producer goes on where it was; one that the restored log does not know begins again.
    appender = Appender(target)
    for claim, expected in ((ProducerClaim(7, 0, 5, 5), Appended), (ProducerClaim(8, 0, 5, 5), UnknownProducer)):
        [answer] = await appender.append([EncodedGroup(ORDERS, 1, "kafka-v2", group(ORDERS, b"x").body, 5, (claim,))])
        assert isinstance(answer, expected)
    await appender.close()


def _numbered(batch: bytes, *, producer_id: int, sequence: int) -> bytes:
    """The batch as an idempotent producer would have sent it."""
    data = bytearray(batch)
    data[43:51] = producer_id.to_bytes(8, "big")
    data[51:53] = (0).to_bytes(2, "big")
    data[53:57] = sequence.to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


async def test_a_blob_that_cannot_be_read_is_named_and_the_others_come_back(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    place = await backed_up(source, objects)
    await write(source, "after", 2, [ORDERS])
    names = [meta.name async for meta in objects.list(source.keys.blobs())]
    data = bytearray(await objects.get(names[0]))
    data[-1] ^= 1
    await objects.put(names[0], [bytes(data)])
    await restored(target, place)
    done = await recover(target)
    assert done.unreadable == [objects.uri(names[0])]
    assert done.appended == 2


async def test_a_blob_drawn_since_the_restore_is_left_to_its_writer(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    place = await backed_up(source, objects)
    await restored(target, place)
    await next_millisecond(target)
    await write(source, "elsewhere", 1)
    assert (await recover(target)).slices == []


async def test_what_is_left_of_a_deleted_topic_stays_deleted(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 2)
    await delete_topic(source, "orders")
    await restored(target, await backed_up(source, objects))
    assert (await recover(target)).slices == []
    with pytest.raises(PartitionNotInitialized):
        await contents(target, ORDERS)


async def test_recovery_needs_the_hold_and_the_hold_goes_only_when_asked(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    with pytest.raises(RestoreRefused, match="needs a completed restore"):
        await recover(source)
    await write(source, "before", 1)
    await restored(target, await backed_up(source, objects))
    hold = await release_vacuum(target)
    assert hold is not None
    assert "restored from backup" in hold.reason
    assert await read_hold(target) is None
    assert await release_vacuum(target) is None


async def test_records_appended_since_the_restore_are_not_replaced_by_those_that_had_their_offsets(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    """A restore, some work, and only then `--recover`: the offsets from the backup's end on belong to others now."""
    await write(source, "before", 2, [ORDERS])
    place = await backed_up(source, objects)
    await write(source, "lost", 2, [ORDERS])
    assert await compact_once(source, ORDERS) is not None
    await restored(target, place)
    await next_millisecond(target)
    await write(target, "new", 2, [ORDERS])
    assert await segment_of(objects, source, ORDERS) == (1, 8), "it would fit the entries that are there now"
    await recover(target)
    assert (await contents(target, ORDERS))[4:8] == [(5, b"new-0"), (6, b"+"), (7, b"new-1"), (8, b"+")]
    await check_all(target, [ORDERS])


async def test_segments_made_since_the_restore_are_not_replaced_either(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await write(source, "before", 2, [ORDERS])
    place = await backed_up(source, objects)
    await write(source, "lost", 2, [ORDERS])
    for _ in range(2):
        assert await compact_once(source, ORDERS, max_offsets=4) is not None
    assert await merge_once(source, ORDERS) is not None
    await restored(target, place)
    await next_millisecond(target)
    await write(target, "new", 2, [ORDERS])
    assert await compact_once(target, ORDERS) is not None
    there = await contents(target, ORDERS)
    await recover(target)
    assert (await contents(target, ORDERS))[: len(there)] == there
    await check_all(target, [ORDERS])


async def test_a_merge_is_adopted_over_a_segment_and_the_slices_behind_it(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    """The backup knew one of the segments that were merged, and of the other only the blobs it was made of."""
    await write(source, "before", 4, [ORDERS])
    assert await compact_once(source, ORDERS, max_offsets=4) is not None
    place = await backed_up(source, objects)
    assert await compact_once(source, ORDERS) is not None
    old = [meta.name async for meta in objects.list(source.keys.segment_objects(ORDERS))]
    assert await merge_once(source, ORDERS) is not None
    written = await contents(source, ORDERS)
    await objects.delete_many(old)
    await delete_blobs(objects, source)
    await restored(target, place)
    assert {fault.kind for fault in (await check_log(target, ORDERS)).faults} == {"missing object"}
    assert len((await recover(target)).adopted) == 1
    assert await contents(target, ORDERS) == written
    await check_all(target, [ORDERS])
    await write(target, "new", 1, [ORDERS])
    assert await compact_once(target, ORDERS) is not None
    assert (await contents(target, ORDERS))[: len(written)] == written
    await check_all(target, [ORDERS])


# -- compacted by key since the backup ---------------------------------------------------------------------------------

PRICES = Log("prices", 0)


async def write_keyed(context: LogContext, name: str, *keys: bytes) -> None:
    values = [b"%s-%d" % (name.encode(), number) for number in range(len(keys))]
    batch = encode_records(values, keys=list(keys), timestamps_ms=5)
    [landed] = await Appender(context).append([EncodedGroup(PRICES, len(keys), "kafka-v2", [batch], 5)])
    assert isinstance(landed, Appended)
    assert await compact_once(context, PRICES) is not None
    await next_millisecond(context)


async def clean(context: LogContext) -> None:
    tools = tools_of(context)
    options = KeyCompactOptions(force=True, bytes_per_second=None, target_bytes=1)
    done = await key_compact(context, LocalTasks(tools), LocalKeyAggregate(tools), [PRICES], options=options)
    assert [log.state for log in done.logs] == ["compacted"]


async def named(context: LogContext, log: Log) -> set[str]:
    """The objects that the log names, by their names."""
    assert context.segments is not None
    entries = [entry_of(item) async for item in context.metadata.scan_all(context.keys.index(log))]
    return {context.segments.name_of(entry.value.data_key) for entry in entries}


async def test_records_that_key_compaction_took_for_the_sake_of_lost_ones_stay(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    """The later records of the same keys are not in the restored log; the earlier ones still are."""
    await create_topic(source, PRICES.topic, config={"cleanup.policy": "compact"})
    await write_keyed(source, "before", b"a", b"b", b"c")
    place = await backed_up(source, objects)
    at_backup = await named(source, PRICES)
    await write_keyed(source, "lost", b"a", b"b", b"a")
    await clean(source)
    assert len(await contents(source, PRICES)) == 3
    gone = {meta.name async for meta in objects.list(source.keys.segment_objects(PRICES))}
    await objects.delete_many(sorted(gone - at_backup - await named(source, PRICES)))
    await delete_blobs(objects, source)
    await restored(target, place)
    await recover(target)
    assert [value for _, value in await contents(target, PRICES)][:3] == [b"before-0", b"before-1", b"before-2"]
    await check_all(target, [PRICES])


async def test_what_was_appended_before_a_key_compaction_comes_back_from_the_segment_that_holds_it_all(
    source: LogContext, target: LogContext, objects: ObjectStore
) -> None:
    await create_topic(source, PRICES.topic, config={"cleanup.policy": "compact"})
    await write_keyed(source, "before", b"a", b"b")
    place = await backed_up(source, objects)
    await write_keyed(source, "after", b"a", b"a")
    written = await contents(source, PRICES)
    await clean(source)
    await delete_blobs(objects, source)
    await restored(target, place)
    await recover(target)
    assert await contents(target, PRICES) == written
    await check_all(target, [PRICES])


@pytest.mark.parametrize("passes_before", [0, 1])
async def test_what_key_compaction_kept_is_adopted_where_the_rest_is_gone(
    source: LogContext, target: LogContext, objects: ObjectStore, passes_before: int
) -> None:
    await create_topic(source, PRICES.topic, config={"cleanup.policy": "compact"})
    await write_keyed(source, "first", b"a", b"a", b"b")
    await write_keyed(source, "then", b"a", b"b", b"c")
    for _ in range(passes_before):
        await clean(source)
        await write_keyed(source, "more", b"c", b"d")
    place = await backed_up(source, objects)
    await clean(source)
    written = await contents(source, PRICES)
    there = {meta.name async for meta in objects.list(source.keys.segment_objects(PRICES))}
    await objects.delete_many(sorted(there - await named(source, PRICES)))
    await delete_blobs(objects, source)
    await restored(target, place)
    assert (await check_log(target, PRICES)).faults
    assert (await recover(target)).adopted
    assert await contents(target, PRICES) == written
    await check_all(target, [PRICES])


async def segment_of(objects: ObjectStore, context: LogContext, log: Log) -> tuple[int, int]:
    """The offsets of the one segment there is."""
    [name] = [meta.name async for meta in objects.list(context.keys.segment_objects(log))]
    footer, _ = await read_footer(objects, name, None, name)
    assert footer.extension is not None
    return footer.extension.start_offset, footer.extension.end_offset
