"""Consume: limits and long polls as Kafka means them, and the tail cache as nothing but an optimisation."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator

import pytest

from llog.broker.consume.consume import PartitionFetch
from llog.errors import (
    InvalidArgument,
    LlogError,
    LogDeleted,
    MetadataUnavailable,
    OffsetOutOfRange,
    PartitionNotInitialized,
    StoreClosed,
)
from llog.formats.buffers import Buffer
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.record_batch import BatchRule, TimestampType, verify_crcs, walk
from llog.log.append.append import EncodedGroup
from llog.log.cleanup.retention import delete_records
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.port import Key, Record
from tests.patience import PATIENCE_SECONDS, until
from tests.unit.broker.consuming import (
    EVENTS,
    LONG_POLL_MS,
    ORDERS,
    REFRESH_MS,
    Clock,
    Stores,
    TestBroker,
    batches,
    group,
    rows,
    values,
)


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stores(request: pytest.FixtureRequest) -> Stores:
    return Stores(atomic=request.param)


@pytest.fixture
async def broker(stores: Stores) -> AsyncIterator[TestBroker]:
    broker = stores.broker()
    yield broker
    await broker.close()


# -- where records come from -----------------------------------------------------------------------------------------


async def test_a_fresh_append_is_read_without_touching_a_store(stores: Stores) -> None:
    broker = stores.broker(refresh_ms=LONG_POLL_MS)
    await broker.append(group(ORDERS, b"a", b"b"))
    reads, gets = broker.metadata.reads, stores.gets()
    [answer] = await broker.fetch(ORDERS)
    assert rows(answer) == [(1, b"a"), (2, b"b")]
    assert (answer.high_watermark, answer.next_fetch_offset) == (2, 3)
    assert (broker.metadata.reads, stores.gets()) == (reads, gets)
    assert broker.metrics.events["hit"] == 1
    assert broker.metrics.consumed[0][4] == "cache"
    assert len(broker.metrics.latencies_ms) == 1
    await broker.close()


async def test_an_old_append_is_read_from_memory_after_one_read_of_control(stores: Stores) -> None:
    clock = Clock()
    broker = stores.broker(clock=clock)
    await broker.append(group(ORDERS, b"a"))
    reads, gets = broker.metadata.reads, stores.gets()
    for looks in (2, 3):  # the first time at the topic too: is it compacted by key?
        clock.now_ms += REFRESH_MS + 1
        assert values((await broker.fetch(ORDERS))[0]) == [b"a"]
        assert (broker.metadata.reads, stores.gets()) == (reads + looks, gets)
    await broker.close()


async def test_without_a_cache_records_come_from_the_store(stores: Stores) -> None:
    broker = stores.broker(max_bytes=0)
    await broker.append(group(ORDERS, b"a", b"b"))
    [answer] = await broker.fetch(PartitionFetch(ORDERS, 2))
    assert rows(answer) == [(2, b"b")]
    assert stores.gets() == 1
    assert broker.metrics.consumed[0][4] == "store"
    await broker.close()


async def test_logs_of_one_blob_are_read_by_one_request(stores: Stores) -> None:
    writer, reader = stores.broker(), stores.broker()
    logs = [Log("orders", partition) for partition in range(8)]
    await writer.append(*(group(log, b"%d" % log.partition) for log in logs))
    answers = await reader.fetch(*logs[::2])
    assert [values(answer) for answer in answers] == [[b"%d" % log.partition] for log in logs[::2]]
    assert stores.gets() == 1
    await writer.close()
    await reader.close()


async def test_two_consumers_share_one_request_for_the_same_bytes(stores: Stores) -> None:
    writer, reader = stores.broker(), stores.broker()
    await writer.append(group(ORDERS, b"a"))
    await asyncio.gather(*(reader.fetch(ORDERS) for _ in range(5)))
    assert stores.gets() == 1
    await reader.fetch(ORDERS)
    assert stores.gets() == 1, "what was fetched is kept for others"
    await writer.close()
    await reader.close()


async def test_a_consumer_that_reads_on_gets_a_window_fetched_ahead(stores: Stores) -> None:
    writer, reader = stores.broker(), stores.broker()
    for i in range(20):
        await writer.append(group(ORDERS, b"%02d" % i))
    gets = stores.gets()
    assert len(await _small_steps(reader, len(b"00"))) == 20
    assert stores.gets() - gets == 20, "each append is a blob of its own and fetched once"
    reads = reader.metadata.reads
    assert len(await _small_steps(reader, len(b"00"))) == 20
    assert stores.gets() - gets == 20
    assert reader.metadata.reads - reads < 40, "the index was not scanned again"
    await writer.close()
    await reader.close()


async def _small_steps(reader: TestBroker, size: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = 1
    while True:
        [answer] = await reader.fetch(PartitionFetch(ORDERS, offset, size))
        if not answer.batches:
            return found
        found += rows(answer)
        offset = answer.next_fetch_offset


async def test_compacted_records_are_read_in_parts(stores: Stores, broker: TestBroker) -> None:
    payloads = [b"%03d" % i * 50 for i in range(60)]
    for first in range(0, 60, 10):
        await broker.append(batches(ORDERS, *payloads[first : first + 10]))
    assert await compact_once(broker.context, ORDERS) is not None
    other = stores.broker()
    found = await other.drain(ORDERS, max_bytes=3 * len(payloads[0]))
    assert found == list(enumerate(payloads, start=1))
    assert await other.drain(ORDERS, 31) == found[30:]
    await other.close()


async def test_a_missing_object_means_stale_metadata(stores: Stores) -> None:
    writer, reader = stores.broker(), stores.broker()
    await writer.append(group(ORDERS, b"a"))
    [blob] = [meta.name async for meta in stores.objects.list()]
    get_range = stores.objects.get_range

    async def vanish(name: str, byte_offset: int, byte_length: int) -> Buffer:
        stores.objects.get_range = get_range  # type: ignore[method-assign]
        await compact_once(writer.context, ORDERS)
        await stores.objects.delete(blob)
        return await get_range(name, byte_offset, byte_length)

    stores.objects.get_range = vanish  # type: ignore[method-assign]
    assert values((await reader.fetch(ORDERS))[0]) == [b"a"]
    assert reader.metrics.events["log_read_restarts"] == 1
    await writer.close()
    await reader.close()


async def test_bare_payloads_are_answered_as_the_reader_decodes_them(stores: Stores, broker: TestBroker) -> None:
    bare = EncodedGroup(ORDERS, 2, "bytes-batch-v1", encode_bytes_batch([b"a", b"b"]), 7)
    await broker.append(bare)
    [answer] = await broker.fetch(ORDERS)
    runs = [run async for run in iter_runs(broker.context, ORDERS, 1)]
    assert [list(run.records()) for run in answer.runs] == [list(run.records()) for run in runs]
    kinds = [run.columns.timestamp_types.tolist() for run in answer.runs]
    assert kinds == [run.columns.timestamp_types.tolist() for run in runs] == [[TimestampType.LOG_APPEND_TIME] * 2]


# -- answers ---------------------------------------------------------------------------------------------------------


async def test_raw_batches_have_their_offsets_and_sound_checksums(stores: Stores, broker: TestBroker) -> None:
    await broker.append(batches(ORDERS, b"a", b"b"))
    await fence(broker.context, ORDERS)
    await unfence(broker.context, ORDERS)
    await broker.append(batches(ORDERS, b"c"))
    cold = stores.broker(max_bytes=0)
    found = []
    for each in (broker, cold):
        [answer] = await each.fetch(ORDERS, raw=True)
        assert answer.runs == []
        assert answer.next_fetch_offset == 4
        data = b"".join(answer.batches)
        columns = walk(data, "raw", rule=BatchRule.COMPACTED)
        verify_crcs(data, columns, "raw")
        assert columns.base_offset.tolist() == [1, 2, 3]
        assert columns.partition_leader_epoch.tolist() == [0, 0, 0], "a fence is no change of leader"
        found.append(data)
    assert found[0] == found[1]
    await cold.close()


async def test_a_raw_answer_begins_with_the_batch_that_holds_the_offset(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a", b"b", b"c"))
    [answer] = await broker.fetch(PartitionFetch(ORDERS, 3))
    assert values(answer) == [b"c"]
    assert int.from_bytes(bytes(answer.batches[0][:8]), "big") == 1


async def test_the_end_is_empty_and_beyond_it_is_an_error_for_that_log_alone(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"), group(EVENTS, b"x"))
    at_end, beyond, below, missing, fine = await broker.fetch(
        PartitionFetch(ORDERS, 2),
        PartitionFetch(ORDERS, 3),
        PartitionFetch(ORDERS, 0),
        PartitionFetch(Log("missing", 0), 1),
        PartitionFetch(EVENTS, 1),
    )
    assert (at_end.error, at_end.high_watermark, at_end.next_fetch_offset, at_end.runs) == (None, 1, 2, [])
    assert isinstance(beyond.error, OffsetOutOfRange)
    assert beyond.error.next_offset == 2
    assert isinstance(below.error, OffsetOutOfRange)
    assert below.error.log_start_offset == 1
    assert isinstance(missing.error, PartitionNotInitialized)
    assert values(fine) == [b"x"]
    assert fine.error is None


async def test_a_fenced_log_is_readable(stores: Stores, broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    await fence(broker.context, ORDERS)
    cold = stores.broker()
    assert values((await cold.fetch(ORDERS))[0]) == [b"a"] == values((await broker.fetch(ORDERS))[0])
    await cold.close()


async def test_an_empty_log_answers_with_the_offset_below_its_first(stores: Stores) -> None:
    broker = stores.broker(clock=(clock := Clock()))
    await broker.append(group(ORDERS, b"a"))
    await delete_records(broker.context, ORDERS, 2)
    clock.now_ms += REFRESH_MS + 1
    [answer] = await broker.fetch(PartitionFetch(ORDERS, 2))
    assert (answer.error, answer.high_watermark, answer.next_fetch_offset) == (None, 1, 2)
    await broker.close()


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1 << 20, 0], ids=["cache", "store"])
async def test_one_record_is_returned_however_large(stores: Stores, max_bytes: int) -> None:
    broker = stores.broker(max_bytes)
    await broker.append(batches(ORDERS, b"a" * 1_000, b"b"))
    for limits in ({"max_bytes": 1}, {"max_bytes": 0}):
        [answer] = await broker.fetch(ORDERS, **limits)
        assert values(answer) == [b"a" * 1_000]
    [answer] = await broker.fetch(PartitionFetch(ORDERS, 1, 1))
    assert values(answer) == [b"a" * 1_000]
    await broker.close()


@pytest.mark.parametrize("max_bytes", [1 << 20, 0], ids=["cache", "store"])
async def test_partitions_fill_the_answer_in_request_order(stores: Stores, max_bytes: int) -> None:
    broker = stores.broker(max_bytes)
    logs = [Log("orders", partition) for partition in range(3)]
    await broker.append(*(batches(log, b"a", b"b", b"c") for log in logs))
    fetches = [PartitionFetch(log, 1, 2) for log in reversed(logs)]
    answers = await broker.fetch(*fetches, max_bytes=3)
    assert [values(answer) for answer in answers] == [[b"a", b"b"], [b"a"], []]
    assert [answer.next_fetch_offset for answer in answers] == [3, 2, 1]
    assert {answer.high_watermark for answer in answers} == {3}
    # Only the first record of the whole answer may pass a limit.
    answers = await broker.fetch(*fetches, max_bytes=0)
    assert [values(answer) for answer in answers] == [[b"a"], [], []]
    await broker.close()


async def test_an_answer_waits_for_min_bytes_and_returns_what_came(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    waiting = asyncio.create_task(broker.fetch(ORDERS, min_bytes=3, max_wait_ms=LONG_POLL_MS))
    for payload in (b"b", b"c"):
        await broker.at_the_end(1)
        await broker.append(group(ORDERS, payload))
    [answer] = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert values(answer) == [b"a", b"b", b"c"]


async def test_max_wait_ends_the_wait(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    begun = time.monotonic()
    async with asyncio.timeout(PATIENCE_SECONDS):
        [some] = await broker.fetch(ORDERS, min_bytes=1_000, max_wait_ms=60)
        [none] = await broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=60)
    assert time.monotonic() - begun > 0.1
    assert values(some) == [b"a"]
    assert values(none) == []
    assert none.high_watermark == 1
    assert broker.service.watch.waiter_count == 0


async def test_min_bytes_zero_answers_at_once(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    await broker.fetch(PartitionFetch(ORDERS, 2), min_bytes=0, max_wait_ms=LONG_POLL_MS)
    assert broker.metrics.waits_ms == [0]


async def test_min_bytes_above_max_bytes_is_met_by_max_bytes(broker: TestBroker) -> None:
    await broker.append(batches(ORDERS, b"a", b"b"))
    [answer] = await broker.fetch(ORDERS, min_bytes=10_000, max_bytes=2, max_wait_ms=LONG_POLL_MS)
    assert values(answer) == [b"a", b"b"]
    assert broker.metrics.waits_ms == [0]


async def test_an_error_is_answered_at_once(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    empty, failed = await broker.fetch(PartitionFetch(ORDERS, 2), Log("missing", 0), max_wait_ms=LONG_POLL_MS)
    assert empty.error is None
    assert failed.error is not None
    assert broker.metrics.waits_ms == [0]


async def test_a_request_with_a_negative_limit_or_too_many_partitions_is_refused(broker: TestBroker) -> None:
    with pytest.raises(InvalidArgument, match="min_bytes"):
        await broker.fetch(ORDERS, min_bytes=-1)
    with pytest.raises(InvalidArgument, match="partitions"):
        await broker.fetch(*[ORDERS] * 10_001)


# -- waiting ---------------------------------------------------------------------------------------------------------


async def test_an_append_of_this_broker_wakes_a_long_poll_without_a_read(stores: Stores) -> None:
    broker = stores.broker(refresh_ms=LONG_POLL_MS)
    await broker.append(group(ORDERS, b"a"))
    reads, gets = broker.metadata.reads, stores.gets()
    waiting = [
        asyncio.create_task(broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS)) for _ in range(50)
    ]
    await broker.at_the_end(50)
    polled = broker.metadata.reads
    assert polled == reads
    await broker.append(group(ORDERS, b"b"))
    appended = broker.metadata.reads
    for [answer] in await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_SECONDS):
        assert values(answer) == [b"b"]
    assert (broker.metadata.reads, stores.gets()) == (appended, gets)
    await broker.close()


async def test_a_busy_process_serves_all_waiters_from_memory(stores: Stores) -> None:
    """If waking all waiters takes longer than the cache stays fresh, the last ones still do not read the stores."""
    broker = stores.broker(refresh_ms=LONG_POLL_MS)
    await broker.append(group(ORDERS, b"a"))
    waiting = [
        asyncio.create_task(broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS)) for _ in range(20)
    ]
    await broker.at_the_end(20)
    broker.cache.fresh_ms = 1.0
    gets = stores.gets()
    await broker.append(group(ORDERS, b"b"))
    time.sleep(0.02)  # noqa: ASYNC251 (the loop is held on purpose)
    for [answer] in await asyncio.gather(*waiting):
        assert values(answer) == [b"b"]
    assert stores.gets() == gets
    await broker.close()


async def test_an_append_of_another_broker_is_seen_within_the_refresh(stores: Stores) -> None:
    here, there = stores.broker(), stores.broker()
    await here.append(group(ORDERS, b"a"))
    waiting = asyncio.create_task(here.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS))
    await here.at_the_end(1)
    await there.append(group(ORDERS, b"b"))
    looks = here.service.watch.control_reads
    [answer] = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert values(answer) == [b"b"]
    # One that was under way, the one that finds it, and one more where that was long ago when the waiter had its turn.
    assert here.service.watch.control_reads - looks <= 3
    await here.close()
    await there.close()


async def test_idle_long_polls_cost_one_read_per_refresh(stores: Stores) -> None:
    broker = stores.broker()
    await broker.append(group(ORDERS, b"a"), group(EVENTS, b"a"))
    reads, gets, begun = broker.metadata.reads, stores.gets(), time.monotonic()
    polls = (broker.fetch(PartitionFetch(ORDERS, 2), PartitionFetch(EVENTS, 2), max_wait_ms=300) for _ in range(200))
    await asyncio.gather(*polls)
    rounds = (time.monotonic() - begun) * 1_000 / REFRESH_MS
    assert stores.gets() == gets
    assert broker.metadata.reads - reads <= 2 * (rounds * 8 / 7 + 2)
    assert broker.cache.on_moved is None, "no log has waiters"
    await broker.close()


async def test_a_cancelled_poll_leaves_nothing_behind(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    waiting = asyncio.create_task(broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS))
    await broker.at_the_end(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert broker.service.watch.waiter_count == 0
    assert broker.cache.on_moved is None, "no log has waiters"


async def test_close_answers_waiters_and_refuses_new_requests(broker: TestBroker) -> None:
    await broker.append(group(ORDERS, b"a"))
    waiting = asyncio.create_task(broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS))
    await broker.at_the_end(1)
    await broker.service.close()
    [answer] = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert answer.error is None
    assert answer.high_watermark == 1
    with pytest.raises(StoreClosed):
        await broker.fetch(ORDERS)


async def test_an_unreachable_store_fails_partitions_but_not_waiters(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = stores.broker()
    await broker.append(group(ORDERS, b"a"))
    waiting = asyncio.create_task(broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS))

    failed_reads = 0

    async def away(*_: object, **__: object) -> None:
        nonlocal failed_reads
        failed_reads += 1
        raise MetadataUnavailable("get", "control")

    await broker.at_the_end(1)
    monkeypatch.setattr(broker.metadata, "get_many", away)
    await until(lambda: failed_reads, "a refresh that fails")

    async def error_of_the_cached_log() -> LlogError | None:
        return (await broker.fetch(ORDERS))[0].error

    assert isinstance(await until(error_of_the_cached_log, "the end of freshness"), MetadataUnavailable)
    [missing] = await broker.fetch(EVENTS)
    assert isinstance(missing.error, MetadataUnavailable)
    monkeypatch.undo()
    await broker.append(group(ORDERS, b"b"))
    assert values((await asyncio.wait_for(waiting, PATIENCE_SECONDS))[0]) == [b"b"]
    await broker.close()


async def test_a_deposed_leader_does_not_make_a_consumer_reset(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = stores.broker(), stores.broker()
    await writer.append(group(ORDERS, b"a"))
    keys = [reader.context.keys.control(ORDERS), reader.context.keys.compaction(ORDERS)]
    past = dict(zip(keys, await reader.metadata.get_many(keys), strict=True))
    await writer.append(group(ORDERS, b"b"), group(EVENTS, b"x"))
    truth = reader.metadata.get_many

    async def get_many(keys: list[Key], *, strict: bool = False) -> list[Record | None]:
        found = await truth(keys, strict=strict)
        return found if strict else [past.get(key) for key in keys]

    monkeypatch.setattr(reader.metadata, "get_many", get_many)
    at_end, beyond, missing = await reader.fetch(
        PartitionFetch(ORDERS, 3), PartitionFetch(ORDERS, 4), PartitionFetch(EVENTS, 1)
    )
    assert (at_end.error, at_end.high_watermark) == (None, 2)
    assert isinstance(beyond.error, OffsetOutOfRange)
    assert beyond.error.next_offset == 3
    assert values(missing) == [b"x"]
    await writer.close()
    await reader.close()


async def test_a_reader_behind_a_hole_of_the_cache_gets_it_from_the_store(stores: Stores) -> None:
    here, there = stores.broker(), stores.broker()
    for broker, payload in ((here, b"a"), (there, b"b"), (here, b"c")):
        await broker.append(group(ORDERS, payload))
    assert await here.drain(ORDERS) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert stores.gets() == 1
    await here.close()
    await there.close()


async def test_appends_while_many_consume_are_seen_once_and_in_order(stores: Stores) -> None:
    """Brokers append and consume at the same time; every consumer gets every record, once."""
    brokers = [stores.broker(size) for size in (0, 3_000, 1 << 20)]
    total = 60

    async def produce(broker: TestBroker, number: int) -> None:
        for i in range(total // 3):
            await broker.append(group(ORDERS, b"%d/%d" % (number, i)))
            await asyncio.sleep(0.002)

    async def consume(broker: TestBroker) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        while len(found) < total:
            [answer] = await broker.fetch(PartitionFetch(ORDERS, len(found) + 1), max_wait_ms=500)
            assert answer.error is None or isinstance(answer.error, PartitionNotInitialized), answer.error
            found += rows(answer)
        return found

    consumers = [asyncio.create_task(consume(broker)) for broker in brokers for _ in range(3)]
    await asyncio.gather(*(produce(broker, number) for number, broker in enumerate(brokers)))
    answers = await asyncio.wait_for(asyncio.gather(*consumers), PATIENCE_SECONDS)
    assert [offset for offset, _ in answers[0]] == list(range(1, total + 1))
    assert all(answer == answers[0] for answer in answers)
    for broker in brokers:
        await broker.close()


# -- what the cache must not hide ----------------------------------------------------------------------------------


async def test_a_raised_start_is_seen_after_the_refresh(stores: Stores) -> None:
    clock = Clock()
    broker, other = stores.broker(clock=clock), stores.broker()
    await broker.append(group(ORDERS, b"a"))
    await broker.append(group(ORDERS, b"b"))
    await delete_records(other.context, ORDERS, 2)
    assert values((await broker.fetch(ORDERS))[0]) == [b"a", b"b"], "within the refresh"
    clock.now_ms += REFRESH_MS + 1
    [answer] = await broker.fetch(ORDERS)
    assert isinstance(answer.error, OffsetOutOfRange)
    assert values((await broker.fetch(PartitionFetch(ORDERS, 2)))[0]) == [b"b"]
    await broker.close()
    await other.close()


@pytest.mark.parametrize("with_incarnation", [True, False], ids=["known", "unknown"])
async def test_records_of_an_earlier_incarnation_are_not_read_after_the_refresh(
    stores: Stores, with_incarnation: bool
) -> None:
    clock = Clock()
    broker, other = stores.broker(clock=clock, with_incarnation=with_incarnation), stores.broker()
    await broker.append(group(ORDERS, b"old 1", b"old 2"))
    await delete_topic(other.context, "orders")
    await other.append(group(ORDERS, b"new 1", b"new 2"))
    clock.now_ms += REFRESH_MS + 1
    assert values((await broker.fetch(ORDERS))[0]) == [b"new 1", b"new 2"]
    clock.now_ms += REFRESH_MS + 1
    assert values((await broker.fetch(ORDERS))[0]) == [b"new 1", b"new 2"]
    await broker.close()
    await other.close()


async def test_a_deleted_log_ends_a_long_poll(stores: Stores) -> None:
    broker, other = stores.broker(), stores.broker()
    await broker.append(group(ORDERS, b"a"))
    waiting = asyncio.create_task(broker.fetch(PartitionFetch(ORDERS, 2), max_wait_ms=LONG_POLL_MS))
    await broker.at_the_end(1)
    await delete_topic(other.context, "orders")
    [answer] = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert isinstance(answer.error, (PartitionNotInitialized, LogDeleted))
    await broker.close()
    await other.close()


@pytest.mark.parametrize("seed", range(200 if os.environ.get("LLOG_SOAK") == "1" else 12))
async def test_answers_do_not_depend_on_what_the_cache_holds(seed: int) -> None:
    """Several brokers with no, a tiny and a large cache on one store; appends, retention, compaction, deletion."""
    rng = random.Random(seed)
    stores, clock = Stores(atomic=bool(seed % 2)), Clock()
    sizes = [0, 2_500, 1 << 20, 1 << 20]
    brokers = [stores.broker(size, clock=clock, with_incarnation=i != 3) for i, size in enumerate(sizes)]
    truth: dict[Log, list[bytes]] = {}
    starts: dict[Log, int] = {}
    logs = [Log("orders", 0), Log("orders", 1), Log("events", 0)]

    async def check() -> None:
        clock.now_ms += REFRESH_MS + 1
        log = rng.choice(logs)
        end = len(truth.get(log, ())) + 1
        offset = rng.randrange(0, end + 2)
        limits = {"max_bytes": rng.choice([1, 200, 1_000, 1 << 20])}
        for broker in rng.sample(brokers, 2):
            clock.now_ms += rng.choice([0, REFRESH_MS + 1])
            [answer] = await broker.fetch(PartitionFetch(log, offset), **limits)
            if log not in truth:
                assert isinstance(answer.error, PartitionNotInitialized), answer
            elif not starts[log] <= offset <= end:
                assert isinstance(answer.error, OffsetOutOfRange), (offset, starts[log], end, answer)
            else:
                assert answer.error is None
                assert answer.high_watermark == end - 1
                expected = list(enumerate(truth[log], start=1))[offset - 1 :]
                assert await broker.drain(log, offset, **limits) == expected
                assert rows(answer) == expected[: len(rows(answer))]
                assert bool(expected) == bool(rows(answer))

    for step in range(60):
        match rng.choices(["append", "check", "start", "compact", "delete"], [6, 6, 1, 1, 0.5])[0]:
            case "append":
                chosen = rng.sample(logs, rng.randrange(1, 4))
                fresh = {log: [b"%d/%d/%d" % (seed, step, i) for i in range(rng.randrange(1, 4))] for log in chosen}
                await rng.choice(brokers).append(*(batches(log, *payloads) for log, payloads in fresh.items()))
                for log, payloads in fresh.items():
                    truth.setdefault(log, []).extend(payloads)
                    starts.setdefault(log, 1)
            case "check":
                await check()
            case "start" if truth:
                log = rng.choice(list(truth))
                starts[log] = rng.randrange(starts[log], len(truth[log]) + 2)
                await delete_records(brokers[0].context, log, starts[log])
            case "compact" if truth:
                await compact_once(brokers[0].context, rng.choice(list(truth)))
            case "delete" if truth:
                topic = rng.choice(list(truth)).topic
                await delete_topic(brokers[0].context, topic)
                for log in [log for log in truth if log.topic == topic]:
                    del truth[log], starts[log]
    for broker in brokers:
        await broker.close()
