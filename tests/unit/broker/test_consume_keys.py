"""A broker's caches and key compaction: removed records are returned for one refresh at most."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from llog.broker.consume.consume import PartitionFetch
from llog.formats.records.encode import encode_records
from llog.log.append.append import EncodedGroup
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.admin import alter_topic, create_topic
from llog.pipeline.compact.once import compact_once, merge_once
from llog.pipeline.key_compact.aggregate import LocalKeyAggregate
from llog.pipeline.key_compact.job import key_compact
from llog.pipeline.runtime.tasks import LocalTasks, tools_of
from tests.unit.broker.consuming import ORDERS, REFRESH_MS, Clock, Stores, TestBroker, group, rows
from tests.unit.pipeline.key_compact.key_stage import FAST

KeyedRow = tuple[bytes, bytes]


@pytest.fixture(params=[True, False], ids=["atomic", "compare-and-set"])
def stores(request: pytest.FixtureRequest) -> Stores:
    return Stores(atomic=request.param)


@pytest.fixture
async def broker(stores: Stores) -> AsyncIterator[TestBroker]:
    broker = stores.broker(clock=Clock())
    await create_topic(broker.context, ORDERS.topic, config={"cleanup.policy": "compact"})
    yield broker
    await broker.close()


def keyed(*records: KeyedRow, log: Log = ORDERS) -> EncodedGroup:
    keys, payloads = [key for key, _ in records], [value for _, value in records]
    body = encode_records(list(payloads), keys=list(keys), timestamps_ms=5)
    return EncodedGroup(log, len(records), "kafka-v2", [body], 5)


async def compact_by_key(context: LogContext, logs: Sequence[Log] = (ORDERS,)) -> None:
    """Everything into segments, and of each key the last record."""
    for log in logs:
        while await compact_once(context, log):
            pass
    tools = tools_of(context)
    report = await key_compact(context, LocalTasks(tools), LocalKeyAggregate(tools), logs, options=FAST)
    assert not [one.error for one in report.logs if one.error]


def refresh(broker: TestBroker) -> None:
    clock = broker.cache.clock
    assert isinstance(clock, Clock)
    clock.now_ms += REFRESH_MS + 1


async def test_cached_appends_below_the_cursor_are_not_returned(stores: Stores, broker: TestBroker) -> None:
    await broker.append(keyed((b"k", b"1"), (b"k", b"2")))
    await broker.append(keyed((b"other", b"3"), (b"k", b"4")))
    assert len(await broker.drain(ORDERS)) == 4
    await compact_by_key(broker.context)
    await broker.append(keyed((b"k", b"5")))
    refresh(broker)
    assert await broker.drain(ORDERS) == [(3, b"3"), (4, b"4"), (5, b"5")]
    gets = stores.gets()
    refresh(broker)
    assert rows((await broker.fetch(PartitionFetch(ORDERS, 5)))[0]) == [(5, b"5")]
    assert stores.gets() == gets, "records that are not in segments yet still come from memory"


async def test_read_ahead_batches_are_not_returned_after_a_rewrite(stores: Stores, broker: TestBroker) -> None:
    reader = stores.broker(clock=Clock())
    for number in range(20):
        await broker.append(keyed((b"k%d" % (number % 3), b"%d" % number)))
    while await compact_once(broker.context, ORDERS, max_offsets=10):
        pass
    assert len(await reader.drain(ORDERS, max_bytes=100)) == 20
    gets = stores.gets()
    refresh(reader)
    assert len(await reader.drain(ORDERS, max_bytes=100)) == 20
    assert stores.gets() == gets, "the test proved less than it says: nothing was kept"
    await compact_by_key(broker.context)
    refresh(reader)
    assert await reader.drain(ORDERS, max_bytes=100) == [(18, b"17"), (19, b"18"), (20, b"19")]
    await reader.close()


async def test_a_topic_that_stops_being_compacted_by_key_is_read_ahead_again(
    stores: Stores, broker: TestBroker
) -> None:
    reader = stores.broker(clock=Clock())
    await broker.append(keyed((b"k", b"1"), (b"k", b"2")))
    assert len(await reader.drain(ORDERS)) == 2
    await alter_topic(broker.context, ORDERS.topic, put={"cleanup.policy": "delete"})
    while await compact_once(broker.context, ORDERS):
        pass
    for _ in range(400):  # until the config was read again
        refresh(reader)
        await reader.fetch(ORDERS)
    gets = stores.gets()
    refresh(reader)
    assert len(await reader.drain(ORDERS)) == 2
    assert stores.gets() == gets
    await reader.close()


async def test_a_topic_not_compacted_by_key_costs_no_read_of_its_compaction_record(stores: Stores) -> None:
    broker = stores.broker(clock=Clock())
    await broker.append(group(Log("plain", 0), b"a"))
    reads = broker.metadata.reads
    for looks in (2, 3, 4):  # the first time at the topic too
        refresh(broker)
        assert len(await broker.drain(Log("plain", 0))) == 1
        assert broker.metadata.reads == reads + looks
    await broker.close()


@pytest.mark.parametrize("seed", range(200 if os.environ.get("LLOG_SOAK") == "1" else 8))
async def test_brokers_return_the_remaining_records_whatever_they_cache(seed: int) -> None:
    """With no, a tiny and a large memory, while a log is appended to, compacted, merged and compacted by key."""
    rng, stores, clock = random.Random(seed), Stores(atomic=bool(seed % 2)), Clock()
    brokers = [stores.broker(size, clock=clock, with_incarnation=size != 2_000) for size in (0, 2_000, 1 << 20)]
    context = brokers[0].context
    await create_topic(context, ORDERS.topic, config={"cleanup.policy": "compact"})
    left: list[tuple[int, bytes, bytes]] = []
    end = 1
    for step in range(50):
        match rng.choices(["append", "check", "compact", "merge", "keys"], [6, 6, 1, 0.5, 1])[0]:
            case "append":
                records = [(b"k%d" % rng.randrange(5), b"%d/%d" % (step, i)) for i in range(rng.randint(1, 4))]
                await rng.choice(brokers).append(keyed(*records))
                left += [(end + i, key, value) for i, (key, value) in enumerate(records)]
                end += len(records)
            case "check" if end > 1:
                clock.now_ms += REFRESH_MS + 1
                offset, most = rng.randrange(1, end + 1), rng.choice([1, 200, 1 << 20])
                expected = [(number, value) for number, _, value in left if number >= offset]
                for broker in rng.sample(brokers, 2):
                    assert await broker.drain(ORDERS, offset, max_bytes=most) == expected
            case "compact" if end > 1:
                await compact_once(context, ORDERS, max_offsets=rng.choice([3, 1_000]))
            case "merge" if end > 1:
                await merge_once(context, ORDERS, min_inputs=2)
            case "keys" if end > 1:
                await compact_by_key(context)
                last = {key: number for number, key, _ in left}
                left = [row for row in left if last[row[1]] == row[0]]
    for broker in brokers:
        await broker.close()
